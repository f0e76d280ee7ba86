"""Steady calls: what so many gateways on one database carry at most, and what is busy then."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tests.simulation.costs import COSTS, Costs
from tests.simulation.events import Process, Simulation
from tests.simulation.gateways import Database, Gateway

_WARM_S, _SECONDS = 2.0, 6.0


@dataclass(frozen=True)
class Carried:
    """What a number of gateways carried; shares are of the busiest second-long use, 1.0 is all of it."""

    gateways: int
    calls_per_s: float
    p50_s: float
    p99_s: float
    gateway_busy: float
    lock_busy: float
    leases_lost: int
    failed: int
    writes_of_a_transaction: float
    longest_queue: int


def carried(
    gateways: int,
    *,
    clients: int = 16,
    pause_s: float = 0.0,
    lease_s: float = 5.0,
    reading: float = 0.5,
    costs: Costs = COSTS,
) -> Carried:
    """Have `clients` of each gateway call again and again, that share of it reading, with pauses of that mean."""
    seconds = _SECONDS
    simulation = Simulation(gateways)
    database = Database(simulation, costs)
    all_ = [Gateway(database, lease_s=lease_s) for _ in range(gateways)]
    chance = simulation.chance

    def client(gateway: Gateway) -> Process:
        yield chance.random() * (2 * pause_s or 0.1)
        while True:
            if not (yield from gateway.call("reading" if chance.random() < reading else "writing")):
                yield 0.1 + chance.random()
            if pause_s:
                yield chance.expovariate(1 / pause_s)

    for gateway in all_:
        gateway.start()
        for _ in range(clients):
            simulation.start(client(gateway))
    simulation.run(_WARM_S)
    for gateway in all_:
        gateway.counts.done = 0
        gateway.counts.taken_s.clear()
        gateway.loop.busy_s = 0.0
    database.lock.busy_s, database.transactions, database.writes = 0.0, 0, 0
    simulation.run(_WARM_S + seconds)
    taken_s = sorted(taken for gateway in all_ for taken in gateway.counts.taken_s) or [seconds]
    return Carried(
        gateways,
        sum(gateway.counts.done for gateway in all_) / seconds,
        statistics.median(taken_s),
        taken_s[int(len(taken_s) * 0.99)],
        statistics.mean(gateway.loop.utilization(seconds) for gateway in all_),
        database.lock.utilization(seconds),
        sum(gateway.counts.leases_lost for gateway in all_),
        sum(gateway.counts.failed for gateway in all_),
        database.writes / max(1, database.transactions),
        max(gateway.counts.longest_queue for gateway in all_),
    )
