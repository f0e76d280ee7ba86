"""Connections that the gateway opens: credentials that tool code never sees, and rules about methods and paths."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from airlock.audit import AuditQuery
from gateway.client import Client
from tests.gateway_process import Home, make_home, served

NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
SECRET = "sk-real-value-of-the-token"
# Commands run in the workspace on this machine, where /workspace is not.
CURL = "unset NO_PROXY no_proxy; curl -sS --cacert .airlock/network/ca.pem"


class Echo(BaseHTTPRequestHandler):
    """Answers with the request's method, path and Authorization."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, str | None]]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = (self.command, self.path, self.headers.get("Authorization"))
        self.seen.append(found)
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@dataclass(frozen=True)
class Server:
    port: int
    seen: list[tuple[str, str, str | None]]


def serve(authority: trustme.CA) -> Iterator[Server]:
    handler = type("Handler", (Echo,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Server(server.server_address[1], handler.seen)  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def api(authority: trustme.CA) -> Iterator[Server]:
    """Has the credential."""
    yield from serve(authority)


@pytest.fixture(scope="module")
def plain(authority: trustme.CA) -> Iterator[Server]:
    """Has none, and is not opened."""
    yield from serve(authority)


@pytest.fixture(scope="module")
def ruled(authority: trustme.CA) -> Iterator[Server]:
    """Has rules about methods."""
    yield from serve(authority)


@pytest.fixture(scope="module")
def distrusted() -> Iterator[Server]:
    """Has a credential, and a certificate of an authority that the gateway does not know."""
    yield from serve(trustme.CA())


@dataclass(frozen=True)
class Network:
    home: Home
    address: str


@pytest.fixture(scope="module")
def network(
    tmp_path_factory: pytest.TempPathFactory,
    authority: trustme.CA,
    api: Server,
    plain: Server,
    ruled: Server,
    distrusted: Server,
) -> Iterator[Network]:
    directory = tmp_path_factory.mktemp("opened")
    home = make_home(directory)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    (directory / "token").write_text(SECRET + "\n")
    ports = [server.port for server in (api, plain, ruled, distrusted)]
    rules: list[dict[str, object]] = [
        {"id": "commands", "tools": ["execute"], "effect": "allow"},
        {"id": "files", "tools": ["read", "write"], "paths": ["/**"], "effect": "allow"},
        *(
            {"id": f"host-{port}", "tools": ["connect"], "hosts": [f"localhost:{port}"], "effect": "allow"}
            for port in (api.port, plain.port, distrusted.port)
        ),
        {
            "id": "reads",
            "tools": ["connect"],
            "hosts": [f"localhost:{ruled.port}"],
            "methods": ["GET"],
            "url_paths": ["/public/**"],
            "effect": "allow",
        },
    ]
    operator = {"id": "loopback", "tools": ["connect"], "hosts": [f"127.0.0.1:{port}" for port in ports]}
    for name, found in (("default", rules), ("operator", [{**operator, "effect": "allow"}])):
        document = {"version": 1, "rules": [{**rule, "reason": "A test."} for rule in found]}
        if name == "default":
            document["enforcement"] = "kernel"
        (directory / "policies" / f"{name}.yaml").write_text(json.dumps(document))
    bound = {"env": "TOKEN", "secret": {"file": "token"}, "path_prefixes": ["/v1"]}
    credentials = [
        {**bound, "name": "api", "hosts": [f"localhost:{api.port}"]},
        {**bound, "name": "other", "env": "OTHER", "hosts": [f"localhost:{distrusted.port}"]},
    ]
    home.configure(
        sandbox={"engine": "memory"},
        operator_policy="policies/operator.yaml",
        network={"ca_file": "ca.pem"},
        tenants={"default": {"policy": "policies/default.yaml", "credentials": credentials}},
    )
    with served(home, NO_DOCKER) as gateway:
        yield Network(home, gateway.address)


@pytest.fixture
async def client(network: Network) -> AsyncIterator[Client]:
    async with Client(network.address, network.home.key) as made:
        yield made


async def run(client: Client, command: str, thread: str = "t") -> str:
    done = await client.call_tool("execute", {"command": command, "timeout_s": 60}, thread=thread)
    assert done.exit_code == 0, (done.content, done.note)
    return done.content


async def test_the_server_gets_the_secret_and_tool_code_sees_neither_it_nor_its_echo(
    client: Client, api: Server
) -> None:
    said = await run(client, f'{CURL} -H "Authorization: Bearer $TOKEN" https://localhost:{api.port}/v1/a; env')
    assert api.seen[-1] == ("GET", "/v1/a", f"Bearer {SECRET}")
    assert SECRET not in said
    assert "Bearer ***" in said
    assert "TOKEN=airlock_ph_" in said


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ('-H "X-Other: $TOKEN" https://localhost:{api}/v1/a', "belongs in the header Authorization"),
        ('-H "Authorization: Bearer $TOKEN" https://localhost:{api}/v2', "is for /v1 only"),
        ('-d "token=$TOKEN" https://localhost:{api}/v1/a', "in the body"),
        ('"https://localhost:{api}/v1/a?t=$TOKEN"', "in the URL"),
        ('-H "Authorization: Bearer $TOKEN" https://localhost:{other}/v1/a', "the credential is for"),
    ],
)
async def test_a_placeholder_that_is_anywhere_else_is_refused(
    client: Client, api: Server, distrusted: Server, arguments: str, reason: str
) -> None:
    before = len(api.seen)
    said = await run(client, f"{CURL} {arguments.format(api=api.port, other=distrusted.port)}")
    body = json.loads(said)
    assert body["error"] == "policy_denied"
    assert reason in body["reason"]
    assert [found for found in api.seen[before:] if SECRET in str(found)] == []


async def test_a_host_without_credentials_keeps_its_own_tls(client: Client, plain: Server, network: Network) -> None:
    await client.write_file("t", "/workspace/ca.pem", (network.home.config.parent / "ca.pem").read_bytes())
    command = f"unset NO_PROXY no_proxy; curl -sS --cacert ca.pem https://localhost:{plain.port}/x"
    assert json.loads(await run(client, command)) == ["GET", "/x", None]


async def test_a_server_whose_certificate_is_not_valid_is_said(client: Client, distrusted: Server) -> None:
    said = await run(client, f"{CURL} https://localhost:{distrusted.port}/v1/a")
    assert json.loads(said)["error"] == "bad_certificate"
    assert distrusted.seen == []


async def test_rules_about_methods_and_paths_hold_inside_tls(client: Client, ruled: Server) -> None:
    url = f"https://localhost:{ruled.port}"
    assert json.loads(await run(client, f"{CURL} {url}/public/a")) == ["GET", "/public/a", None]
    for arguments in (f"-d x {url}/public/a", f"{url}/private", f"--path-as-is {url}/public/../private"):
        assert json.loads(await run(client, f"{CURL} {arguments}"))["error"] == "policy_denied"
    assert [(method, path) for method, path, _ in ruled.seen] == [("GET", "/public/a")]


async def test_the_record_names_the_credential_and_nothing_has_the_secret(
    client: Client, network: Network, api: Server
) -> None:
    command = f'{CURL} -H "Authorization: Bearer $TOKEN" https://localhost:{api.port}/v1/recorded'
    await run(client, command, thread="recorded")
    async with Client(network.address, network.home.make_key("default", "audit")) as auditor:
        (record,) = await auditor.audit(AuditQuery(kinds=("connection",), thread="recorded"))
    assert json.loads(record.details)["credential"] == "api"
    home = network.home.config.parent
    found = [path for path in home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert found == [home / "token"]
