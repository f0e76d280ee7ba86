"""What the host's kernel can do at all: a sandbox is not refused for what no sandbox here could have."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

# The same number on every architecture; asked for its version it makes nothing.
_LANDLOCK_CREATE_RULESET = 444
_CREATE_RULESET_VERSION = 1
# The first version in which files may be moved between directories inside a domain; Linux 5.19.
_WANTED_LANDLOCK = 2


@dataclass(frozen=True)
class HostKernel:
    """`swap_limited`: control groups limit swap. `landlock`: processes can be kept from writing under /proc."""

    swap_limited: bool = True
    landlock: bool = True


def has_landlock() -> bool:
    """Return whether the kernel of this machine offers Landlock, and this process may ask it."""
    libc = ctypes.CDLL(None)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION))
    return int(version) >= _WANTED_LANDLOCK
