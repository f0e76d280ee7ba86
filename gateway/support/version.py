"""Which release of Airlock this is. pyproject.toml says it, and the installed package's metadata has it from there."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def airlock_version() -> str:
    """Return the version, such as 0.1.0; "unknown" in a tree that was never installed."""
    try:
        return version("airlock")
    except PackageNotFoundError:
        return "unknown"
