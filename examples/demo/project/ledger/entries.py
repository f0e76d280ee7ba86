"""Entries: one line of a bank's export each."""

import datetime as dt
from dataclasses import dataclass

from ledger.money import parse_cents


@dataclass(frozen=True)
class Entry:
    """Money that moved on a day; negative cents went out."""

    day: dt.date
    category: str
    cents: int
    memo: str


def parse_entry(line: str) -> Entry:
    """Read "2024-05-31;groceries;-12.05;corner shop". Raises ValueError when the line is something else."""
    fields = line.strip().split(";")
    if len(fields) != 4:
        raise ValueError(f"{line!r} has {len(fields)} fields, not 4: day;category;amount;memo")
    day, category, amount, memo = fields
    return Entry(dt.date.fromisoformat(day), category, parse_cents(amount), memo)


def parse_export(text: str) -> list[Entry]:
    """Read a whole export; empty lines and lines that start with # are skipped."""
    lines = (line.strip() for line in text.splitlines())
    return [parse_entry(line) for line in lines if line and not line.startswith("#")]
