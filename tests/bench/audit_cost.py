"""What the audit costs a call: `execute true` with and without its record, in turn, through one gateway and sandbox.

Calls whose limit is 6 s are those without: the gateway of this bench makes no entry of them, and writes none. All else
is the same, the journal too. PostgreSQL runs without fsync, so that its commits, which both kinds have, hide nothing.

    python -m tests.bench.audit_cost
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from rich.table import Table
from sqlalchemy import Connection

from gateway.client import Client
from tests import gateway_process
from tests.bench.changed_gateway import changed_by, run
from tests.gateway_process import Home, make_home, served
from tests.postgres import NoPostgres, running_postgres

_WITH: dict[str, Any] = {"command": "true", "timeout_s": 5}
_WITHOUT: dict[str, Any] = {"command": "true", "timeout_s": 6}
_WARMUP, _PAIRS = 20, 300
_CALLERS = (8, 64)
_BLOCKS, _BLOCK_S = 4, 1.0


def _digest(arguments: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(arguments, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _airlock() -> None:
    """Be `airlock`, but for the calls without a record."""
    from gateway.cli.main import main
    from gateway.storage.audit_store import AuditEntry, AuditStore
    from gateway.tool_calls import journal

    none = AuditEntry("", "none")
    dropped = _digest(_WITHOUT)
    entry, append = journal.call_entry, AuditStore.append

    def call_entry(thread: Any, tool: Any, row: Any, ended: Any, **more: Any) -> AuditEntry:
        return none if row["arguments_digest"] == dropped else entry(thread, tool, row, ended, **more)

    def append_some(self: AuditStore, connection: Connection, *entries: AuditEntry) -> None:
        if not (entries and entries[0] is none):
            append(self, connection, *entries)

    with mock.patch.object(journal, "call_entry", call_entry), mock.patch.object(AuditStore, "append", append_some):
        main()


async def _call_ms(airlock: Client, arguments: dict[str, Any], thread: str = "t") -> float:
    started = time.perf_counter()
    await airlock.call_tool("execute", arguments, thread=thread)
    return (time.perf_counter() - started) * 1000


async def _calls_per_s(airlock: Client, arguments: dict[str, Any], callers: int) -> float:
    end = time.perf_counter() + _BLOCK_S
    done = 0

    async def one(n: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await _call_ms(airlock, arguments, f"t{n % 4}")
            done += 1

    await asyncio.gather(*(one(n) for n in range(callers)))
    return done / _BLOCK_S


async def _rows(address: str, key: str) -> list[tuple[str, float, float]]:
    rows = []
    async with Client(address, key) as airlock:
        taken: list[tuple[float, float]] = []
        for n in range(_WARMUP + _PAIRS):
            first, second = (_WITH, _WITHOUT) if n % 2 else (_WITHOUT, _WITH)
            pair = (await _call_ms(airlock, first), await _call_ms(airlock, second))
            if n >= _WARMUP:
                taken.append(pair if n % 2 else (pair[1], pair[0]))
        for name, at in (("p50 of a call, ms", 50), ("p95 of a call, ms", 95)):
            reported = [statistics.quantiles(values, n=100)[at - 1] for values in zip(*taken, strict=True)]
            rows.append((name, reported[0], reported[1]))
        for callers in _CALLERS:
            for n in range(4):
                await _call_ms(airlock, _WITH, f"t{n}")
            blocks = [
                (await _calls_per_s(airlock, _WITH, callers), await _calls_per_s(airlock, _WITHOUT, callers))
                for _ in range(_BLOCKS)
            ]
            with_, without = (statistics.median(values) for values in zip(*blocks, strict=True))
            rows.append((f"calls/s, {callers} callers", with_, without))
        found = await airlock.verify_audit()
        if not found.whole:
            raise RuntimeError(f"the chain is broken: {found}")
        rows.append(("records in the chain, whole", found.records, 0))
    return rows


@contextlib.contextmanager
def _databases() -> Iterator[dict[str, str | None]]:
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(stack.enter_context(running_postgres()).database())
        except NoPostgres as missing:
            print(f"SQLite only: {missing}", file=sys.stderr)
            yield {"SQLite": None}
            return
        yield {"SQLite": None, "PostgreSQL": url}


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    made = []
    with (
        _databases() as databases,
        changed_by("tests.bench.audit_cost"),
    ):
        for name, url in databases.items():
            with tempfile.TemporaryDirectory() as directory:
                home = make_home(Path(directory))
                if url is not None:
                    home.configure(database_url=url)
                key = _key(home)
                with served(home) as gateway:
                    rows = await _rows(gateway.address, key)
            made.append(_table(name, rows))
    return made


def _table(database: str, rows: list[tuple[str, float, float]]) -> Table:
    title = f"execute true with and without its record in the audit, {database}"
    table = Table("what", "with", "without", "ratio", "goal", title=title, box=None, header_style="bold")
    for what, with_, without in rows:
        goal = "<= 1.10" if what.startswith("p50") else ">= 0.90" if what.startswith("calls") else ""
        ratio = f"{with_ / without:.3f}" if without else ""
        table.add_row(what, f"{with_:,.2f}", f"{without:,.2f}" if without else "", ratio, goal)
    return table


def _key(home: Home) -> str:
    made = gateway_process.airlock(
        *("key", "create", "--tenant", "default", "--scope", "tool", "--scope", "audit"),
        *("--config", str(home.config), "--json"),
    )
    return str(json.loads(made.stdout)["key"])


if __name__ == "__main__":
    run(_airlock, tables)
