"""A gateway that notes each statement that it sends to its database; `changed_by` has one served.

SQLAlchemy's events show what goes to PostgreSQL. Prepared statements reach SQLite without them, so there the driver
traces its connections.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATEMENTS_FILE = "AIRLOCK_STATEMENTS"
LOCK = "lock"
"""PostgreSQL's lock for writers; SQLite has it from `BEGIN IMMEDIATE`."""

_WHAT = re.compile(
    r'\s*(?:(?P<verb>INSERT INTO|INSERT OR \w+ INTO|UPDATE|DELETE FROM)\s+"?(?P<table>\w+)'
    r'|(?:WITH|SELECT)\b.*?\bFROM\s+"?(?P<read>\w+)'
    r"|(?P<control>BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE))",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Statement:
    """One statement: when, by which thread of the gateway, and what, such as `insert tool_calls`."""

    at_ns: int
    thread: str
    what: str


def what(text: str) -> str | None:
    """Return a statement as its verb and table; None for what needs no answer of its own, such as a trigger's."""
    if "pg_advisory_xact_lock" in text:
        return LOCK
    found = _WHAT.match(text)
    if found is None:
        return None
    if found["control"]:
        return found["control"].lower()
    if found["read"]:
        return f"select {found['read']}"
    return f"{found['verb'].split()[0].lower()} {found['table']}"


def read(path: Path) -> Sequence[Statement]:
    """Return what a gateway noted so far."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Statement(*json.loads(line)) for line in lines if line.endswith("]")]


def of_each(statements: Iterable[Statement], windows: Sequence[tuple[int, int]]) -> Counter[str]:
    """Return what happened in every window, as often as in the one with the fewest: the background is not in all."""
    counts = [Counter[str]() for _ in windows]
    for one in statements:
        for (began_ns, ended_ns), count in zip(windows, counts, strict=True):
            if began_ns <= one.at_ns <= ended_ns:
                count[one.what] += 1
    least = counts[0]
    for count in counts[1:]:
        least &= count
    return least


def _airlock() -> None:
    from sqlalchemy import Engine, event

    from gateway.cli.main import main

    notes = Path(os.environ[STATEMENTS_FILE]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - to the end

    def note(text: str) -> None:
        if (said := what(text)) is not None:
            notes.write(json.dumps([time.perf_counter_ns(), threading.current_thread().name, said]) + "\n")

    def connected(connection: Any, _record: object) -> None:
        if hasattr(connection, "set_trace_callback"):
            before = ""

            def traced(text: str) -> None:
                nonlocal before
                if text != before:  # a trigger's statements are shown as the one that set it off
                    note(text)
                before = text

            connection.set_trace_callback(traced)

    def executed(_connection: Any, _cursor: Any, text: str, _parameters: Any, context: Any, _many: bool) -> None:
        if context.dialect.name != "sqlite":
            note(text)

    def committed(connection: Any) -> None:
        if connection.dialect.name != "sqlite":
            note("COMMIT")

    event.listen(Engine, "connect", connected)
    event.listen(Engine, "before_cursor_execute", executed)
    event.listen(Engine, "commit", committed)
    main()


if __name__ == "__main__":
    import sys

    del sys.argv[1]
    _airlock()
