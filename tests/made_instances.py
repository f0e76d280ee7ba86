"""The record of what tests make in Docker: should a test be killed, `make clean` removes what it left, and no more."""

from __future__ import annotations

from pathlib import Path

_RECORD = Path(__file__).parents[1] / ".build" / "instances"


def record_instance(instance: str) -> str:
    """Record the label airlock.instance of what a test makes, and return it."""
    _RECORD.parent.mkdir(exist_ok=True)
    with _RECORD.open("a", encoding="ascii") as file:
        file.write(f"{instance}\n")
    return instance
