"""The gateway: the server process, its command line and adapters for other frameworks. See ARCHITECTURE.md.

Start at `server.py`. Imports agent, airlock and sandbox.
"""


def __getattr__(name: str) -> str:
    """Return `__version__`, the version of Airlock, which is read on first use: most commands of the CLI do not ask."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gateway.support.version import airlock_version  # noqa: PLC0415 - as above

    return airlock_version()
