"""The soak's load: calls of all tenants at a rate that heeds nothing of what becomes of them, and what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.client import Client
from gateway.errors import AirlockError, Cancelled, Overloaded, ThreadBusy, Unavailable
from tests.bench.fleet import Fleet
from tests.docker_state import containers_of

# Of a tenant: calls, runs, and what a slow reader reads.
THREADS_OF_A_TENANT = 2
_WORK, _RUN, _SLOW = "soak", "run", "slow"
SLOW_READERS = 4
_WARMING_AT_ONCE = 4
_CAPACITY_S = 15.0
_CAPACITY_CLIENTS = 16
_TICK_S = 0.05
_CALL_TIMEOUT_S = 20.0
# Past this many calls of ours the load generator itself would be what is measured.
_OUTSTANDING_LIMIT = 1500
_KILL_EVERY_S = 20.0
# For so long after a kill, what the sandbox did may end as lost.
_KILLED_S = 10.0
_SAMPLE_EVERY_S = 2.0
_PAGE = b"x" * 4096
_LOST = ("daemon_lost", "failed_to_start")


@dataclass
class Seen:
    """What became of the calls, and the gateway's memory by the time since the start.

    `served_of` counts commands and file calls that had their answer, by tenant, of those that all ask for as much.
    """

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)
    served_s: list[float] = field(default_factory=list)
    served_of: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    def note(self, end: str, fault: str = "") -> None:
        """Count an end; with `fault` it is one that must not be."""
        self.ends[end] += 1
        if fault:
            self.faults.append(fault)

    def served(self) -> int:
        """Return how many calls of all kinds had their answer."""
        return sum(count for end, count in self.ends.items() if end.endswith(": served"))


class Load:
    """The load, and what it saw."""

    def __init__(self, all_: Fleet, seed: int) -> None:
        self._fleet = all_
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients = list(all_.clients.values())
        self._tenants = {client: tenant for tenant, client in all_.clients.items()}
        self._slow = self._clients[:SLOW_READERS]
        self._killed_s = -_KILLED_S
        self.seen = Seen()

    async def warm(self) -> None:
        """Make every sandbox that the load uses: what one costs to make is no part of a call's capacity."""
        gate = asyncio.Semaphore(_WARMING_AT_ONCE)

        async def make(client: Client, thread: str) -> None:
            async with gate:
                await client.write_file(thread, "/workspace/page", _PAGE)

        await asyncio.gather(
            *(make(client, thread) for client in self._clients for thread in (_WORK, _RUN)),
            *(make(client, _SLOW) for client in self._slow),
        )

    async def capacity(self) -> float:
        """Return how many calls of the mix the gateway serves in a second to clients that wait for each."""
        ends = time.monotonic() + _CAPACITY_S
        self.seen = Seen()

        async def client(number: int) -> None:
            while time.monotonic() < ends:
                await self._noted(self._any_kind(), self._clients[number % len(self._clients)])

        started = time.monotonic()
        await asyncio.gather(*(client(number) for number in range(_CAPACITY_CLIENTS)))
        return self.seen.served() / (time.monotonic() - started)

    async def run(self, per_s: float, seconds: float) -> Seen:
        """Make so many calls a second, whatever becomes of them, and return what that was."""
        started = time.monotonic()
        due, sampled, killed = 0.0, -_SAMPLE_EVERY_S, 0.0
        # Those with slow readers ask for more than the others, and so are not their equals.
        equals = [tenant for client, tenant in self._tenants.items() if client not in self._slow]
        self.seen = Seen(served_of=Counter(dict.fromkeys(equals, 0)))
        last = started
        watchers = [asyncio.create_task(self._slow_reader(client)) for client in self._slow]
        while (elapsed := time.monotonic() - started) < seconds:
            # By the clock: a generator that was kept from the processor makes up for it.
            due += per_s * (started + elapsed - last)
            last = started + elapsed
            while due >= 1:
                due -= 1
                self._begin()
            if elapsed - sampled >= _SAMPLE_EVERY_S:
                sampled = elapsed
                self.seen.rss.append((elapsed, self._fleet.rss_bytes()))
            if elapsed - killed >= _KILL_EVERY_S:
                killed = elapsed
                await asyncio.to_thread(self._kill_a_sandbox)
            await asyncio.sleep(_TICK_S)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, *self._tasks, return_exceptions=True)
        return self.seen

    def _begin(self) -> None:
        if len(self._tasks) >= _OUTSTANDING_LIMIT:
            self.seen.note("not made: too many of ours are under way")
            return
        task = asyncio.create_task(self._noted(self._any_kind(), self._random.choice(self._clients)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _any_kind(self) -> Callable[[Client], Awaitable[str]]:
        kinds: Mapping[Callable[[Client], Awaitable[str]], float] = {
            self._work: 0.92,
            self._cancelled: 0.06,
            self._run: 0.02,
        }
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        return kind

    async def _noted(self, kind: Callable[[Client], Awaitable[str]], client: Client) -> None:
        name = kind.__name__.strip("_")
        began = time.monotonic()
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                end = await kind(client)
        except TimeoutError:
            end = "our patience ended"
        except Overloaded as error:
            end = error.reason
            if error.retry_after_s is None:
                self.seen.faults.append(f"{name}: a refusal without RetryInfo: {error}")
        except AirlockError as error:
            end = error.reason
            # Two runs of a thread, and the end of a call that we cancel, are meant; a sandbox that is lost was killed.
            meant = isinstance(error, ThreadBusy) and name == "run"
            meant = meant or (isinstance(error, Cancelled) and name == "cancelled")
            if not (meant or (isinstance(error, Unavailable) and self._just_killed())):
                self.seen.faults.append(f"{name}: {error.reason}: {error}")
        if end == "served":
            self.seen.served_s.append(time.monotonic() - began)
            if name == "work" and (tenant := self._tenants[client]) in self.seen.served_of:
                self.seen.served_of[tenant] += 1
        self.seen.note(f"{name}: {end}")

    def _just_killed(self) -> bool:
        return time.monotonic() - self._killed_s < _KILLED_S

    async def _work(self, client: Client) -> str:
        name, arguments = self._random.choice(
            (
                ("execute", {"command": "true"}),
                ("execute", {"command": "echo hello"}),
                ("read_file", {"path": "page"}),
                ("write_file", {"path": "written", "content": "text\n"}),
            )
        )
        result = await client.call_tool(name, arguments, thread=_WORK)
        if not result.is_error:
            return "served"
        if not (result.outcome in _LOST and self._just_killed()):
            self.seen.faults.append(f"{name}: {result.outcome}: {result.content[:200]}")
        return f"outcome {result.outcome}"

    async def _cancelled(self, client: Client) -> str:
        try:
            async with asyncio.timeout(self._random.uniform(0.01, 0.5)):
                await client.call_tool("execute", {"command": "sleep 30"}, thread=_WORK)
        except TimeoutError:
            return "ended by us"
        return "ended with its sandbox"

    async def _run(self, client: Client) -> str:
        run = await client.start_run("look", thread=_RUN)
        async for _ in client.watch_run(run.id):
            await asyncio.sleep(self._random.uniform(0.0, 0.2))
        return "served"

    async def _slow_reader(self, client: Client) -> None:
        """Hold streams open and hardly read them; what ends one is noted by no one, the memory tells."""
        while True:
            with contextlib.suppress(AirlockError):
                await client.call_tool("execute", {"command": "head -c 64000000 /dev/zero > large"}, thread=_SLOW)
                async for _ in client.stream_file(_SLOW, "/workspace/large"):
                    await asyncio.sleep(5.0)
            await asyncio.sleep(1.0)

    def _kill_a_sandbox(self) -> None:
        there: Sequence[str] = containers_of(self._fleet.home.instance)
        if there:
            self._killed_s = time.monotonic()
            self.seen.kills += 1
            subprocess.run(["docker", "kill", self._random.choice(there)], check=False, capture_output=True)
            self._killed_s = time.monotonic()
