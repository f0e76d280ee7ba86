"""Which kernel the sandbox runs on."""

from __future__ import annotations

import os

# How gVisor's kernel has named itself: for years with this build, later with its name in the release.
_GVISOR_VERSION = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


def is_gvisor(release: str, version: str) -> bool:
    """Return whether this is gVisor's kernel, by what uname says of it."""
    return "gvisor" in release or version == _GVISOR_VERSION or os.path.exists("/proc/sentry-meminfo")
