"""Quantities of resources: `500m`, `1Gi`."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {
    "": 1, "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": 10**3, "M": 10**6, "G": 10**9,
    "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def quantity(text: str | float) -> Decimal:
    """Return a quantity's number, or raise ValueError."""
    found = re.fullmatch(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([A-Za-z]*)", str(text))
    if not found or found[2] not in _UNITS:
        raise ValueError(f"quantities must match the regular expression, not {text!r}")
    return Decimal(found[1]) * _UNITS[found[2]]
