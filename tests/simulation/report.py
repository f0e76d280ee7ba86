"""The tables of docs/capacity.md, by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tests.simulation.burst import burst
from tests.simulation.calls import Carried, carried
from tests.simulation.costs import COSTS
from tests.simulation.ends import CELL, CELLS_OF_A_CLUSTER, RESOURCES, lock_calls_per_s, nodes
from tests.simulation.takeover import TakenOver, database_back, zone_lost

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _share(part: float) -> str:
    return f"{part * 100:.1f} %" if part < 0.1 else f"{part * 100:,.0f} %"


def _seconds(taken_s: float) -> str:
    return f"{taken_s * 1000:.0f} ms" if taken_s < 1 else f"{taken_s:.1f} s"


def ends() -> str:
    """What ends first."""
    cells = 1000 / CELL
    columns = ((1, 1, 1), (10, 1, 1), (1000, 1, 1), (1000, cells, cells / CELLS_OF_A_CLUSTER))
    head = ("resource", "one carries", "1 gateway", "10", "1,000", f"1,000, in {cells:.0f} cells")
    rows = []
    for resource in RESOURCES:
        shares = [resource.used(*column) for column in columns]
        shown = [f"**{_share(share)}**" if share > 1 else _share(share) for share in shares]
        rows.append((resource.name, resource.limit.format(lock=lock_calls_per_s()), *shown))
    return _table(head, rows)


def calls() -> str:
    """What gateways carry at most."""
    head = ("gateways", "clients of each", "calls/s", "p50", "p99", "gateway busy", "lock busy", "leases lost in 6 s")
    asked: Sequence[tuple[str, Carried, str]] = (
        *((f"{count}", carried(count), "16") for count in (1, 2, 4, 10, 100)),
        ("10", carried(10, clients=50, pause_s=2.5), "50, with pauses of 2.5 s"),
        ("10", carried(10, clients=50, pause_s=1.2), "50, with pauses of 1.2 s"),
        ("1,000", carried(1000, clients=4), "4"),
        ("1,000, `lease_s: 60`", carried(1000, clients=4, lease_s=60.0), "4"),
    )
    return _table(head, [_carried(name, one, clients) for name, one, clients in asked])


def _carried(name: str, one: Carried, clients: str) -> Sequence[str]:
    busy = (_share(min(1.0, share)) for share in (one.gateway_busy, one.lock_busy))
    return (
        name,
        clients,
        f"{one.calls_per_s:,.0f}",
        _seconds(one.p50_s),
        _seconds(one.p99_s),
        *busy,
        f"{one.leases_lost}",
    )


def distances() -> str:
    """What the database's distance and disk do."""
    head = ("round trip", "disk's sync", "10 gateways carry, calls/s")
    rows = []
    for trip_s, sync_s in (
        (0.05e-3, 1e-3),
        (0.2e-3, 0.2e-3),
        (0.2e-3, 1e-3),
        (0.2e-3, 5e-3),
        (1e-3, 1e-3),
        (5e-3, 1e-3),
    ):
        one = carried(10, costs=replace(COSTS, round_trip_s=trip_s, sync_s=sync_s))
        rows.append((f"{trip_s * 1000:g} ms", f"{sync_s * 1000:g} ms", f"{one.calls_per_s:,.0f}"))
    return _table(head, rows)


def bursts() -> str:
    """500 claims at once."""
    head = ("500 claims", "watch is late by", "pooled", "creations", "of claims", "conflicts", "writes", "p50", "last")
    rows = []
    for how, lag_s, pool in (
        ("compare-and-swap", 0.1, 0),
        ("compare-and-swap", 0.1, 100),
        ("compare-and-swap", 0.1, 500),
        ("compare-and-swap", 2.0, 100),
        ("stale cache", 0.1, 100),
        ("stale cache", 2.0, 100),
    ):
        one = burst(how, pool=pool, costs=replace(COSTS, watch_lag_s=lag_s))  # type: ignore[arg-type]
        counts = (f"{one.creations:,}", f"{one.creations / one.claims:.2f}", f"{one.conflicts:,}", f"{one.writes:,}")
        rows.append((how, f"{lag_s:g} s", f"{pool}", *counts, _seconds(one.p50_s), _seconds(one.last_s)))
    return _table(head, rows)


def losses() -> str:
    """Takeovers."""
    head = (
        "what happens",
        "runs",
        "half go on after",
        "the last after",
        "claims tried",
        "lost or twice",
        "calls in a queue",
    )
    asked: Mapping[str, TakenOver] = {
        "one of 3 gateways is lost": zone_lost(3),
        "a third of 10 gateways is lost": zone_lost(10),
        "a third of 30 gateways is lost": zone_lost(30),
        "10 gateways, the database is away for 30 s": database_back(10),
    }
    return _table(
        head,
        [
            (
                name,
                f"{one.runs}",
                _seconds(one.median_s),
                _seconds(one.last_s),
                f"{one.attempts:,}",
                f"{one.left + one.twice}",
                f"{one.longest_queue}",
            )
            for name, one in asked.items()
        ],
    )


def sandboxes() -> str:
    """What fits a node."""
    head = ("sandboxes are", "by Pods", "by memory", "by process ids", "a node has")
    return _table(
        head,
        [(one.working, f"{one.by_pods}", f"{one.by_memory:,}", f"{one.by_pids:,}", f"{one.fits}") for one in nodes()],
    )


TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"ends": ends, "calls": calls, "distances": distances, "bursts": bursts, "losses": losses, "sandboxes": sandboxes}
)


def place_of(name: str) -> re.Pattern[str]:
    """Return what matches a table on the page: the lines that follow its mark."""
    return re.compile(rf"(?<=<!-- table: {name} -->\n\n)(?:\|.*\n)*")


def written(page: str) -> str:
    """Return the page with the tables as the model gives them."""
    for name, table in TABLES.items():
        page = place_of(name).sub(lambda _, table=table: f"{table()}\n", page)  # type: ignore[misc]
    return page
