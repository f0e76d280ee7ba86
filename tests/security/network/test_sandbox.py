"""Attacks by tool code itself: a real gateway, real daemons, raw sockets to the proxy port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from airlock.audit import AuditQuery
from gateway.client import Client, ToolResult
from tests.gateway_process import Home, Served, make_home, served
from tests.security.network.loopback_door import WAIT_S, echo_bytes
from tests.unit.gateway.network.relayed import Handler, Server, saying

NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
MIB = 1024 * 1024
RULES = """\
version: 1
enforcement: kernel
network: {connections: 300, connections_per_minute: 100000}
rules:
  - {id: files, tools: [read, write], paths: [/**], effect: allow, reason: Any file.}
  - {id: commands, tools: [execute], effect: allow, reason: Anything runs.}
"""
SITE = "  - {id: site, tools: [connect], hosts: [localhost], effect: allow, reason: The tests' own servers.}\n"
OTHER = "  - {id: other, tools: [connect], hosts: [elsewhere.test], effect: allow, reason: Another host.}\n"
OPERATOR = """\
version: 1
rules:
  - {id: loopback, tools: [connect], hosts: [127.0.0.0/8], effect: allow, reason: The tests' own servers.}
"""
NO_OPERATOR = "version: 1\nrules: []\n"
TOOLS = r"""
import os, socket, struct, sys, time
NAMES = "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy grpc_proxy "
NAMES += "NODE_USE_ENV_PROXY"
def proxy():
    return socket.create_connection(("127.0.0.1", int(os.environ["HTTP_PROXY"].rsplit(":", 1)[1])), 30)
def rest(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data
def tunnel(host, port):
    s = proxy()
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head and (byte := s.recv(1)):
        head += byte
    return s, head
def ask(data):
    s = proxy()
    s.sendall(data)
    return rest(s)
"""


@dataclass(frozen=True)
class World:
    home: Home
    gateway: Served
    keys: dict[str, str]

    @property
    def address(self) -> str:
        return self.gateway.address

    def forget_peak(self) -> int:
        """Have `peak_bytes` begin with the memory that the gateway uses now, and return that."""
        Path(f"/proc/{self.gateway.process.pid}/clear_refs").write_text("5", encoding="ascii")
        return self.peak_bytes

    @property
    def peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.gateway.process.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def made(directory: Path) -> tuple[Home, dict[str, str]]:
    home = make_home(directory)
    home.configure(sandbox={"engine": "memory"}, operator_policy="policies/operator.yaml")
    (directory / "policies" / "default.yaml").write_text(RULES + SITE)
    (directory / "policies" / "operator.yaml").write_text(OPERATOR)
    keys = {
        "default": home.key,
        "other": home.add_tenant("other", RULES + OTHER),
        "operator": home.make_key("", "operate"),
        "auditor": home.make_key("default", "audit"),
    }
    return home, keys


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, keys = made(tmp_path_factory.mktemp("network"))
    with served(home, NO_DOCKER) as gateway:
        yield World(home, gateway, keys)


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    async with Client(world.address, world.keys["default"]) as made_:
        yield made_


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[Server]:
    server = Server(handle)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server


async def run(client: Client, script: str, thread: str = "t", timeout_s: int = 60) -> ToolResult:
    """Run a script in the sandbox; it prints what the test wants to know."""
    command = f"python3 - <<'EOF_'\n{TOOLS}\n{script}\nEOF_"
    return await client.call_tool("execute", {"command": command, "timeout_s": timeout_s}, thread=thread)


async def test_the_variables_are_there_and_all_three_ways_work(client: Client) -> None:
    async with serving(echo_bytes) as server:
        done = await run(
            client,
            f"""
url = os.environ["HTTP_PROXY"]
assert all(os.environ[name] == url for name in NAMES.split() if "no_" not in name.lower() and "NODE" not in name)
assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "localhost,127.0.0.1,::1"
assert os.environ["NODE_USE_ENV_PROXY"] == "1"
s, head = tunnel("localhost", {server.port})
assert head.startswith(b"HTTP/1.1 200"), head
s.sendall(b"\\0ping"); s.shutdown(socket.SHUT_WR); assert rest(s) == b"\\0ping"
s = proxy()
s.sendall(b"\\5\\1\\0\\5\\1\\0\\3\\x09localhost" + struct.pack(">H", {server.port}) + b"")
assert s.recv(2) == b"\\5\\0"
assert s.recv(10)[:2] == b"\\5\\0"
s.sendall(b"\\0ping"); s.shutdown(socket.SHUT_WR); assert rest(s) == b"\\0ping"
print("done")
""",
        )
    assert (done.exit_code, done.content, done.note) == (0, "done\n", ""), done


async def test_a_refusal_is_json_for_the_client_and_a_note_for_the_model(client: Client) -> None:
    done = await run(
        client,
        r"""
for first in (b"CONNECT no.test:443 HTTP/1.1\r\n\r\n" + bytes(300_000),
              b"GET http://no.test:443/ HTTP/1.1\r\nHost: no.test:443\r\nConnection: close\r\n\r\n"):
    head, _, body = ask(first).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n"), head
    assert b"Content-Length: %d" % len(body) in head
    print(body.decode().strip())
print(ask(b"\5\1\0\5\1\0\3\7no.test\1\xbb").hex())
""",
    )
    first, second, socks = done.content.splitlines()
    assert set(json.loads(first)) == {"error", "rule", "reason", "host", "port", "how_to_allow"}
    assert json.loads(first) | {"reason": ""} == json.loads(second) | {"reason": ""}
    assert socks.startswith("0500" + "0502")
    assert "network refused: no.test:443 (rule default-deny): no rule of the policy allows connect" in done.note
    assert (await run(client, "print('nothing')")).note == ""


async def test_another_tenant_s_sandbox_has_its_own_port_and_its_own_rules(world: World, client: Client) -> None:
    async with serving(echo_bytes) as server, Client(world.address, world.keys["other"]) as other:
        script = f"s, head = tunnel('localhost', {server.port}); print(os.environ['HTTP_PROXY'], head[9:12].decode())"
        ours, theirs = await asyncio.gather(run(client, script), run(other, script))
        (port, said), (other_port, other_said) = ours.content.split(), theirs.content.split()
    assert (said, other_said) == ("200", "403")
    assert port != other_port
    assert server.connections == 1
    async with Client(world.address, world.keys["auditor"]) as auditor:
        records = await auditor.audit(AuditQuery(kinds=("connection",)))
    assert not [one for one in records if one.rule == "other" or one.tenant != "default"]


async def test_without_a_rule_that_allows_to_connect_there_is_neither_a_variable_nor_a_port(world: World) -> None:
    async with (
        Client(world.address, world.keys["operator"]) as operator,
        Client(world.address, world.keys["other"]) as own,
    ):
        before = await run(own, "print(os.environ['HTTP_PROXY'].rsplit(':', 1)[1])", "door")
        port = int(before.content)
        await operator.apply_policy("other", RULES)
        await operator.apply_policy("", NO_OPERATOR)
        try:
            script = f"""
print([name for name in NAMES.split() if name in os.environ])
try:
    socket.create_connection(("127.0.0.1", {port}), 5)
    print("open")
except ConnectionRefusedError:
    print("closed")
"""
            for thread in ("door", "fresh"):
                assert (await run(own, script, thread)).content == "[]\nclosed\n"
        finally:
            await operator.apply_policy("", OPERATOR)
            await operator.apply_policy("other", RULES + OTHER)
        assert (await run(own, "print(os.environ['HTTP_PROXY'])", "door")).content.startswith("http://127.0.0.1:")


async def test_a_policy_in_the_midst_ends_the_tunnels_that_it_denies(world: World, client: Client) -> None:
    async with serving(echo_bytes) as server, Client(world.address, world.keys["operator"]) as operator:
        script = f"""
s, head = tunnel("localhost", {server.port})
s.sendall(b"\\0here")
assert s.recv(5) == b"\\0here"
open("ready", "w").close()
print("ended", rest(s))
"""
        running = asyncio.create_task(run(client, script, "midst"))
        async with asyncio.timeout(WAIT_S):
            while not server.connections:
                await asyncio.sleep(0.01)
        await operator.apply_policy("default", RULES + SITE + OTHER)
        await asyncio.sleep(1.2)
        assert not running.done()
        await operator.apply_policy("default", RULES)
        try:
            done = await running
        finally:
            await operator.apply_policy("default", RULES + SITE)
        assert done.content == "ended b''\n"
        async with Client(world.address, world.keys["auditor"]) as auditor:
            (record,) = await auditor.audit(AuditQuery(kinds=("connection",), thread="midst"))
        assert (record.verdict, record.rule, record.outcome) == ("allow", "site", "policy_changed")


async def test_a_sandbox_that_was_stopped_connects_again(client: Client) -> None:
    async with serving(echo_bytes) as server:
        script = f"s, head = tunnel('localhost', {server.port}); print(head[9:12].decode())"
        assert (await run(client, script, "stopped")).content == "200\n"
        for _ in range(2):
            await client.stop_sandbox("stopped")
            assert (await run(client, script, "stopped")).content == "200\n"
        await client.stop_sandbox("stopped")
        await client.resume_sandbox("stopped")
        assert (await run(client, script, "stopped")).content == "200\n"


async def test_where_a_redirect_leads_is_judged_when_the_client_follows_it(client: Client) -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://no.test/\r\nContent-Length: 0\r\n\r\n"
    async with serving(saying(moved)) as server:
        command = f"unset NO_PROXY no_proxy; curl -sSL -w '%{{http_code}}' http://localhost:{server.port}/"
        done = await client.call_tool("execute", {"command": command}, thread="t")
    assert done.content.rstrip().endswith("403")
    assert "no.test:80" in done.note


@pytest.mark.parametrize("mebibytes", [100, pytest.param(1024, marks=pytest.mark.full)])
async def test_large_transfers_need_constant_memory_and_their_records_are_exact(
    world: World, client: Client, mebibytes: int
) -> None:
    thread = f"large-{mebibytes}"
    counted: list[tuple[int, int]] = []

    async def swallow_and_pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up = 0
        while data := await reader.read(MIB):
            up += len(data)
        for _ in range(mebibytes):
            writer.write(bytes(MIB))
            await writer.drain()
        counted.append((up, mebibytes * MIB))

    before = world.forget_peak()
    async with serving(swallow_and_pour) as server:
        done = await run(
            client,
            f"""
s, head = tunnel("localhost", {server.port})
for _ in range({mebibytes}):
    s.sendall(bytes({MIB}))
s.shutdown(socket.SHUT_WR)
time.sleep(0.3)  # a slow reader
size = 0
while piece := s.recv(1 << 20):
    size += len(piece)
print(size)
""",
            thread,
            timeout_s=300,
        )
    assert done.content == f"{mebibytes * MIB}\n"
    assert world.peak_bytes - before <= 32 * MIB
    async with Client(world.address, world.keys["auditor"]) as auditor:
        (record,) = await auditor.audit(AuditQuery(kinds=("connection",), thread=thread))
    details = json.loads(record.details)
    assert [(details["bytes_up"], details["bytes_down"])] == counted


async def test_two_hundred_tunnels_work_and_more_connections_than_that_cost_no_call(client: Client) -> None:
    async with serving(echo_bytes) as server:
        script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
tunnels = [tunnel("localhost", {server.port})[0] for _ in range(200)]
for number, s in enumerate(tunnels):
    s.sendall(b"\\0%3d" % number)
assert [s.recv(4) for s in tunnels] == [b"\\0%3d" % number for number in range(200)]
silent = []
for _ in range(400):
    s = socket.socket(); s.setblocking(False); silent.append(s)
    s.connect_ex(("127.0.0.1", int(os.environ["HTTP_PROXY"].rsplit(":", 1)[1])))
time.sleep(0.3)
open("many", "w").close()
while not os.path.exists("seen"):
    time.sleep(0.02)
print("done")
"""
        running = asyncio.create_task(run(client, script, "many"))
        async with asyncio.timeout(60):
            while "many" not in (await client.call_tool("execute", {"command": "ls"}, thread="many")).content.split():
                assert not running.done(), running.result()
        for _ in range(20):  # calls of the same sandbox
            assert (await client.call_tool("execute", {"command": "true"}, thread="many")).exit_code == 0
        await client.call_tool("execute", {"command": "touch seen"}, thread="many")
        done = await running
    assert done.content == "done\n", done
    assert server.connections == 200


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.full)])
async def test_a_gateway_that_ends_in_the_midst_ends_its_tunnels_and_the_next_one_works(
    tmp_path: Path, end: str
) -> None:
    home, keys = made(tmp_path)
    async with serving(echo_bytes) as server:
        script = (
            f"s, head = tunnel('localhost', {server.port}); s.sendall(b'\\0x'); print(head[9:12].decode(), rest(s))"
        )
        with served(home, NO_DOCKER) as gateway:
            async with Client(gateway.address, keys["default"]) as client:
                running = asyncio.create_task(run(client, script))
                async with asyncio.timeout(WAIT_S):
                    while not server.connections:
                        await asyncio.sleep(0.01)
                if end == "kill":
                    await asyncio.to_thread(gateway.kill)
                else:
                    gateway.process.terminate()
                    await asyncio.to_thread(gateway.process.wait, 60)
                await asyncio.wait_for(server.closed.wait(), WAIT_S)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        with served(home, NO_DOCKER) as gateway:
            async with Client(gateway.address, keys["default"]) as client:
                done = await run(client, script.replace("rest(s)", "s.recv(2)"))
                assert done.content == "200 b'\\x00x'\n", done
