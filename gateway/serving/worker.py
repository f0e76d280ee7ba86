"""Identifies one process of an `airlock serve` with several workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Worker:
    """The worker `index`, from 0, of `count`. A supervised one has a parent that locks the state directory."""

    index: int = 0
    count: int = 1
    supervised: bool = False
