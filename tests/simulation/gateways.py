"""The model of gateways that share a database: the event loop, admission, the writer with its groups, the lease."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.costs import GROUP_LIMIT, RENEWALS_OF_A_LEASE, WRITES_OF, Costs, Statements
from tests.simulation.events import Process, Server, Signal, Simulation

LOCK_TIMEOUT_S = 10.0
QUEUE_WAIT_S = 2.0
AT_ONCE, QUEUE = 64, 256
"""Of one tenant, which all clients of the model are."""

Step = Generator["float | Signal", Any, bool]


class Database:
    """PostgreSQL, with the lock for which all writers queue."""

    def __init__(self, simulation: Simulation, costs: Costs) -> None:
        self.simulation, self.costs = simulation, costs
        self.lock = Server(simulation)
        self.up = True
        self.transactions = self.writes = 0

    def transact(self, sent: Statements, writes: int) -> Step:
        """Take the lock, send the statements and commit; False if it was not to be had."""
        asked_s = self.simulation.now_s
        if self._refuses(asked_s):
            return False
        yield from self.lock.take()
        if self._refuses(asked_s):
            self.lock.leave()
            return False
        held_s = self.costs.held_s(sent)
        yield held_s
        self.lock.busy_s += held_s
        self.lock.leave()
        self.transactions += 1
        self.writes += writes
        return True

    def _refuses(self, asked_s: float) -> bool:
        return not self.up or self.simulation.now_s - asked_s > LOCK_TIMEOUT_S


@dataclass
class Counts:
    """What became of calls, and of leases."""

    done: int = 0
    refused: int = 0
    failed: int = 0
    leases_lost: int = 0
    taken_s: list[float] = field(default_factory=list)
    longest_queue: int = 0


class Gateway:
    """One process: a processor, a writer, a lease."""

    def __init__(self, database: Database, *, lease_s: float = 5.0, at_once: int = AT_ONCE, queue: int = QUEUE) -> None:
        self.database, self.costs, self.simulation = database, database.costs, database.simulation
        self.loop = Server(self.simulation)
        self.counts = Counts()
        self.lease_s = lease_s
        self.renewed_s = self.simulation.now_s
        self.alive = True
        self._at_once, self._queue_limit = at_once, queue
        self._at_work = 0
        self._admitted: deque[Signal] = deque()
        self._pending: deque[tuple[str, Signal]] = deque()
        self._work = Signal(self.simulation)
        self.lost = Signal(self.simulation)
        """Happens when the lease is lost."""

    def start(self) -> None:
        chance = self.simulation.chance.random()
        self.simulation.start(self._write_groups())
        self.simulation.start(self._keep_lease(), chance * self.lease_s / RENEWALS_OF_A_LEASE)

    # --- what is asked of it ---

    def call(self, kind: str) -> Step:
        """Make one call; False if it was refused or could not be recorded."""
        began_s = self.simulation.now_s
        if not (yield from self._admit()):
            self.counts.refused += 1
            return False
        part_s = self.costs.gateway_s[kind] / 2
        yield from self.loop.serve(part_s)
        kept = True
        if WRITES_OF[kind] == 2:
            kept = yield from self.write("begun")
        if kept:
            yield self.costs.sandbox_s
            yield from self.loop.serve(part_s)
            kept = yield from self.write("ended")
        self._leave()
        if kept:
            self.counts.done += 1
            self.counts.taken_s.append(self.simulation.now_s - began_s)
        else:
            self.counts.failed += 1
        return kept

    def write(self, what: str) -> Step:
        """Write in the next group; False if the database refused it."""
        done = Signal(self.simulation)
        self._pending.append((what, done))
        self._work.happen()
        kept: bool = yield done
        return kept

    # --- admission ---

    def _admit(self) -> Step:
        if self._at_work < self._at_once:
            self._at_work += 1
            return True
        if len(self._admitted) >= self._queue_limit:
            return False
        place = Signal(self.simulation)
        self._admitted.append(place)
        self.counts.longest_queue = max(self.counts.longest_queue, len(self._admitted))
        self.simulation.start(self._give_up(place), QUEUE_WAIT_S)
        admitted: bool = yield place
        return admitted

    def _give_up(self, place: Signal) -> Process:
        if not place.happened:
            self._admitted.remove(place)
            place.happen(False)
        return
        yield

    def _leave(self) -> None:
        if self._admitted:
            self._admitted.popleft().happen(True)
        else:
            self._at_work -= 1

    # --- the writer and the lease ---

    def _write_groups(self) -> Process:
        while True:
            if not self._pending:
                self._work = Signal(self.simulation)
                yield self._work
            group = [self._pending.popleft() for _ in range(min(GROUP_LIMIT, len(self._pending)))]
            kinds = [what for what, _ in group]
            sent = Statements(
                begun=kinds.count("begun"),
                ended=kinds.count("ended"),
                short=kinds.count("lease") + kinds.count("lost claim"),
                claims=kinds.count("claim"),
                tenants=8,
            )
            kept = yield from self.database.transact(sent, len(group))
            for _, done in group:
                done.happen(kept)

    def _keep_lease(self) -> Process:
        while self.alive:
            asked_s = self.simulation.now_s
            if (yield from self.write("lease")) and self.alive:
                self.renewed_s = asked_s
            self._note_loss()
            yield self.lease_s / RENEWALS_OF_A_LEASE
            self._note_loss()

    def _note_loss(self) -> None:
        if self.alive and self.simulation.now_s - self.renewed_s > self.lease_s:
            self.counts.leases_lost += 1
            self.renewed_s = self.simulation.now_s
            lost, self.lost = self.lost, Signal(self.simulation)
            lost.happen()
