"""Programs in a sandbox beside their peers on this host, in one run, as ratios: `python -m tests.bench.daemon_exec`.

    exec true             over the daemon's socket, no shell,       beside a bare asyncio subprocess on the host
                          from a plain socket and from the gateway's channel
    1 GiB of stdout       evicted, and streamed to this process     beside `docker exec ... head > /dev/null`
    100 x sleep 1         at once in one sandbox
    remaining             a second after a timeout                  beside `docker exec` whose client was killed

The samples of all rows are taken in turn, so that a machine whose speed drifts slows all of them alike.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandbox.client.channel import Channel
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.protocols import OutputStream, ProgramSpec
from sandbox.sandbox import Sandbox, SandboxLimits, SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.bench.side_by_side import PeakMemory, Sample, medians_s
from tests.docker_state import containers_of
from tests.security.daemon.daemon_container import Client

_GIB = 1024**3
_MIB = 1024**2
_RUNS = 20
# A plain child, one that is deaf to SIGTERM, one that left session and parents; each writes its name when it is up.
_THREE_CHILDREN = """
sleep 7771 &
sh -c 'trap "" TERM; sleep 7772 & wait; sleep 7772' &
(setsid sh -c 'sleep 7773 &' &)
sleep 7774
"""
_RULES = pb.FileRules(
    readable=["/workspace", "/tmp"],
    writable=["/workspace/src", "/tmp"],
    unreadable=["/workspace/secrets"],
    programs=["true", "git", "python3"],
    only_programs=True,
)
_COUNT_SURVIVORS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^777[123]$'"


@dataclass
class Bench:
    """A sandbox, two ways to its daemon, and its container's id."""

    sandbox: Sandbox
    channel: Channel
    client: Client
    container: str

    async def run(self, *argv: bytes, timeout_ms: int = 0) -> pb.ExecReply:
        """Run a program through the gateway's channel."""
        request = pb.Request(exec=pb.ExecRequest(argv=argv, timeout_ms=timeout_ms))
        return await self.channel.query(request, "exec", lambda reply: reply, timeout_s=60)


@asynccontextmanager
async def _sandbox(limits: SandboxLimits) -> AsyncIterator[Bench]:
    instance = f"bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        engine = DockerEngine(instance=instance, channel_root=Path(directory))
        try:
            sandbox = await engine.create(SandboxSpec("bench", "bench", "airlock-sandbox", limits=limits))
            channel = Channel(UnixAddress(Path(directory) / sandbox.id))
            await channel.connect()
            client = Client(Path(directory) / sandbox.id / SOCKET_NAME)
            (container,) = containers_of(instance)
            try:
                yield Bench(sandbox, channel, client, container)
            finally:
                client.close()
                channel.close()
                await engine.remove(sandbox.id)
        finally:
            await engine.remove_workspaces()
            await engine.close()


async def _docker_exec(container: str, *argv: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "docker", "exec", container, *argv, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise RuntimeError(f"docker exec {argv} failed")


async def _peer_runs(peer: Process, name: str) -> None:
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(f"{name} {_RUNS}\n".encode())
    assert await peer.stdout.readline() == b"done\n"


async def _exec_true(bench: Bench) -> Table:
    request = pb.ExecRequest(argv=[b"true"])

    # What stands beside a forbidden directory is granted one by one.
    crowd = b"mkdir -p secrets src && for i in $(seq 500); do echo > file$i; done"
    await bench.run(b"/bin/sh", b"-c", crowd)
    ruled = pb.ExecRequest(argv=[b"true"], file_rules=_RULES)

    async def daemon(request: pb.ExecRequest = request) -> None:
        reply = bench.client.call(exec=request).exec
        assert (reply.outcome, reply.exit_code) == (pb.OUTCOME_EXITED, 0), reply

    async def channel() -> None:
        reply = await bench.run(b"true")
        assert (reply.outcome, reply.exit_code) == (pb.OUTCOME_EXITED, 0), reply

    samples: dict[str, tuple[Sample, int]] = {
        "daemon": (daemon, _RUNS),
        "ruled": (partial(daemon, ruled), _RUNS),
        "channel": (channel, _RUNS),
    }
    peer = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.bare_subprocess",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        samples |= {name: (partial(_peer_runs, peer, name), 1) for name in ("bare", "piped")}
        p50_s = await medians_s(samples, samples=40, warmup=4)
    finally:
        peer.terminate()
        await peer.wait()
    p50_s |= {name: p50_s[name] / _RUNS for name in ("bare", "piped")}
    table = Table("exec true", "p50 ms", "beside", "ratio", "goal", box=None, header_style="bold")
    peers = {"bare": "bare asyncio subprocess", "piped": "the same, its output piped and read, as ours is"}
    for name, what in (("daemon", "the daemon alone"), ("channel", "through the gateway's channel")):
        for other, reported in peers.items():
            beside = f"{reported} ({p50_s[other] * 1000:.2f})"
            goal = "<= 2" if (name, other) == ("daemon", "bare") else ""
            table.add_row(what, f"{p50_s[name] * 1000:.2f}", beside, f"{p50_s[name] / p50_s[other]:.2f}", goal)
    more_us = (p50_s["ruled"] - p50_s["daemon"]) * 1e6
    table.add_row(
        "the daemon, under file rules, 500 files beside a forbidden directory",
        f"{p50_s['ruled'] * 1000:.2f}",
        "the daemon alone",
        f"{more_us:+.0f} us",
        "<= 100 us",
    )
    return table


async def _gibibyte(bench: Bench) -> Table:
    argv = (b"head", b"-c", b"1G", b"/dev/zero")
    growth_bytes = {"evicted": 0, "streamed": 0}

    async def evicted() -> None:
        with PeakMemory() as memory:
            result = await bench.sandbox.shell.execute(
                "head -c 1G /dev/zero", timeout_s=60, call_id="bench", limit_chars=80_000, head_chars=2_000,
                tail_chars=2_000,
            )  # fmt: skip
        assert (result.outcome, result.exit_code, result.output_bytes) == ("exited", 0, _GIB), result
        growth_bytes["evicted"] = max(growth_bytes["evicted"], memory.growth_bytes)

    async def streamed() -> None:
        size = 0

        async def take(_stream: OutputStream, data: bytes) -> None:
            nonlocal size
            size += len(data)

        with PeakMemory() as memory:
            result = await bench.sandbox.shell.run_program(
                ProgramSpec(argv, timeout_s=60, output_limit_bytes=_GIB), stdin=None, on_output=take
            )
        assert (result.outcome, result.exit_code, size) == ("exited", 0, _GIB), result
        growth_bytes["streamed"] = max(growth_bytes["streamed"], memory.growth_bytes)

    rows = {
        "evicted": (evicted, 1),
        "streamed": (streamed, 1),
        "docker exec": (partial(_docker_exec, bench.container, *map(bytes.decode, argv)), 1),
    }
    p50_s = await medians_s(rows, samples=5, warmup=1)
    table = Table(
        "1 GiB of stdout", "p50 s", "beside", "ratio", "goal", "gateway RSS", "goal", box=None, header_style="bold"
    )
    for name in ("evicted", "streamed"):
        peer = f"docker exec > /dev/null ({p50_s['docker exec']:.2f})"
        ratio = f"{p50_s[name] / p50_s['docker exec']:.2f}"
        table.add_row(
            name, f"{p50_s[name]:.2f}", peer, ratio, "<= 1", f"+{growth_bytes[name] / _MIB:.1f} MiB", "+32 MiB"
        )
    return table


async def _sleepers(bench: Bench) -> float:
    started = time.perf_counter()
    ends = await asyncio.gather(*(bench.run(b"sleep", b"1") for _ in range(100)))
    assert {(reply.outcome, reply.exit_code) for reply in ends} == {(pb.OUTCOME_EXITED, 0)}
    return time.perf_counter() - started


async def _remaining(bench: Bench) -> int:
    reply = await bench.run(b"sh", b"-c", _COUNT_SURVIVORS.encode())
    return int(b"".join(piece.data for piece in reply.output))


async def _remaining_of_timeout(bench: Bench) -> int:
    reply = await bench.run(b"sh", b"-c", _THREE_CHILDREN.encode(), timeout_ms=1000)
    assert reply.outcome == pb.OUTCOME_TIMED_OUT, reply
    await asyncio.sleep(1)
    return await _remaining(bench)


async def _remaining_of_docker_exec(bench: Bench) -> int:
    process = await asyncio.create_subprocess_exec("docker", "exec", bench.container, "sh", "-c", _THREE_CHILDREN)
    await asyncio.sleep(1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await asyncio.sleep(1)
    return await _remaining(bench)


async def _counts(bench: Bench) -> Table:
    table = Table("what", "seen", "beside", "goal", box=None, header_style="bold")
    table.add_row("100 x sleep 1 in one sandbox", f"{await _sleepers(bench):.2f} s", "", "< 2 s")
    ours = await _remaining_of_timeout(bench)
    theirs = await _remaining_of_docker_exec(bench)
    table.add_row("remaining of a timeout", f"{ours} of 3", f"docker exec, client killed: {theirs} of 3", "0")
    return table


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    # Both processors, so that the daemon is not held back where the engine, which is outside, is not.
    async with _sandbox(SandboxLimits(cpus=2)) as bench:
        return [await _exec_true(bench), await _gibibyte(bench), await _counts(bench)]


async def _main() -> None:
    console = Console(width=130)
    for table in await tables():
        console.print(table)
        console.print()


if __name__ == "__main__":
    asyncio.run(_main())
