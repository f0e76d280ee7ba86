"""The network of a sandbox beside that of a container on a Docker bridge: `python -m tests.bench.network`.

Both run the same client against the same server, a process on the host that listens at the bridge's gateway address:
the sandbox through its door, the container at once. Samples are taken in turn; only ratios and differences within a run
count. The bridge is a network of the bench's own. Needs a Docker engine with the images.

    tunnel    CONNECT, with the client's own TLS inside         absolute    plain HTTP in absolute form
    opened    CONNECT, with TLS that the gateway opens, for a rule about methods
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme
from rich.console import Console
from rich.table import Table

from gateway.client import Client
from tests.bench.daemon_size import daemon_memory, memory_of
from tests.bench.side_by_side import Sample, medians_s
from tests.docker_state import containers_of
from tests.gateway_process import Home, make_home, served

_IMAGE = "airlock-sandbox"
_CLIENT = Path(__file__).with_name("network_client.py")
_SERVER = Path(__file__).with_name("network_server.py")
_THREAD = "bench"
_ROUNDS, _REQUESTS = 20, 10
_DOWNLOADS, _DOWNLOAD_BYTES = 5, 256 * 1024 * 1024
_IDLE = 100
_CALLS, _CALLS_WARMUP = 100, 10
_KIB_PER_MIB = 1024


@dataclass(frozen=True)
class _Way:
    """One kind of connection: the port it goes to, whether it has TLS, and the authority that the client trusts."""

    port: int
    how: str = "tls"
    ca: str = "ca.pem"

    def arguments(self, host: str) -> str:
        return f"{host}:{self.port} {self.how} '{self.ca}'"


@dataclass(frozen=True)
class _Bench:
    airlock: Client
    host: str
    ways: Mapping[str, _Way]
    container: str
    """The one on the bridge."""

    async def inside(self, what: str, way: str, number: int) -> str:
        """Run the client in the sandbox and return what it prints."""
        command = f"python3 client.py {what} {self.ways[way].arguments(self.host)} {number}"
        done = await self.airlock.call_tool("execute", {"command": command, "timeout_s": 300}, thread=_THREAD)
        if done.exit_code != 0:
            raise RuntimeError(f"{command}: {done.outcome} {done.exit_code}\n{done.content}\n{done.note}")
        return done.content

    async def beside(self, what: str, way: str, number: int) -> str:
        """Run it in the container. TLS is the server's own there."""
        found = self.ways[way]
        arguments = _Way(found.port, found.how, "/bench/ca.pem").arguments(self.host)
        command = f"docker exec {self.container} python3 /bench/client.py {what} {arguments} {number}"
        return await asyncio.to_thread(_output, "sh", "-c", command)


@contextlib.contextmanager
def _bridge() -> Iterator[tuple[str, str]]:
    """Have a network of one's own; yields its name and the host's address on it."""
    name = f"airlock-bench-{secrets.token_hex(4)}"
    _output("docker", "network", "create", "--label", "airlock.bench=network", name)
    try:
        config = json.loads(_output("docker", "network", "inspect", "--format", "{{json .IPAM.Config}}", name))
        yield name, config[0]["Gateway"]
    finally:
        _output("docker", "network", "rm", name)


@contextlib.contextmanager
def _peer(network: str, directory: Path) -> Iterator[str]:
    """Have a container on the bridge, with the sandbox's image and as much of the processors."""
    container = _output(
        "docker", "run", "--detach", "--rm", "--init", "--label", "airlock.bench=network", "--network", network,
        "--cpus", "1", "--volume", f"{directory}:/bench:ro", "--entrypoint", "sleep", _IMAGE, "infinity",
    )  # fmt: skip
    try:
        yield container
    finally:
        _output("docker", "kill", container)
        subprocess.run(["docker", "wait", container], capture_output=True, check=False)  # it is removed then


@contextlib.contextmanager
def _server(host: str, directory: Path) -> Iterator[list[int]]:
    """Have the server; yields its ports: a plain one, one whose TLS stays closed, one whose TLS is opened."""
    authority, certificate = trustme.CA(), directory / "server.pem"
    authority.cert_pem.write_to_path(directory / "ca.pem")
    authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(certificate)
    command = [sys.executable, str(_SERVER), host, str(certificate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("the server has no pipes")
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def _configured(home: Home, directory: Path, host: str, ports: list[int]) -> str:
    """Let the default tenant connect; return the key of another, which may not."""
    quiet_key = home.add_tenant("quiet")
    rules: list[dict[str, object]] = [
        {"id": "commands", "tools": ["execute"], "effect": "allow"},
        {"id": "files", "tools": ["read", "write"], "paths": ["/workspace/**"], "effect": "allow"},
    ]
    named = {"id": "server", "tools": ["connect"], "hosts": [f"{host}:{port}" for port in ports], "effect": "allow"}
    closed = {**named, "hosts": [f"{host}:{port}" for port in ports[:2]]}
    opened = {**named, "id": "opened", "hosts": [f"{host}:{ports[2]}"], "methods": ["GET"]}
    limits = {"connections": 2 * _IDLE, "connections_per_minute": 1_000_000}
    for name, found in (("default", [*rules, closed, opened]), ("operator", [named])):
        document = {"version": 1, "rules": [{**rule, "reason": "A bench."} for rule in found]}
        if name == "default":
            document["network"] = limits
        (home.config.parent / "policies" / f"{name}.yaml").write_text(json.dumps(document))
    home.configure(operator_policy="policies/operator.yaml", network={"ca_file": str(directory / "ca.pem")})
    return quiet_key


async def tables() -> list[Table]:
    """Measure and return the tables."""
    async with contextlib.AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airlock-bench-")))
        root.chmod(0o755)
        (shared := root / "shared").mkdir()
        (shared / "client.py").write_bytes(_CLIENT.read_bytes())
        network, host = stack.enter_context(_bridge())
        container = stack.enter_context(_peer(network, shared))
        ports = stack.enter_context(_server(host, shared))
        ways = {
            "tunnel": _Way(ports[1]),
            "absolute": _Way(ports[0], "http"),
            "opened": _Way(ports[2], ca="$SSL_CERT_FILE"),
        }
        home = make_home(root / "home")
        quiet_key = _configured(home, shared, host, ports)
        gateway = stack.enter_context(served(home))
        airlock = await stack.enter_async_context(Client(gateway.address, home.key))
        quiet = await stack.enter_async_context(Client(gateway.address, quiet_key))
        for name in ("client.py", "ca.pem"):
            await airlock.write_file(_THREAD, f"/workspace/{name}", (shared / name).read_bytes())
        (sandbox,) = containers_of(home.instance)
        bench = _Bench(airlock, host, ways, container)
        made = [_requests(await _latencies(bench)), _downloads(await _rates(bench))]
        made.append(await _idle_table(bench, gateway.process.pid, sandbox))
        return [*made, await _calls_table(airlock, quiet)]


async def _in_turn(bench: _Bench, what: str, rounds: int, number: int) -> dict[tuple[str, str], list[float]]:
    """Return a figure a round for each way, inside and beside: the median of what the client printed."""
    taken: dict[tuple[str, str], list[float]] = {}
    for round_ in range(1 + rounds):
        for way in bench.ways:
            sides = [("inside", bench.inside), ("beside", bench.beside)]
            for side, run in sides if round_ % 2 else reversed(sides):
                printed = json.loads(await run(what, way, number))
                if round_:
                    figure = statistics.median(printed) if isinstance(printed, list) else float(printed)
                    taken.setdefault((way, side), []).append(figure)
    return taken


async def _latencies(bench: _Bench) -> dict[tuple[str, str], list[float]]:
    return await _in_turn(bench, "times", _ROUNDS, _REQUESTS)


async def _rates(bench: _Bench) -> dict[tuple[str, str], list[float]]:
    return await _in_turn(bench, "rate", _DOWNLOADS, _DOWNLOAD_BYTES)


def _requests(taken_ms: Mapping[tuple[str, str], list[float]]) -> Table:
    title = "a small request on a new connection, p50 ms"
    table = Table("", "through the door", "bridge", "more", "goal", "to tunnel", "goal", title=title, box=None)
    for way in ("tunnel", "absolute", "opened"):
        inside, beside = taken_ms[way, "inside"], taken_ms[way, "beside"]
        more = statistics.median(one - other for one, other in zip(inside, beside, strict=True))
        ratio = statistics.median(
            one / tunnel for one, tunnel in zip(inside, taken_ms["tunnel", "inside"], strict=True)
        )
        opened = way == "opened"
        table.add_row(
            way,
            f"{statistics.median(inside):.2f}",
            f"{statistics.median(beside):.2f}",
            f"+ {more:.2f}",
            "" if opened else "<= 3",
            f"{ratio:.2f}",
            "<= 2" if opened else "",
        )
    return table


def _downloads(rates: Mapping[tuple[str, str], list[float]]) -> Table:
    title = f"{_DOWNLOAD_BYTES // 2**20} MiB down, MiB/s"
    table = Table("", "through the door", "bridge", "ratio", "goal", title=title, box=None)
    for way in ("tunnel", "absolute", "opened"):
        inside, beside = rates[way, "inside"], rates[way, "beside"]
        ratio = statistics.median(one / other for one, other in zip(inside, beside, strict=True))
        p50s = [f"{statistics.median(side):,.0f}" for side in (inside, beside)]
        table.add_row(way, *p50s, f"{ratio:.2f}", "" if way == "opened" else ">= 0.60")
    return table


@contextlib.asynccontextmanager
async def _held(bench: _Bench) -> AsyncIterator[None]:
    """Have idle tunnels until the block ends."""
    await bench.airlock.call_tool("execute", {"command": "rm -f held stop"}, thread=_THREAD)
    holding = asyncio.create_task(bench.inside("hold", "tunnel", _IDLE))
    try:
        waiting = "for _ in $(seq 300); do test -s held && exit 0; sleep 0.1; done; exit 1"
        done = await bench.airlock.call_tool("execute", {"command": waiting, "timeout_s": 60}, thread=_THREAD)
        if done.exit_code != 0 or holding.done():
            raise RuntimeError(f"the tunnels did not come up: {await holding if holding.done() else done.content}")
        yield
    finally:
        await bench.airlock.call_tool("execute", {"command": "touch stop"}, thread=_THREAD)
        await holding


async def _idle_table(bench: _Bench, gateway_pid: int, container: str) -> Table:
    def uss_mib() -> dict[str, float]:
        server = daemon_memory(container)["server"].uss
        return {name: kib / _KIB_PER_MIB for name, kib in (("gateway", memory_of(gateway_pid).uss), ("daemon", server))}

    before = uss_mib()
    async with _held(bench):
        first = uss_mib()
    after = uss_mib()
    async with _held(bench):
        again = uss_mib()
    title = f"{_IDLE} idle tunnels, USS in MiB"
    table = Table("", "before", "with them", "without", "again", "more", "goal", title=title, box=None)
    for name, goal in (("gateway", "<= 8"), ("daemon", "")):
        figures = [one[name] for one in (before, first, after, again)]
        more = max(first[name], again[name]) - before[name]
        table.add_row(name, *(f"{mib:.1f}" for mib in figures), f"+ {more:.1f}", goal)
    return table


async def _calls_table(airlock: Client, quiet: Client) -> Table:
    def sample(client: Client) -> tuple[Sample, int]:
        async def call() -> None:
            done = await client.call_tool("execute", {"command": "true"}, thread=_THREAD)
            assert done.exit_code == 0, done

        return call, 1

    without, with_ = "no rule about connections", "with rules"
    rows = {without: sample(quiet), with_: sample(airlock)}
    p50_s = await medians_s(rows, samples=_CALLS, warmup=_CALLS_WARMUP)
    table = Table("", "p50 ms", "ratio", title="execute true", box=None)
    for name, value_s in p50_s.items():
        table.add_row(name, f"{value_s * 1000:.2f}", f"{value_s / p50_s[without]:.2f}")
    return table


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout.strip()


async def _main() -> None:
    console = Console(width=110)
    for table in await tables():
        console.print(table)
        console.print()


if __name__ == "__main__":
    asyncio.run(_main())
