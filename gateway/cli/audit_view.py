"""Audit records for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from gateway.cli.printable import one_line
from gateway.cli.rows import Rows

if TYPE_CHECKING:
    from gateway.audit_chain.record import AuditRecord

_STYLES = {"deny": "red", "ask": "yellow", "allow": "green"}


def as_document(record: AuditRecord) -> dict[str, Any]:
    """Return a record as JSON; verifying records needs `airlock audit export`."""
    fields = asdict(record)
    return {
        **fields,
        "at": _time(record.at_us),
        "duration_ms": record.duration_us / 1000,
        "details": json.loads(record.details),
    }


def listed(records: Sequence[AuditRecord]) -> Rows:
    """Return records as rows."""
    names = ("#", "at", "kind", "actor", "what", "verdict", "outcome", "details")
    return Rows(names, [(str(record.sequence), *_cells(record)) for record in records])


def line(record: AuditRecord) -> Text:
    """Return a record as a line."""
    return Text(" ").join([Text(f"{record.sequence:>6}"), *(cell for cell in _cells(record) if cell.plain)])


def _cells(record: AuditRecord) -> list[Text]:
    rule = f" by {record.rule}" if record.rule else ""
    whose = " ".join(part for part in (record.tool, record.thread and f"in {record.thread}", record.run_id) if part)
    details = ", ".join(f"{name} {value}" for name, value in json.loads(record.details).items())
    cells = (_time(record.at_us), record.kind, record.actor, whose)
    return [
        *(Text(one_line(cell)) for cell in cells),
        Text(one_line(f"{record.verdict}{rule}") if record.verdict else "", style=_STYLES.get(record.verdict, "")),
        Text(one_line(record.outcome)),
        Text(one_line(details), style="dim"),
    ]


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds")
