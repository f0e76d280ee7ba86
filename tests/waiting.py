"""Waiting for what happens in another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within_s: float) -> bool:
    """Return whether the condition came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
