"""A year of entries as a bank exports them. Made up, and the same every time."""

import datetime as dt
from collections.abc import Iterator

ENTRIES = 4800

_KINDS = (
    ("groceries", "corner shop"),
    ("transport", "city tram"),
    ("books", "second-hand books"),
    ("coffee", "espresso bar"),
    ("rent", "share of the rent"),
)


def bank_year() -> Iterator[tuple[str, int]]:
    """Yield each line of the export with the balance in cents that the bank states after it."""
    balance_cents = 0
    for number in range(ENTRIES):
        day = dt.date(2024, 1, 1) + dt.timedelta(days=number * 366 // ENTRIES)
        category, memo = _KINDS[number % len(_KINDS)]
        units, cents, sign = 1 + number * 7 % 40, number * 31 % 100, "-"
        if number % 4 == 0:
            category, memo, units, sign = "income", "invoice paid", units + 90, ""
        if number == ENTRIES // 2 + 7:
            category, memo, units, cents = "fees", "bank charge", 0, 35
        balance_cents += (units * 100 + cents) * (-1 if sign else 1)
        yield f"{day};{category};{sign}{units}.{cents:02d};{memo}", balance_cents
