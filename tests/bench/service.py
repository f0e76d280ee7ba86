"""Calls through the whole gateway beside their peers, all in one run; only ratios within a run count.

    airlock     client -> gateway (policy, journal) -> daemon -> sh -c true, or a file of 4 KiB
    docker exec `docker exec CONTAINER true` in the same container
    SWE-ReX     its remote runtime in a container of the same image, its own client
    bare        grpc.aio and nothing else: an echo of 4 KiB, or a `true` without a sandbox

The samples of all rows are taken in turn, so that a machine whose speed drifts slows all of them alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from agent.models.scripted_model_server import ScriptedModelServer, Turn
from gateway.client import Client
from tests.bench.bare_grpc import BareGrpc, bare_grpc
from tests.bench.swe_rex import SweRex, swe_rex
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served

_ROUNDS = 40
_WARMUP = 3
_CALLS = 5
_CLIENTS = 8
_CLIENT_ROUNDS = 8
_CLIENT_CALLS = 120
_RUNS = 15
_PAGE = b"x" * 4095 + b"\n"
_THREAD = "bench"

Call = Callable[[], Awaitable[object]]
# How long so many calls take together, by so many clients: the seconds of (calls, clients).
Seconds = Callable[[int, int], Awaitable[float]]


@dataclass(frozen=True)
class _Row:
    what: str
    peer: str
    goal: str


_SINGLE = (
    _Row("airlock execute true", "docker exec true", "<= 0.056"),
    _Row("airlock execute true", "SWE-ReX execute true", "<= 1"),
    _Row("airlock execute true", "bare grpc.aio execute true", ""),
    _Row("airlock read_file", "SWE-ReX read_file", "<= 0.7"),
    _Row("airlock read_file", "bare grpc.aio echo", "<= 2.5"),
    _Row("airlock write_file", "SWE-ReX write_file", "<= 1"),
)


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModelServer([Turn(say="done")]))
        home = make_home(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airlock-bench-"))) / "home")
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        gateway = stack.enter_context(served(home, env={"OPENAI_API_KEY": "none"}))
        airlock = await stack.enter_async_context(Client(gateway.address, home.key))
        await airlock.write_file(_THREAD, "/workspace/page", _PAGE)
        (container,) = containers_of(home.instance)
        bare = await stack.enter_async_context(bare_grpc())
        rex = await stack.enter_async_context(swe_rex())
        single = await _in_turn(_single(airlock, container, bare, rex), calls=_CALLS, clients=1, rounds=_ROUNDS)
        many = await _in_turn(_eight(airlock, bare, rex), calls=_CLIENT_CALLS, clients=_CLIENTS, rounds=_CLIENT_ROUNDS)
        first_event_s = [await _to_first_event_s(airlock, f"run-{n}") for n in range(_WARMUP + _RUNS)][_WARMUP:]
    return [_ratios(single), _rates(many), _starts(first_event_s)]


def _single(airlock: Client, container: str, bare: BareGrpc, rex: SweRex) -> dict[str, Seconds]:
    async def execute() -> None:
        result = await airlock.call_tool("execute", {"command": "true"}, thread=_THREAD)
        assert result.exit_code == 0, result

    async def read() -> None:
        result = await airlock.call_tool("read_file", {"path": "page"}, thread=_THREAD)
        assert len(result.content_bytes) == len(_PAGE), result

    async def write() -> None:
        result = await airlock.call_tool("write_file", {"path": "page", "content": _PAGE.decode()}, thread=_THREAD)
        assert not result.is_error, result

    async def docker_exec() -> None:
        process = await asyncio.create_subprocess_exec("docker", "exec", container, "true")
        assert await process.wait() == 0

    return {
        "docker exec true": lambda _calls, clients: _timed(docker_exec, 1, clients),
        "airlock execute true": lambda calls, clients: _timed(execute, calls, clients),
        "SWE-ReX execute true": lambda calls, clients: rex.seconds("execute", calls, clients),
        "bare grpc.aio execute true": lambda calls, clients: _timed(lambda: bare.execute(b""), calls, clients),
        # SWE-ReX's page is written before it is read.
        "SWE-ReX write_file": lambda calls, clients: rex.seconds("write_file", calls, clients),
        "airlock write_file": lambda calls, clients: _timed(write, calls, clients),
        "airlock read_file": lambda calls, clients: _timed(read, calls, clients),
        "SWE-ReX read_file": lambda calls, clients: rex.seconds("read_file", calls, clients),
        "bare grpc.aio echo": lambda calls, clients: _timed(lambda: bare.echo(_PAGE), calls, clients),
    }


def _eight(airlock: Client, bare: BareGrpc, rex: SweRex) -> dict[str, Seconds]:
    names = ("airlock execute true", "SWE-ReX execute true", "bare grpc.aio execute true")
    samples = _single(airlock, "", bare, rex)
    return {name: samples[name] for name in names}


async def _in_turn(samples: Mapping[str, Seconds], *, calls: int, clients: int, rounds: int) -> dict[str, float]:
    """Return the median over the rounds of each row's seconds a call."""
    taken: dict[str, list[float]] = {name: [] for name in samples}
    for round_ in range(_WARMUP + rounds):
        for name, seconds in samples.items():
            made = 1 if name.startswith("docker") else calls
            value = await seconds(calls, clients) / made
            if round_ >= _WARMUP:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


async def _timed(call: Call, calls: int, clients: int) -> float:
    left = iter(range(calls))

    async def client() -> None:
        for _ in left:
            await call()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - started


async def _to_first_event_s(airlock: Client, thread: str) -> float:
    started = time.perf_counter()
    run = await airlock.start_run("say that it is done", thread=thread)
    events: AsyncIterator[object] = airlock.watch_run(run.id)
    await anext(events)
    taken = time.perf_counter() - started
    async for _ in events:
        pass
    return taken


def _ratios(p50_s: Mapping[str, float]) -> Table:
    table = Table("one client", "p50 ms", "beside", "ratio", "goal", box=None, header_style="bold")
    for row in _SINGLE:
        ours, peers = p50_s[row.what] * 1000, p50_s[row.peer] * 1000
        table.add_row(row.what, f"{ours:.2f}", f"{row.peer} ({peers:.2f})", f"{ours / peers:.3f}", row.goal)
    return table


def _rates(seconds: Mapping[str, float]) -> Table:
    table = Table(f"{_CLIENTS} clients", "calls/s", "to bare", "goal", box=None, header_style="bold")
    bare = seconds["bare grpc.aio execute true"]
    for what, each_s in seconds.items():
        goal = ">= 1.1 x SWE-ReX's" if what.startswith("airlock") else ""
        table.add_row(what, f"{1 / each_s:,.0f}", f"{bare / each_s:.2f}", goal)
    return table


def _starts(first_event_s: list[float]) -> Table:
    table = Table("a run", "p50 ms", "worst ms", "goal", box=None, header_style="bold")
    p50, worst = statistics.median(first_event_s) * 1000, max(first_event_s) * 1000
    table.add_row("StartRun to the first event watched", f"{p50:.1f}", f"{worst:.1f}", "< 15")
    return table
