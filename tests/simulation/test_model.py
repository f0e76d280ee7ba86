"""docs/capacity.md has the model's tables, and what the model must never show does not happen in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import report
from tests.simulation.burst import burst
from tests.simulation.calls import carried
from tests.simulation.costs import CLAIM_WRITES, COSTS, CREATION_WRITES
from tests.simulation.ends import CELL, RESOURCES
from tests.simulation.events import Process, Server, Simulation
from tests.simulation.gateways import QUEUE
from tests.simulation.takeover import database_back, zone_lost


@pytest.mark.parametrize("name", report.TABLES)
def test_the_page_has_the_table_that_the_model_gives(name: str) -> None:
    found = report.place_of(name).search(report.PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"docs/capacity.md has no place for it: <!-- table: {name} -->"
    assert found[0] == f"{report.TABLES[name]()}\n", "python -m tests.simulation --write puts the new figures there"


def test_a_queue_is_served_in_order_and_the_same_seed_gives_the_same_run() -> None:
    simulation = Simulation(1)
    server, ended = Server(simulation, 2), list[tuple[float, int]]()

    def customer(number: int) -> Process:
        yield from server.serve(1.0)
        ended.append((simulation.now_s, number))

    for number in range(5):
        simulation.start(customer(number))
    simulation.run(10.0)
    assert ended == [(1.0, 0), (1.0, 1), (2.0, 2), (2.0, 3), (3.0, 4)]
    assert (server.longest, server.utilization(10.0)) == (3, 0.25)
    assert carried(2) == carried(2)


@pytest.mark.parametrize("lag_s", [0.1, 2.0])
@pytest.mark.parametrize("pool", [0, 100, 500])
def test_claims_by_compare_and_swap_make_no_more_than_is_claimed(lag_s: float, pool: int) -> None:
    one = burst("compare-and-swap", pool=pool, costs=replace(COSTS, watch_lag_s=lag_s))
    assert one.served == one.claims, "each thread has a Pod of its own"
    assert one.creations <= 1.1 * one.claims
    assert one.surplus == 0, "the pool is as large as before"
    pooled = one.claims - (one.creations - min(pool, one.claims))
    most = sum(CLAIM_WRITES.values()) * one.claims + sum(CREATION_WRITES.values()) * one.creations + one.conflicts
    assert one.writes <= most, pooled
    peer = burst("stale cache", pool=100, costs=replace(COSTS, watch_lag_s=lag_s))
    assert peer.creations > 1.1 * peer.claims


@pytest.mark.parametrize("gateways", [3, 10, 30])
def test_the_runs_of_a_lost_zone_are_each_taken_over_once(gateways: int) -> None:
    one = zone_lost(gateways)
    assert one.runs > 0
    assert (one.left, one.twice) == (0, 0)
    assert one.longest_lock_queue < gateways, "each gateway has one transaction at a time"


def test_after_the_database_was_away_every_run_goes_on_and_queues_are_bounded() -> None:
    one = database_back(10)
    assert one.runs == 500, "every lease was lost"
    assert (one.left, one.twice) == (0, 0)
    assert one.longest_lock_queue < 10
    assert one.longest_queue <= QUEUE


def test_admission_bounds_the_queue_of_an_overloaded_gateway() -> None:
    one = carried(1, clients=QUEUE + 200)
    assert 0 < one.longest_queue <= QUEUE
    assert one.gateway_busy > 0.95


def test_a_cell_is_within_every_limit_and_a_thousand_gateways_on_one_database_are_not() -> None:
    cell = {resource.name: resource.used(CELL, 1, 1) for resource in RESOURCES}
    assert max(cell.values()) < 0.8, cell
    thousand = {resource.name: resource.used(1000, 1, 1) for resource in RESOURCES}
    assert max(thousand.values()) > 10, thousand
    cells = {resource.name: resource.used(1000, 1000 / CELL, 1000 / CELL / 5) for resource in RESOURCES}
    assert max(cells.values()) < 0.8, cells
