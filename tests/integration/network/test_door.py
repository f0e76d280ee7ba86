"""What tool code reaches through the door, with a real gateway and real daemons; commands run on this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airlock.audit import AuditQuery
from gateway.client import Client
from tests.gateway_process import Home, make_home, served

NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


class Site(BaseHTTPRequestHandler):
    """Answers every GET with its path, and every POST with its body."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(f"you asked for {self.path}\n".encode())

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.server.seen.append((self.command, self.path))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def site() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


TENANT = """\
version: 1
enforcement: kernel
rules:
  - {{id: all-files, tools: [read, write], paths: [/**], effect: allow, reason: Any file.}}
  - {{id: commands, tools: [execute], effect: allow, reason: Anything runs.}}
  - {{id: site, tools: [connect], hosts: ["localhost:{port}"], effect: allow, reason: The tests' own server.}}
  - {{id: asked, tools: [connect], hosts: ["127.0.0.1:{port}"], effect: ask, reason: An approver should know.}}
"""
READING = """\
version: 1
enforcement: reading
rules:
  - {{id: curl, tools: [execute], argv: [[curl]], effect: allow, reason: What it may reach is another rule's business.}}
  - {{id: site, tools: [connect], hosts: ["localhost:{port}"], effect: allow, reason: The tests' own server.}}
"""
OPERATOR = """\
version: 1
rules:
  - {{id: loopback, tools: [connect], hosts: ["127.0.0.1:{port}"], effect: allow, reason: The tests' own server.}}
"""


@dataclass(frozen=True)
class Network:
    home: Home
    address: str
    port: int
    reading_key: str  # of a tenant whose command lines are read

    @property
    def audit_key(self) -> str:
        return self.home.make_key("default", "audit")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, site: ThreadingHTTPServer) -> Iterator[Network]:
    directory: Path = tmp_path_factory.mktemp("network")
    home = make_home(directory)
    port = site.server_address[1]
    home.configure(sandbox={"engine": "memory"}, operator_policy="policies/operator.yaml")
    (directory / "policies" / "default.yaml").write_text(TENANT.format(port=port))
    (directory / "policies" / "operator.yaml").write_text(OPERATOR.format(port=port))
    reading_key = home.add_tenant("reading", READING.format(port=port))
    with served(home, NO_DOCKER) as gateway:
        yield Network(home, gateway.address, port, reading_key)


@pytest.fixture
async def client(network: Network) -> AsyncIterator[Client]:
    async with Client(network.address, network.home.key) as made:
        yield made


async def run(client: Client, command: str, thread: str = "t") -> tuple[int | None, str, str]:
    # Servers of the sandbox itself are reached directly, and here this machine is the sandbox.
    through = f"unset NO_PROXY no_proxy; {command}"
    done = await client.call_tool("execute", {"command": through, "timeout_s": 60}, thread=thread)
    return done.exit_code, done.content, done.note


@pytest.mark.parametrize(
    "command",
    [
        "curl -sS http://localhost:{port}/a",
        "curl -sS --proxytunnel http://localhost:{port}/a",
        "curl -sS --proxy socks5h://${{HTTP_PROXY#http://}} http://localhost:{port}/a",
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://localhost:{port}/a\").read().decode())'",
    ],
)
async def test_an_allowed_host_is_reached(client: Client, network: Network, command: str) -> None:
    code, said, note = await run(client, command.format(port=network.port))
    assert (code, said.strip()) == (0, "you asked for /a"), (said, note)


async def test_a_host_that_no_rule_allows_is_refused_with_its_reason(client: Client, network: Network) -> None:
    code, said, note = await run(client, f"curl -sS -w '%{{http_code}}' http://elsewhere.example:{network.port}/")
    body, status = json.loads(said[: said.rindex("}") + 1]), said[said.rindex("}") + 1 :].strip()
    assert (code, status) == (0, "403")
    assert {**body, "reason": ""} == {
        "error": "policy_denied",
        "rule": "default-deny",
        "reason": "",
        "host": "elsewhere.example",
        "port": network.port,
        "how_to_allow": body["how_to_allow"],
    }
    assert "elsewhere.example" in note


@pytest.mark.parametrize("named", ["elsewhere.example", '"${host:-elsewhere.example}"'])
async def test_a_host_in_a_line_that_may_run_is_refused_when_the_line_connects(network: Network, named: str) -> None:
    async with Client(network.address, network.reading_key) as client:
        code, said, note = await run(client, f"curl -sS http://{named}:{network.port}/")
        assert (code, json.loads(said)["rule"]) == (0, "default-deny")
        assert "elsewhere.example" in note
        code, said, note = await run(client, f"curl -sS http://localhost:{network.port}/a")
        assert (code, said.strip(), note) == (0, "you asked for /a", "")


async def test_each_connection_is_on_record(client: Client, network: Network) -> None:
    await run(client, f"curl -sS http://localhost:{network.port}/record", thread="recorded")
    await run(client, f"curl -sS http://no.example:{network.port}/", thread="recorded")
    async with Client(network.address, network.audit_key) as auditor:
        records = await auditor.audit(AuditQuery(kinds=("connection",), thread="recorded"))
    found = [(one.verdict, one.rule, one.outcome, json.loads(one.details)["host"]) for one in reversed(records)]
    assert found == [
        ("allow", "site", "completed", "localhost"),
        ("deny", "default-deny", "policy_denied", "no.example"),
    ]
    details = json.loads(records[-1].details)
    assert details["address"] == "127.0.0.1"
    assert details["bytes_down"] > len("you asked for /record")


async def test_a_connection_that_is_asked_about_waits_for_its_approver(client: Client, network: Network) -> None:
    async def approve() -> None:
        async with Client(network.address, network.home.make_key("default", "approve")) as approver:
            async for approval in approver.watch_approvals():
                if approval is not None and approval.tool == "connect":
                    assert "curl -sS" in approval.arguments["command"]
                    await approver.resolve_approval(approval.id, "once")
                    return

    approving = asyncio.create_task(approve())
    code, said, note = await run(client, f"curl -sS http://127.0.0.1:{network.port}/asked")
    assert (code, said.strip()) == (0, "you asked for /asked"), note
    async with asyncio.timeout(60):
        await approving
