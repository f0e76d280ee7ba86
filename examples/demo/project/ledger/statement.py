"""Statements: the balance of an account before a period, what moved in it, and the balance after."""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.entries import Entry
from ledger.money import format_cents


@dataclass(frozen=True)
class Statement:
    """A period of an account; both days belong to it."""

    first_day: dt.date
    last_day: dt.date
    opening_cents: int
    entries: tuple[Entry, ...]

    @property
    def closing_cents(self) -> int:
        """What the account holds at the end of the last day."""
        return self.opening_cents + sum(entry.cents for entry in self.entries)


def make_statement(entries: Iterable[Entry], first_day: dt.date, last_day: dt.date) -> Statement:
    """Return the statement from the first day to the last day, both included."""
    ordered = sorted(entries, key=lambda entry: entry.day)
    opening_cents = sum(entry.cents for entry in ordered if entry.day < first_day)
    inside = tuple(entry for entry in ordered if first_day <= entry.day < last_day)
    return Statement(first_day, last_day, opening_cents, inside)


def render(statement: Statement) -> str:
    """Return the statement as a person reads it."""
    lines = [f"{statement.first_day} to {statement.last_day}", f"opening {format_cents(statement.opening_cents):>14}"]
    lines += [f"{entry.day} {format_cents(entry.cents):>11}  {entry.memo}" for entry in statement.entries]
    return "\n".join([*lines, f"closing {format_cents(statement.closing_cents):>14}"])
