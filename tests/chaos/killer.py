"""Who kills: gateways, the engine, containers and what is in them, by a seed, while others call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from tests.chaos.own_engine import EngineRefused, OwnEngine, kill_all
from tests.chaos.supervised import Supervised
from tests.chaos.thread_load import COMMAND, Report, ThreadLoad

KINDS = (
    "a gateway",
    "both gateways",
    "the engine",
    "a container",
    "a container behind our back",
    "a daemon's process",
    "a shim",
    "the machine",
    "a gateway, which stalls",
    "the engine, which stalls",
)
# Longer than a lease: a gateway that stalls may be taken for one that is lost.
_STALLS_S = 4.0
_PROGRESS_S = 120.0
# How many calls of each thread are served between two deaths, so that there is something to lose.
_SERVED = 3
# How long a container's death waits for a command to be under way in one, and how often it looks.
_BUSY_S, _LOOK_S = 10.0, 0.02
_AT_MOST = 3
_Thing = TypeVar("_Thing")


@dataclass(frozen=True)
class Kill:
    """What dies, or stalls, after `wait_s` of load, and comes back after `away_s`.

    `pick` says which of those there are, as a share; a kill that overlaps has the next one follow at once.
    """

    kind: str
    wait_s: float
    away_s: float
    pick: float
    overlaps: bool


def plan(seed: int) -> Iterator[Kill]:
    """Give what a seed kills, without an end: each kind in turn, in an order of its own."""
    chance = random.Random(seed)
    while True:
        for kind in chance.sample(KINDS, len(KINDS)):
            yield Kill(kind, chance.uniform(0, 1.5), chance.uniform(0, 2), chance.random(), chance.random() < 0.3)


class Killer:
    """Kills by a plan, and has what died come back."""

    def __init__(
        self, engine: OwnEngine, gateways: Sequence[Supervised], threads: Sequence[ThreadLoad], report: Report
    ) -> None:
        self._engine = engine
        self._gateways = gateways
        self._threads = threads
        self._report = report
        self._coming: list[asyncio.Future[None]] = []
        self._gone = threading.Event()

    async def run(self, kills: Iterator[Kill], rounds: int, lacking: Callable[[], Awaitable[object]]) -> None:
        """Kill so many, one after the other, the next one when each thread was served again, or before that.

        It goes on while something is `lacking`, for _AT_MOST times as many.
        """
        for number, kill in enumerate(islice(kills, _AT_MOST * rounds)):
            if self._report.faults or (number >= rounds and not await lacking()):
                break
            await asyncio.sleep(kill.wait_s)
            before = [thread.successes for thread in self._threads]
            await self._kill(kill)
            self._report.counts[f"killed: {kill.kind}"] += 1
            if not kill.overlaps:
                await self._served_again(kill, before)
        await asyncio.gather(*self._coming)

    async def _kill(self, kill: Kill) -> None:
        if kill.kind == "a gateway":
            for gateway in _one(self._gateways, kill.pick):
                gateway.kill(kill.away_s)
        elif kill.kind == "both gateways":
            for gateway in self._gateways:
                gateway.kill(kill.away_s)
        elif kill.kind == "the engine":
            await self._kill_engine(kill.away_s)
        elif kill.kind == "the machine":
            for gateway in self._gateways:
                gateway.kill(kill.away_s)
            await self._kill_engine(kill.away_s)
            kill_all([*self._engine.shims(), *(pids[0] for pids in self._engine.containers().values())])
        elif kill.kind == "a gateway, which stalls":
            self._stalls([pid for one in _one(self._gateways, kill.pick) for pid in one.pids], kill.away_s)
        elif kill.kind == "the engine, which stalls":
            self._stalls(self._engine.processes(), kill.away_s)
        elif kill.kind == "a shim":
            kill_all(_one(self._engine.shims(), kill.pick))
        elif kill.kind == "a daemon's process":
            kill_all(_one(self._engine.daemons(), kill.pick))
        elif kill.kind == "a container":
            kill_all([pids[0] for pids in _one(await self._busy(), kill.pick)])
        else:
            for name in _one(list(self._engine.containers()), kill.pick):
                try:
                    await asyncio.to_thread(self._engine.docker, "rm", "--force", name)
                except EngineRefused:
                    self._report.counts["not killed, for the engine was away"] += 1

    async def _busy(self) -> list[list[int]]:
        """Return the processes of each container that executes a command, of all where none does for a while."""
        found: list[list[int]] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BUSY_S):
                while not (found := self._engine.executing(COMMAND)):
                    await asyncio.sleep(_LOOK_S)
        return found or list(self._engine.containers().values())

    def _stalls(self, pids: Sequence[int], away_s: float) -> None:
        """Have processes do nothing for a while, though they hold what they hold."""
        for number, after_s in ((signal.SIGSTOP, 0.0), (signal.SIGCONT, _STALLS_S * away_s)):
            self._coming.append(asyncio.ensure_future(_signalled(pids, number, after_s)))

    async def _kill_engine(self, away_s: float) -> None:
        self._gone.set()  # a process that is about to start it gives up
        self._gone = gone = threading.Event()
        await asyncio.to_thread(self._engine.kill)
        self._coming.append(asyncio.ensure_future(self._start_engine(away_s, gone)))

    async def _start_engine(self, away_s: float, gone: threading.Event) -> None:
        await asyncio.sleep(away_s)
        if not gone.is_set():
            await asyncio.to_thread(self._engine.start, gone.is_set)

    async def _served_again(self, kill: Kill, before: Sequence[int]) -> None:
        try:
            async with asyncio.timeout(_PROGRESS_S):
                while self._waiting(before):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            silent = self._waiting(before)
            self._report.faults.append(f"after the death of {kill.kind} hardly anything was served in {silent}")

    def _waiting(self, before: Sequence[int]) -> list[str]:
        """Return the threads that were not served often enough since."""
        since = zip(self._threads, before, strict=True)
        return [thread.name for thread, was in since if thread.successes < was + _SERVED]


async def _signalled(pids: Sequence[int], number: signal.Signals, after_s: float) -> None:
    await asyncio.sleep(after_s)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _one(of: Sequence[_Thing], pick: float) -> Sequence[_Thing]:
    """Return the one that is picked, none where there is none."""
    return [of[int(pick * len(of))]] if of else []
