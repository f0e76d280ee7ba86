"""A discrete-event simulation in a page: processes are generators, time is a heap of events.

A process yields a number of seconds to sleep, or a Signal to wait for. Events of the same moment come in the order in
which they were made, so a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Generator
from typing import Any, TypeAlias

Process: TypeAlias = Generator["float | Signal", Any, None]


class Signal:
    """Something that processes wait for; it happens once, with a value."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._waiting: list[Process] = []
        self.happened = False
        self.value: Any = None

    def happen(self, value: Any = None) -> None:
        """Continue those who wait; nothing if it happened before."""
        if self.happened:
            return
        self.happened, self.value = True, value
        for process in self._waiting:
            self._simulation.resume(process, 0.0, value)
        self._waiting.clear()

    def wait(self, process: Process) -> None:
        if self.happened:
            self._simulation.resume(process, 0.0, self.value)
        else:
            self._waiting.append(process)


class Simulation:
    """The clock, in seconds, and a source of chance of its own."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.chance = random.Random(seed)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Process, Any]] = []

    def start(self, process: Process, after_s: float = 0.0) -> None:
        self.resume(process, after_s)

    def resume(self, process: Process, after_s: float, value: Any = None) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._order), process, value))

    def run(self, until_s: float) -> None:
        """Run to that time; what comes later stays undone."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, process, value = heapq.heappop(events)
            try:
                asked = process.send(value)
            except StopIteration:
                continue
            if isinstance(asked, Signal):
                asked.wait(process)
            else:
                self.resume(process, asked)
        self.now_s = until_s


class Server:
    """Serves `places` at a time, first come first served: a processor, a lock, an API server."""

    def __init__(self, simulation: Simulation, places: int = 1) -> None:
        self._simulation = simulation
        self._places = self._free = places
        self._queue: deque[Signal] = deque()
        self.busy_s = 0.0
        self.longest = 0
        """The longest that the queue ever was."""

    def take(self) -> Generator[Signal, Any, None]:
        """Wait for a place and take it."""
        if self._free:
            self._free -= 1
            return
        turn = Signal(self._simulation)
        self._queue.append(turn)
        self.longest = max(self.longest, len(self._queue))
        yield turn

    def leave(self) -> None:
        if self._queue:
            self._queue.popleft().happen()
        else:
            self._free += 1

    def serve(self, seconds: float) -> Generator[float | Signal, Any, None]:
        """Wait for a place, have it for so long, and leave it."""
        yield from self.take()
        yield seconds
        self.busy_s += seconds
        self.leave()

    def utilization(self, elapsed_s: float) -> float:
        """Return the share of time that the places were taken."""
        return self.busy_s / elapsed_s / self._places
