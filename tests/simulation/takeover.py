"""Runs whose host is gone: a zone of gateways is lost, or the database was away for longer than a lease."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulation.costs import COSTS, Costs
from tests.simulation.events import Process, Simulation
from tests.simulation.gateways import Database, Gateway

_POLL_S = 0.5
_PAGE = 100
_RETRIES_S = (0.1, 0.2, 0.4, 0.8)
"""The pauses of a client between its attempts, without the jitter."""


@dataclass
class Run:
    """A run and who hosts it; `hosts` has all who ever did."""

    host: Gateway | None
    hosts: list[Gateway] = field(default_factory=list)
    hosted_s: float = 0.0


class Runs:
    """The runs of a database, and how gateways look for those without a host."""

    def __init__(self, database: Database, gateways: Sequence[Gateway], each: int) -> None:
        self._database, self._simulation = database, database.simulation
        self.all = [Run(gateway) for _ in range(each) for gateway in gateways]
        self.attempts = 0

    def unhosted(self) -> list[tuple[Run, int]]:
        """Return the page that a gateway reads, each run with its epoch: a lost lease is seen by the time it ends."""
        now_s = self._simulation.now_s
        lost = (run for run in self.all if run.host is None or now_s - run.host.renewed_s > run.host.lease_s)
        return [(run, len(run.hosts)) for run in itertools.islice(lost, _PAGE)]

    def follow(self, gateway: Gateway) -> Process:
        """Look for runs and take them, as WaitingRuns does: one after the other, in an order of its own."""
        costs, chance = self._database.costs, self._simulation.chance
        yield chance.random() * _POLL_S
        while gateway.alive:
            if self._database.up:
                yield costs.read_s + costs.round_trip_s
                found = self.unhosted()
                chance.shuffle(found)
                for run, epoch in found:
                    yield costs.read_s + costs.round_trip_s
                    if len(run.hosts) == epoch:
                        yield costs.read_s + costs.round_trip_s
                        yield from self._claim(gateway, run, epoch)
            yield _POLL_S

    def _claim(self, gateway: Gateway, run: Run, epoch: int) -> Process:
        self.attempts += 1
        # The claim is conditional on the run's epoch, and writers take turns: the first one has it.
        kept = yield from gateway.write("claim" if len(run.hosts) == epoch else "lost claim")
        if kept and len(run.hosts) == epoch and gateway.alive:
            run.host, run.hosted_s = gateway, self._simulation.now_s
            run.hosts.append(gateway)

    def abandon(self, gateway: Gateway) -> Process:
        """End the runs of a gateway whose lease is lost: another one may have them."""
        while True:
            yield gateway.lost
            for run in self.all:
                if run.host is gateway:
                    run.host = None


@dataclass(frozen=True)
class TakenOver:
    """How runs were taken over, in seconds after the loss; `attempts` counts transactions, won or not."""

    gateways: int
    runs: int
    left: int
    twice: int
    median_s: float
    last_s: float
    attempts: int
    longest_lock_queue: int
    longest_queue: int
    p99_before_s: float
    p99_after_s: float
    refused: int


def zone_lost(gateways: int = 30, *, runs_each: int = 50, costs: Costs = COSTS, seconds: float = 60.0) -> TakenOver:
    """Lose a third of the gateways in one moment, while each has a few clients."""
    simulation = Simulation(gateways)
    database = Database(simulation, costs)
    all_ = [Gateway(database) for _ in range(gateways)]
    runs = Runs(database, all_, runs_each)
    _begin(simulation, all_, runs, clients=2)
    simulation.run(10.0)
    lost = all_[: gateways // 3]
    for gateway in lost:
        gateway.alive = False
    at_risk = [run for run in runs.all if run.host in lost]
    return _end(simulation, all_, runs, at_risk, seconds)


def database_back(
    gateways: int = 10, *, runs_each: int = 50, away_s: float = 30.0, costs: Costs = COSTS, seconds: float = 60.0
) -> TakenOver:
    """Have the database away for longer than a lease, and back: clients, runs and leases all come at once."""
    simulation = Simulation(gateways)
    database = Database(simulation, costs)
    all_ = [Gateway(database) for _ in range(gateways)]
    runs = Runs(database, all_, runs_each)
    _begin(simulation, all_, runs, clients=100)
    simulation.run(10.0)
    before = _marked(all_)
    database.up = False
    simulation.run(10.0 + away_s)
    at_risk = [run for run in runs.all if run.host is None]
    database.up = True
    for gateway in all_:
        gateway.counts.taken_s.clear()
    return _end(simulation, all_, runs, at_risk, seconds, before_s=before)


def _begin(simulation: Simulation, gateways: Sequence[Gateway], runs: Runs, clients: int) -> None:
    for gateway in gateways:
        gateway.start()
        simulation.start(runs.follow(gateway))
        simulation.start(runs.abandon(gateway))
        for _ in range(clients):
            simulation.start(_client(simulation, gateway))


def _client(simulation: Simulation, gateway: Gateway) -> Process:
    """Make a call every few seconds, with the retries of the Python client."""
    chance = simulation.chance
    while gateway.alive:
        yield chance.expovariate(1 / 3.0)
        for pause_s in (*_RETRIES_S, 0.0):
            if (yield from gateway.call("writing")):
                break
            yield pause_s * (0.5 + chance.random())


def _marked(gateways: Sequence[Gateway]) -> float:
    taken_s = sorted(taken for gateway in gateways for taken in gateway.counts.taken_s)
    return taken_s[int(len(taken_s) * 0.99)]


def _end(
    simulation: Simulation,
    gateways: Sequence[Gateway],
    runs: Runs,
    at_risk: Sequence[Run],
    seconds: float,
    before_s: float | None = None,
) -> TakenOver:
    began_s, before_s = simulation.now_s, _marked(gateways) if before_s is None else before_s
    runs.attempts = 0
    simulation.run(began_s + seconds / 2)
    for gateway in gateways:
        gateway.counts.taken_s.clear()
    simulation.run(began_s + seconds)
    taken_s = [run.hosted_s - began_s for run in at_risk if run.hosts] or [0.0]
    return TakenOver(
        gateways=len(gateways),
        runs=len(at_risk),
        left=sum(run.host is None or not run.host.alive for run in runs.all),
        twice=sum(len(run.hosts) > 1 for run in at_risk),
        median_s=statistics.median(taken_s),
        last_s=max(taken_s),
        attempts=runs.attempts,
        longest_lock_queue=gateways[0].database.lock.longest,
        longest_queue=max(gateway.counts.longest_queue for gateway in gateways),
        p99_before_s=before_s,
        p99_after_s=_marked([gateway for gateway in gateways if gateway.alive]),
        refused=sum(gateway.counts.refused for gateway in gateways),
    )
