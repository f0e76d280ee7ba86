"""What agents use, in a real sandbox: each works through the door with nothing else configured."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from examples.package_index import PackageIndex, greeting_wheel
from gateway.client import Client
from tests.gateway_process import Home, make_home, served

HOST = "127.0.0.1"


class _Site(SimpleHTTPRequestHandler):
    """Serves the files of a directory, and its repositories by git http-backend."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve_git() if ".git/" in self.path else super().do_GET()

    def do_POST(self) -> None:
        self._serve_git()

    def _serve_git(self) -> None:
        path, _, query = self.path.partition("?")
        variables = {
            "PATH": "/usr/bin:/bin",
            "GIT_PROJECT_ROOT": self.directory,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REMOTE_USER": "tests",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], check=True, input=self._body(), env=variables, capture_output=True
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().splitlines()]
        status = next((value for name, value in fields if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[int]:
    """Serve a file and, by git http-backend, a repository over TLS."""
    root = tmp_path_factory.mktemp("site")
    (root / "hello.txt").write_text("hello\n")
    work = root / "work"
    env = {"GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(root), "PATH": "/usr/bin:/bin"}
    for command in (
        ["git", "init", "-q", str(work)],
        ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"],
        ["git", "clone", "-q", "--bare", str(work), str(root / "repo.git")],
        ["git", "-C", str(root / "repo.git"), "config", "http.receivepack", "true"],
    ):
        subprocess.run(command, check=True, env=env)

    server = ThreadingHTTPServer((HOST, 0), partial(_Site, directory=str(root)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST, "localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    with PackageIndex(greeting_wheel()) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA, site: int, index: PackageIndex
) -> Iterator[tuple[Home, str]]:
    directory: Path = tmp_path_factory.mktemp("tools")
    home = make_home(directory)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    (directory / "token").write_text("a-token-that-is-real\n")
    hosts = [f"{HOST}:{site}", f"{HOST}:{index.port}"]
    rules = [
        {"id": "commands", "tools": ["execute"], "effect": "allow"},
        # The certificate authority is elsewhere in the workspace, and can be read all the same.
        {"id": "src", "tools": ["read", "write"], "paths": ["/workspace/src/**", "/tmp/**"], "effect": "allow"},
        {"id": "hosts", "tools": ["connect"], "hosts": hosts, "effect": "allow"},
    ]
    for name, found in (("default", rules), ("operator", rules[2:])):
        document: dict[str, object] = {"version": 1, "rules": [{**rule, "reason": "A test."} for rule in found]}
        if name == "default":
            document |= {"enforcement": "kernel", "sandbox": {"home": "read_only"}}
        (directory / "policies" / f"{name}.yaml").write_text(json.dumps(document))
    credential = {"name": "site", "env": "SITE_TOKEN", "hosts": [f"{HOST}:{site}"], "secret": {"file": "token"}}
    home.configure(
        operator_policy="policies/operator.yaml",
        network={"ca_file": "ca.pem"},
        tenants={"default": {"policy": "policies/default.yaml", "credentials": [credential]}},
    )
    with served(home) as gateway:
        yield home, gateway.address


@pytest.fixture
async def client(gateway: tuple[Home, str]) -> AsyncIterator[Client]:
    home, address = gateway
    async with Client(address, home.key) as made:
        yield made


PYTHON = {
    "urllib": "import urllib.request as r; print(r.urlopen('{site}/hello.txt').read().decode())",
    "requests": "from pip._vendor import requests; print(requests.get('{site}/hello.txt').text)",
}
# A push of more than a mebibyte is sent in chunks.
PUSH = (
    "git clone -q {{site}}/repo.git {branch} && cd {branch} && head -c {size} /dev/urandom > data && git add data && "
    "git -c user.name=a -c user.email=a@b commit -qm {branch} && git push -q origin HEAD:{branch} && git ls-remote"
)
# The test's servers are at an address that NO_PROXY names, as servers of the sandbox itself are.
THROUGH = "unset NO_PROXY no_proxy; cd src; "


@pytest.mark.parametrize(
    "command, expected",
    [
        ("curl -sS {site}/hello.txt", "hello"),
        *((f'python3 -c "{code}"', "hello") for code in PYTHON.values()),
        ("git clone -q {site}/repo.git cloned && git -C cloned log --format=%s", "x"),
        (PUSH.format(branch="small", size=1), "refs/heads/small"),
        (PUSH.format(branch="large", size=3_000_000), "refs/heads/large"),
        ("pip install -q --target p --index-url {index} airlock-greeting && ls p", "airlock_greeting.py"),
        ("uv pip install -q --target u --index-url {index} airlock-greeting && ls u", "airlock_greeting.py"),
    ],
)
async def test_it_works(client: Client, site: int, index: PackageIndex, command: str, expected: str) -> None:
    await client.write_file("tools", "/workspace/src/.keep", b"")
    line = THROUGH + command.format(site=f"https://{HOST}:{site}", index=index.url)
    done = await client.call_tool("execute", {"command": line, "timeout_s": 100}, thread="tools")
    assert done.exit_code == 0, (done.content, done.note)
    assert expected in done.content


async def test_no_other_way_leads_out(client: Client, site: int) -> None:
    code = f"""
import socket
for family, kind, where in (
    (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 443)),
    (socket.AF_INET, socket.SOCK_STREAM, ("172.17.0.1", {site})),
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700::1111", 443)),
    (socket.AF_INET, socket.SOCK_RAW, ("1.1.1.1", 0)),
):
    try:
        tried = socket.socket(family, kind)
        tried.settimeout(2)
        tried.connect(where)
        tried.send(b"x")
        print("REACHED", where)
    except OSError as error:
        print("no", error.errno)
try:
    print("RESOLVED", socket.getaddrinfo("example.com", 80))
except OSError:
    print("no name")
"""
    await client.write_file("tools", "/workspace/src/probe.py", code.encode())
    done = await client.call_tool("execute", {"command": "python3 src/probe.py", "timeout_s": 60}, thread="tools")
    assert done.content.count("no ") == 7, done.content
    assert "REACHED" not in done.content
    assert "RESOLVED" not in done.content
