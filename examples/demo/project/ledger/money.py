"""Amounts of money: text outside, whole cents inside."""


def parse_cents(text: str) -> int:
    """Return the cents in a text such as "1,234.50" or "-12.05". Raises ValueError for anything else."""
    whole, point, fraction = text.strip().replace(",", "").partition(".")
    if point and len(fraction) != 2:
        raise ValueError(f"{text!r} is not an amount: write two digits after the point")
    units, cents = int(whole), int(fraction or 0)
    return units * 100 - cents if units < 0 else units * 100 + cents


def format_cents(cents: int) -> str:
    """Return the text of an amount, with thousands separated."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100:,}.{abs(cents) % 100:02d}"
