"""Addresses of Pods: each has its own of loopback, which on Linux is all of 127.0.0.0/8."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Generator

# A socket on each block's last address keeps clusters of other processes out of it.
_MARK = 61_999


def pod_addresses() -> Generator[str, None, None]:
    """Yield addresses that no other cluster on this machine uses until this is closed."""
    with contextlib.ExitStack() as marks:
        while True:
            block = f"127.{random.randint(64, 254)}.{random.randint(0, 255)}"
            mark = marks.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                mark.bind((f"{block}.254", _MARK))
            except OSError:
                continue
            for last in range(1, 254):
                yield f"{block}.{last}"
