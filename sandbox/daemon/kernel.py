"""The kernel that the sandbox runs on."""

from __future__ import annotations

import os

# gVisor's kernel reported this version for years, and has its name in the release since.
_GVISOR_VERSION = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


def is_gvisor(release: str, version: str) -> bool:
    """Return whether this is gVisor's kernel, by uname."""
    return "gvisor" in release or version == _GVISOR_VERSION or os.path.exists("/proc/sentry-meminfo")
