"""Worker: which of the processes of one `airlock serve` this is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Worker:
    """The worker `index`, from 0 on, of `count`. A supervised one has a parent that holds the state directory."""

    index: int = 0
    count: int = 1
    supervised: bool = False
