"""`make soak`: half an hour at twice what the gateway can do, and then everything must be as it was.

    load      calls of 32 tenants at twice the rate that was measured first: commands, files, calls that are cancelled,
              runs, watchers that hardly read, sandboxes that are killed
    verdict   every call ended in a way that is documented, no journal row is left executing, no run's events have a
              gap, every audit chain verifies, no container is left, the gateway's memory does not grow

`python -m tests.bench.soak --minutes 5` is the same, shorter. It exits 1 when something was not true.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client
from gateway.errors import AirlockError, Cancelled, DeadlineExceeded, Overloaded, ThreadBusy, Unavailable
from tests.bench.fleet import Fleet, fleet
from tests.docker_state import containers_of
from tests.gateway_process import airlock

_TENANTS = 32
_CAPACITY_S = 10.0
_CAPACITY_CLIENTS = 32
_LOAD = 2.0
_TICK_S = 0.05
_CALL_TIMEOUT_S = 20.0
# Past this many calls of ours the load generator itself would be what is measured.
_OUTSTANDING_LIMIT = 1500
_KILL_EVERY_S = 20.0
_SAMPLE_EVERY_S = 2.0
_MIB = 1024 * 1024
# Growth of the gateway's memory over the second half, for the whole of it.
_GROWTH_LIMIT_BYTES = 24 * _MIB
_PAGE = b"x" * 4096
# One script for all runs of a thread, of which there are two a tenant.
_TURNS = [Turn(say="Let me look.", calls=[Call("execute", {"command": "echo looked"})]), Turn(say="done")] * 2000
# What a call under overload may rightly end with.
_EXPECTED = (Overloaded, DeadlineExceeded, Cancelled, ThreadBusy)


@dataclass
class _Seen:
    """What became of the calls, and the gateway's memory by the time since the start."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)
    kills: int = 0

    def note(self, end: str, fault: str = "") -> None:
        self.ends[end] += 1
        if fault:
            self.faults.append(fault)


class _Soak:
    """The load, and what it saw."""

    def __init__(self, all_: Fleet, seed: int) -> None:
        self._fleet = all_
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = _Seen()

    async def capacity(self) -> float:
        """Return how many calls of the mix the gateway does in a second."""
        clients = list(self._fleet.clients.values())
        await asyncio.gather(*(client.write_file("soak", "/workspace/page", _PAGE) for client in clients))
        ends = time.monotonic() + _CAPACITY_S
        done = 0

        async def client(number: int) -> None:
            nonlocal done
            while time.monotonic() < ends:
                await self._work(clients[number])
                done += 1

        await asyncio.gather(*(client(number % len(clients)) for number in range(_CAPACITY_CLIENTS)))
        return done / _CAPACITY_S

    async def load(self, per_s: float, seconds: float) -> None:
        """Make so many calls a second, whatever becomes of them."""
        started = time.monotonic()
        due, sampled, killed = 0.0, -_SAMPLE_EVERY_S, 0.0
        watchers = [asyncio.create_task(self._slow_reader(client)) for client in list(self._fleet.clients.values())[:4]]
        while (elapsed := time.monotonic() - started) < seconds:
            due += per_s * _TICK_S
            while due >= 1:
                due -= 1
                self._begin()
            if elapsed - sampled >= _SAMPLE_EVERY_S:
                sampled = elapsed
                self.seen.rss.append((elapsed, self._fleet.rss_bytes()))
            if elapsed - killed >= _KILL_EVERY_S:
                killed = elapsed
                self._kill_a_sandbox()
            await asyncio.sleep(_TICK_S)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, *self._tasks, return_exceptions=True)

    def _begin(self) -> None:
        if len(self._tasks) >= _OUTSTANDING_LIMIT:
            self.seen.note("not made: too many of ours are under way")
            return
        client = self._random.choice(list(self._fleet.clients.values()))
        kinds: Sequence[tuple[float, Callable[[Client], Awaitable[None]]]] = (
            (0.92, self._work),
            (0.06, self._cancelled),
            (0.02, self._run),
        )
        (kind,) = self._random.choices([one for _, one in kinds], [share for share, _ in kinds])
        task = asyncio.create_task(self._noted(kind, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _noted(self, kind: Callable[[Client], Awaitable[None]], client: Client) -> None:
        name = kind.__name__.strip("_")
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                await kind(client)
        except TimeoutError:
            self.seen.note(f"{name}: our patience ended")
        except _EXPECTED as error:
            untold = isinstance(error, Overloaded) and error.retry_after_s is None
            self.seen.note(f"{name}: {error.reason}", "a refusal without RetryInfo" if untold else "")
        except Unavailable as error:
            # Of a sandbox that was killed a moment ago, and of nothing else.
            self.seen.note(f"{name}: {error.reason}", "" if self.seen.kills else str(error))
        except AirlockError as error:
            self.seen.note(f"{name}: {error.reason}", f"{error.reason}: {error}")
        else:
            self.seen.note(f"{name}: served")

    async def _work(self, client: Client) -> None:
        name, arguments = self._random.choice(
            (
                ("execute", {"command": "true"}),
                ("execute", {"command": "echo hello"}),
                ("read_file", {"path": "page"}),
                ("write_file", {"path": "written", "content": "text\n"}),
            )
        )
        result = await client.call_tool(name, arguments, thread="soak")
        if result.is_error and result.outcome != "daemon_lost" and not self.seen.kills:
            self.seen.faults.append(f"{name}: {result.outcome}: {result.content[:200]}")

    async def _cancelled(self, client: Client) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0.01, 0.5)):
                await client.call_tool("execute", {"command": "sleep 30"}, thread="soak")

    async def _run(self, client: Client) -> None:
        run = await client.start_run("look", thread=f"run-{self._random.randrange(2)}")
        async for _ in client.watch_run(run.id):
            await asyncio.sleep(self._random.uniform(0.0, 0.2))

    async def _slow_reader(self, client: Client) -> None:
        """Hold streams open and hardly read them; what ends one is noted by no one, the memory tells."""
        while True:
            with contextlib.suppress(AirlockError):
                await client.call_tool("execute", {"command": "head -c 64000000 /dev/zero > large"}, thread="slow")
                async for _ in client.stream_file("slow", "/workspace/large"):
                    await asyncio.sleep(5.0)
            await asyncio.sleep(1.0)

    def _kill_a_sandbox(self) -> None:
        there = containers_of(self._fleet.home.instance)
        if there:
            self.seen.kills += 1
            subprocess.run(["docker", "kill", self._random.choice(there)], check=False, capture_output=True)


def _growth_bytes(rss: Sequence[tuple[float, int]]) -> float:
    """Return by how much the memory grew over the second half, by the line of least squares through it."""
    half = rss[len(rss) // 2 :]
    mean_s, mean = (sum(column) / len(half) for column in zip(*half, strict=True))
    spread = sum((at - mean_s) ** 2 for at, _ in half)
    slope = sum((at - mean_s) * (size - mean) for at, size in half) / spread if spread else 0.0
    return slope * (half[-1][0] - half[0][0])


def _stored_wrong(all_: Fleet) -> list[str]:
    """Return what the database says that must not be, once the gateway has ended."""
    with contextlib.closing(sqlite3.connect(all_.home.config.parent / "state" / "airlock.db")) as database:
        executing = database.execute("SELECT count(*) FROM tool_calls WHERE state = 'executing'").fetchone()[0]
        # One that is handed over waits for the next gateway, and is nobody's.
        running = database.execute(
            "SELECT count(*) FROM runs WHERE status = 'running' AND gateway IS NOT NULL"
        ).fetchone()[0]
        gaps = database.execute(
            "SELECT count(*) FROM (SELECT r.id FROM runs r LEFT JOIN events e ON e.run_id = r.id GROUP BY r.id "
            "HAVING count(e.sequence) != r.last_sequence OR coalesce(max(e.sequence), 0) != r.last_sequence)"
        ).fetchone()[0]
    found = {
        "journal rows left executing": executing,
        "runs left running": running,
        "runs whose events have a gap": gaps,
    }
    return [f"{what}: {count}" for what, count in found.items() if count]


def _audit_wrong(all_: Fleet) -> list[str]:
    config = str(all_.home.config)
    checked = {
        tenant: airlock("audit", "verify", "--config", config, "--tenant", tenant, check=False)
        for tenant in all_.clients
    }
    return [f"audit of {tenant}: {done.stdout}{done.stderr}" for tenant, done in checked.items() if done.returncode]


async def soak(minutes: float, tenants: int, workers: int, seed: int) -> list[str]:
    """Return what was not true at the end."""
    options = () if workers == 1 else ("--workers", str(workers))
    wrong: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModelServer(_TURNS))
        all_ = await stack.enter_async_context(
            fleet(
                tenants,
                *options,
                env={"OPENAI_API_KEY": "none"},
                at_end=lambda ended: wrong.extend((*_stored_wrong(ended), *_audit_wrong(ended))),
                model={"base_url": model.base_url, "name": "scripted"},
                sandbox={"max_live": 96},
            )
        )
        under_way = _Soak(all_, seed)
        capacity = await under_way.capacity()
        print(f"capacity {capacity:,.0f} calls/s; load {capacity * _LOAD:,.0f} calls/s for {minutes:g} min", flush=True)
        await under_way.load(capacity * _LOAD, minutes * 60)
        seen = under_way.seen
        instance = all_.home.instance
    growth = _growth_bytes(seen.rss)
    for end, count in sorted(seen.ends.items()):
        print(f"{count:>9,}  {end}")
    sizes = [size for _, size in seen.rss]
    print(
        f"memory {sizes[0] / _MIB:.0f} MiB at the start, {max(sizes) / _MIB:.0f} at most, {sizes[-1] / _MIB:.0f} at "
        f"the end; growth over the second half {growth / _MIB:.1f} MiB; sandboxes killed {seen.kills}"
    )
    if growth > _GROWTH_LIMIT_BYTES:
        wrong.append(f"memory grew by {growth / _MIB:.0f} MiB over the second half")
    if left := containers_of(instance):
        wrong.append(f"containers left: {len(left)}")
    if not any(end.startswith("work: served") for end in seen.ends):
        wrong.append("no call was served")
    return wrong + [f"{count} times: {fault}" for fault, count in Counter(seen.faults).most_common(10)]


def main() -> None:
    """Run it and print the verdict."""
    parser = argparse.ArgumentParser(prog="tests.bench.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--tenants", type=int, default=_TENANTS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wrong = asyncio.run(soak(asked.minutes, asked.tenants, asked.workers, asked.seed))
    for line in wrong:
        print(f"WRONG  {line}")
    print("verdict: all invariants hold" if not wrong else f"verdict: {len(wrong)} things are wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
