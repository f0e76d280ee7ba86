"""The version of Airlock, from the installed package's metadata."""

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def airlock_version() -> str:
    """Return the version, such as 0.1.0; "unknown" in a tree that is not installed."""
    try:
        return version("airlock-agent-gateway")
    except PackageNotFoundError:
        return "unknown"
