"""The door of a container: tool code has loopback and the proxy on it, and no other way out, whatever it tries."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from gateway.client import Client
from tests.docker_state import containers_of
from tests.gateway_process import Home, make_home, served
from tests.security.network.loopback_door import echo_bytes
from tests.security.network.test_sandbox import run, serving

POLICY = """\
version: 1
sandbox: {{runtime: {runtime}}}
rules:
  - {{id: files, tools: [read, write], paths: [/workspace/**], effect: allow, reason: Any file.}}
  - {{id: commands, tools: [execute], effect: allow, reason: Anything runs.}}
"""
SITE = "  - {id: site, tools: [connect], hosts: [localhost], effect: allow, reason: The tests' own servers.}\n"
OPERATOR = """\
version: 1
rules:
  - {id: loopback, tools: [connect], hosts: [127.0.0.0/8], effect: allow, reason: The tests' own servers.}
"""
ATTEMPTS = r"""
import json
for name in list(os.environ):
    if name in NAMES.split():
        del os.environ[name]
found = {}
def attempt(what, action):
    try:
        found[what] = repr(action())
    except (OSError, ValueError):
        found[what] = None
def udp(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.sendto(b"\0" * 20, address)
        return s.recv(100)
def tcp(host, port):
    return socket.create_connection((host, port), 2)
PUBLIC = ("1.1.1.1", "169.254.169.254", "10.0.0.1", "172.17.0.1", "100.100.100.200", "2606:4700:4700::1111")
for host in (*PUBLIC, *HOSTS):
    attempt(f"tcp {host}", lambda: tcp(host, PORT))
attempt("the host's loopback", lambda: tcp("127.0.0.1", PORT))
attempt("the host's loopback by IPv6", lambda: tcp("::1", PORT))
attempt("link-local", lambda: tcp("fe80::1%lo", PORT))
attempt("udp", lambda: udp(("8.8.8.8", 53)))
attempt("udp by IPv6", lambda: udp(("2001:4860:4860::8888", 53), socket.AF_INET6))
attempt("broadcast", lambda: udp(("255.255.255.255", 67)))
attempt("multicast", lambda: udp(("224.0.0.251", 5353)))
attempt("icmp", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("DNS", lambda: socket.getaddrinfo("example.com", 80))
attempt("DNS of the host", lambda: socket.getaddrinfo("host.docker.internal", 80))
for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/ld.so.preload"):
    attempt(path, lambda: open(path, "a"))
print(json.dumps([what for what, how in found.items() if how not in (None, "None")]))
print([line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]])
"""


def runtimes() -> str:
    return subprocess.run(
        ["docker", "info", "--format", "{{json .Runtimes}}"], capture_output=True, text=True, check=False
    ).stdout


@dataclass(frozen=True)
class Network:
    home: Home
    address: str
    operator_key: str


@pytest.fixture(scope="module", params=["runc", "runsc"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    if request.param == "runsc" and "runsc" not in runtimes():
        pytest.skip("this engine has no runtime runsc: docs/deployment.md says how to register it")
    home = make_home(tmp_path_factory.mktemp(request.param))
    home.configure(operator_policy="policies/operator.yaml")
    policies = home.config.parent / "policies"
    (policies / "default.yaml").write_text(POLICY.format(runtime=request.param) + SITE)
    (policies / "operator.yaml").write_text(OPERATOR)
    key = home.make_key("", "operate")
    with served(home) as gateway:
        yield Network(home, gateway.address, key)
    assert containers_of(home.instance) == []


@pytest.fixture
async def client(network: Network) -> AsyncIterator[Client]:
    async with Client(network.address, network.home.key) as made:
        yield made


def reach(port: int) -> str:
    return f"""
s, head = tunnel("localhost", {port})
s.sendall(b"\\0ping"); s.shutdown(socket.SHUT_WR)
print(head[9:12].decode(), rest(s))
"""


REACHED = "200 b'\\x00ping'\n"


async def test_nothing_is_reached_but_by_the_proxy(client: Client) -> None:
    addresses = {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)}
    async with serving(echo_bytes) as server, serving(echo_bytes) as other:
        everywhere = await asyncio.start_server(other.serve, "0.0.0.0", 0)
        port = everywhere.sockets[0].getsockname()[1]
        async with everywhere:
            settings = f"HOSTS, PORT = {sorted(addresses)!r}, {port}"
            done = await run(client, f"{settings}\n{ATTEMPTS}")
        assert done.exit_code == 0, done
        got_through, interfaces = done.content.splitlines()
        assert (json.loads(got_through), interfaces) == ([], "['lo']")
        assert other.connections == 0
        assert (await run(client, reach(server.port))).content == REACHED


async def test_a_server_of_the_sandbox_is_reached_directly_and_leads_no_further(client: Client) -> None:
    """Tool code that runs a proxy of its own has gained nothing."""
    async with serving(echo_bytes) as server:
        done = await run(
            client,
            f"""
import threading
listener = socket.create_server(("127.0.0.1", 9000))
def relay():
    one, _ = listener.accept()
    try:
        socket.create_connection(("127.0.0.1", {server.port}), 2)
        one.sendall(b"through")
    except OSError:
        one.sendall(b"no way")
    one.close()
threading.Thread(target=relay).start()
print(rest(socket.create_connection(("127.0.0.1", 9000))).decode())
""",
        )
        assert done.content == "no way\n"
        assert server.connections == 0


async def test_curl_finds_the_proxy_by_itself_and_gets_the_reason(client: Client) -> None:
    done = await client.call_tool("execute", {"command": "curl -sS -m 20 http://example.com/"}, thread="t")
    assert json.loads(done.content)["error"] == "policy_denied"
    assert "example.com:80" in done.note
    done = await client.call_tool("execute", {"command": "curl -sS -m 20 https://example.com/"}, thread="t")
    assert (done.exit_code, "403" in done.content + done.note) == (56, True), done


async def test_it_works_after_a_stop_and_a_resume_and_in_a_fork(client: Client) -> None:
    async with serving(echo_bytes) as server:
        assert (await run(client, reach(server.port), "stopped")).content == REACHED
        await client.stop_sandbox("stopped")
        assert (await run(client, reach(server.port), "stopped")).content == REACHED
        await client.stop_sandbox("stopped")
        await client.resume_sandbox("stopped")
        assert (await run(client, reach(server.port), "stopped")).content == REACHED
        await client.fork_thread("stopped", "fork")
        both = await asyncio.gather(*(run(client, reach(server.port), name) for name in ("stopped", "fork")))
        assert [one.content for one in both] == [REACHED] * 2


async def test_two_sandboxes_have_a_port_each_and_neither_reaches_the_other_s_servers(client: Client) -> None:
    listening = """
s = socket.create_server(("0.0.0.0", 9100)); s.settimeout(3)
open("ready", "w").close()
try:
    s.accept(); print("reached")
except TimeoutError:
    print("alone")
"""
    waiting = asyncio.create_task(run(client, listening, "one"))
    await asyncio.sleep(1)
    script = """
for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "::1"):
    try:
        socket.create_connection((host, 9100), 1)
        print("reached", host)
    except OSError:
        pass
print(ask(b"CONNECT one:9100 HTTP/1.1\\r\\n\\r\\n")[9:12].decode())
"""
    assert (await run(client, script, "two")).content == "403\n"
    assert (await waiting).content == "alone\n"


async def test_without_a_rule_there_is_no_port(network: Network, client: Client) -> None:
    port = int((await run(client, "print(os.environ['HTTP_PROXY'].rsplit(':', 1)[1])", "none")).content)
    text = (network.home.config.parent / "policies" / "default.yaml").read_text(encoding="utf-8")
    async with Client(network.address, network.operator_key) as operator:
        await operator.apply_policy("default", text.replace(SITE, ""))
        await operator.apply_policy("", "version: 1\nrules: []\n")
        try:
            script = f"""
print([name for name in NAMES.split() if name in os.environ], [
    port for port in (3128, {port}) if not socket.socket().connect_ex(("127.0.0.1", port))])
"""
            done = await run(client, script, "none")
            assert done.content == "[] []\n", (done.content, done.note)
        finally:
            await operator.apply_policy("", OPERATOR)
            await operator.apply_policy("default", text)
