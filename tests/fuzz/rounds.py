"""Rounds of inputs: hypothesis makes them, a seed names each round, and a failure says which seed brings it back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from sandbox.v1 import channel_pb2 as pb
from tests.fuzz import daemon_end, gateway_end

_ROUND = 500
# So many connections at once to the daemon.
_AT_ONCE = 8
_HEALTH_LIMIT_S = 1.0


def _examples(
    count: int,
    number: int,
    strategy: st.SearchStrategy[Any],
    judge: Callable[[Any], Awaitable[None]],
    runner: asyncio.Runner,
) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def example(value: Any) -> None:
        runner.run(judge(value))

    try:
        example()
    except BaseException as error:
        error.add_note(f"seed {number}: `python -m tests.fuzz --seed {number} --inputs {count}` brings it back")
        raise


def fuzz_gateway_end(inputs: int, first_seed: int, on_round: Callable[[int], None]) -> Counter[str]:
    """Send so many hostile answers to the gateway's end; return what became of them."""
    seen: Counter[str] = Counter()

    async def judge(value: tuple[str, bytes]) -> None:
        await gateway_end.judge(*value, seen)

    with asyncio.Runner() as runner:
        while seen.total() < inputs:
            count = min(_ROUND, inputs - seen.total())
            _examples(count, first_seed, gateway_end.inputs(), judge, runner)
            on_round(count)
            first_seed += 1
    return seen


def fuzz_daemon_end(socket_path: Path, inputs: int, first_seed: int, on_round: Callable[[int], None]) -> Counter[str]:
    """Send so many hostile requests to a daemon; return what became of them. After each round it must be well."""
    seen: Counter[str] = Counter()

    async def judge(values: list[daemon_end.Input]) -> None:
        await asyncio.gather(*(daemon_end.judge(socket_path, value, seen) for value in values))

    with asyncio.Runner() as runner:
        uptime_ms = runner.run(_health(socket_path)).uptime_ms
        while seen.total() < inputs:
            before = seen.total()
            count = max(1, min(_ROUND, inputs - before) // _AT_ONCE)
            runner.run(_start_processes(socket_path))
            strategy = st.lists(daemon_end.inputs(), min_size=_AT_ONCE, max_size=_AT_ONCE)
            _examples(count, first_seed, strategy, judge, runner)
            health = runner.run(_health(socket_path))
            assert health.uptime_ms >= uptime_ms, "the daemon was started anew"
            uptime_ms = health.uptime_ms
            on_round(seen.total() - before)
            first_seed += 1
    return seen


async def _start_processes(socket_path: Path) -> None:
    """Have those there that the inputs name, as far as earlier inputs left any to start."""
    for name in daemon_end.PROCESSES:
        start = pb.ProcessStartRequest(id=name, argv=[b"cat"], stdin=True, terminal=name.endswith("1"))
        await _ask(socket_path, pb.Request(process_start=start))


async def _ask(socket_path: Path, request: pb.Request) -> pb.Reply:
    reader, writer = await asyncio.open_unix_connection(str(socket_path))
    try:
        body = request.SerializeToString()
        writer.write(len(body).to_bytes(4, "big") + body)
        async with asyncio.timeout(30):
            size = int.from_bytes(await reader.readexactly(4), "big")
            return pb.Reply.FromString(await reader.readexactly(size))
    finally:
        writer.close()


async def _health(socket_path: Path) -> pb.HealthReply:
    started_s = time.monotonic()
    reply = await _ask(socket_path, pb.Request(health=pb.HealthRequest()))
    taken_s = time.monotonic() - started_s
    assert reply.WhichOneof("reply") == "health", reply
    assert taken_s < _HEALTH_LIMIT_S, f"health took {taken_s:.2f} s"
    return reply.health
