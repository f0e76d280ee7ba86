"""`make soak`: half an hour at twice what the gateway can do, and then everything must be as it was.

    load      calls of 32 tenants at twice the rate that was measured first: commands, files, calls that are cancelled,
              runs, watchers that hardly read, sandboxes that are killed
    verdict   as many calls are served as without the overload, or nearly, and of tenants that ask for the same none
              gets much less than another; every other one is refused with OVERLOADED
              and a time, but for those whose sandbox was killed; no journal row is left executing, no run's events
              have a gap, every audit chain verifies, no container is left, the gateway's memory does not grow

`python -m tests.bench.soak --minutes 5` is the same, shorter. It exits 1 when something was not true.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.storage.audit_reader import AuditReader
from gateway.storage.database import Database
from tests.bench.fleet import Fleet, fleet
from tests.bench.soak_load import SLOW_READERS, THREADS_OF_A_TENANT, Load, Seen
from tests.docker_state import containers_of

_TENANTS = 32
_LOAD = 2.0
_MIB = 1024 * 1024
# Of the capacity, how much must be served at twice the load; refusals and our own generator take their part.
_GOODPUT_LEAST = 0.7
# Of what the most served of equal tenants got, how much the least served must have; chance has its part in either.
_FAIR_LEAST = 0.6
# Of fewer calls of a tenant chance says more than the gateway.
_FAIR_CALLS = 100
# Growth of the gateway's memory over the second half, for the whole of it.
_GROWTH_LIMIT_BYTES = 24 * _MIB
# One script for all runs of a thread.
_TURNS = [Turn(say="Let me look.", calls=[Call("execute", {"command": "echo looked"})]), Turn(say="done")] * 2000


def _growth_bytes(rss: Sequence[tuple[float, int]]) -> float:
    """Return by how much the memory grew over the second half, by the line of least squares through it."""
    half = rss[len(rss) // 2 :]
    mean_s, mean = (sum(column) / len(half) for column in zip(*half, strict=True))
    spread = sum((at - mean_s) ** 2 for at, _ in half)
    slope = sum((at - mean_s) * (size - mean) for at, size in half) / spread if spread else 0.0
    return slope * (half[-1][0] - half[0][0])


def _database(all_: Fleet) -> Path:
    return all_.home.config.parent / "state" / "airlock.db"


def _stored_wrong(all_: Fleet) -> list[str]:
    """Return what the database says that must not be, once the gateway has ended."""
    with contextlib.closing(sqlite3.connect(_database(all_))) as database:
        executing = database.execute("SELECT count(*) FROM tool_calls WHERE state = 'executing'").fetchone()[0]
        # One that is handed over waits for the next gateway, and belongs to none.
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


async def _audit_wrong(all_: Fleet) -> list[str]:
    database = await Database.open(f"sqlite:///{_database(all_)}")
    try:
        reader = AuditReader(database)
        reports = {tenant: await reader.verified(tenant) for tenant in all_.clients}
    finally:
        await database.close()
    return [f"audit of {tenant}: {report.problem}" for tenant, report in reports.items() if not report.whole]


def _seen_wrong(seen: Seen, capacity: float, seconds: float) -> list[str]:
    """Return what the load saw that must not be, and print what it saw."""
    for end, count in sorted(seen.ends.items()):
        print(f"{count:>9,}  {end}")
    goodput = seen.served() / seconds
    cuts = statistics.quantiles(seen.served_s, n=100) if len(seen.served_s) > 1 else [0.0] * 99
    print(
        f"served {goodput:,.0f} calls/s, {goodput / capacity:.2f} of the capacity; p50 {cuts[49]:.2f} s, "
        f"p99 {cuts[98]:.2f} s"
    )
    growth, sizes = _growth_bytes(seen.rss), [size for _, size in seen.rss]
    print(
        f"memory {sizes[0] / _MIB:.0f} MiB at the start, {max(sizes) / _MIB:.0f} at most, {sizes[-1] / _MIB:.0f} at "
        f"the end; growth over the second half {growth / _MIB:.1f} MiB; sandboxes killed {seen.kills}"
    )
    wrong = [f"{count} times: {fault}" for fault, count in Counter(seen.faults).most_common(10)]
    wrong += _unfair(seen, seconds)
    if growth > _GROWTH_LIMIT_BYTES:
        wrong.append(f"memory grew by {growth / _MIB:.0f} MiB over the second half")
    if goodput < _GOODPUT_LEAST * capacity:
        wrong.append(f"served {goodput / capacity:.2f} of the capacity, {_GOODPUT_LEAST} is the least")
    if not seen.ends["work: OVERLOADED"]:
        wrong.append("no call was refused at twice the capacity: it was no overload, or calls waited without end")
    if slow := sum(count for end, count in seen.ends.items() if "our" in end):
        wrong.append(f"{slow} calls had neither an answer nor a refusal in time")
    return wrong


def _unfair(seen: Seen, seconds: float) -> list[str]:
    """Return whether tenants that asked for the same got much less than others, and print what each got."""
    if len(seen.served_of) < 2:
        return []
    ranked = seen.served_of.most_common()
    (best, most), (worst, least) = ranked[0], ranked[-1]
    print("calls/s of each: " + "  ".join(f"{tenant} {count / seconds:.2f}" for tenant, count in ranked))
    share = least / max(1, most)
    print(f"of {len(ranked)} equal tenants the least served ({worst}) had {share:.2f} of the most served ({best})")
    if most < _FAIR_CALLS or share >= _FAIR_LEAST:
        return []
    return [f"{worst} was served {share:.2f} of what {best} was, {_FAIR_LEAST} is the least"]


async def soak(minutes: float, tenants: int, workers: int, seed: int) -> list[str]:
    """Return what was not true at the end."""
    options = () if workers == 1 else ("--workers", str(workers))
    wrong: list[str] = []

    def stored(ended: Fleet) -> None:
        wrong.extend((*_stored_wrong(ended), *asyncio.run(_audit_wrong(ended))))

    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModelServer(_TURNS))
        all_ = await stack.enter_async_context(
            fleet(
                tenants,
                *options,
                env={"OPENAI_API_KEY": "none"},
                at_end=stored,
                model={"base_url": model.base_url, "name": "scripted"},
                sandbox={"max_live": tenants * THREADS_OF_A_TENANT + SLOW_READERS + 4},
            )
        )
        load = Load(all_, seed)
        await load.warm()
        capacity = await load.capacity()
        print(f"capacity {capacity:,.0f} calls/s; load {capacity * _LOAD:,.0f} calls/s for {minutes:g} min", flush=True)
        seen = await load.run(capacity * _LOAD, minutes * 60)
        after = await load.capacity()
        print(f"capacity {after:,.0f} calls/s afterwards")
        # A machine that others use as well is not equally fast at both ends.
        capacity = (capacity + after) / 2
        instance = all_.home.instance
        code = all_.gateway.process.poll()
    wrong = [*_seen_wrong(seen, capacity, minutes * 60), *wrong]
    if code is not None:
        wrong.append(f"the gateway ended by itself, with {code}")
    if left := containers_of(instance):
        wrong.append(f"containers left: {len(left)}")
    return wrong


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
