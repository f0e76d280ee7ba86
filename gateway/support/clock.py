"""The time, injected so that tests can control it, and ids."""

import secrets
import time
from collections.abc import Callable

NowUs = Callable[[], int]


def now_us() -> int:
    """Return UTC microseconds since 1970."""
    return time.time_ns() // 1000


def make_id(kind: str) -> str:
    """Return a new id such as run_1f0c..., 96 random bits."""
    return f"{kind}_{secrets.token_hex(12)}"
