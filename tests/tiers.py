"""Which tests `make test` leaves to `make test-all`: what is marked `full`, and what PostgreSQL repeats of SQLite.

Files that need an engine come first: the unit tests fill up what is left of the time.
"""

from __future__ import annotations

import pytest

_FIRST = ("tests/chaos", "tests/integration", "tests/conformance", "tests/security")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "full: only `make test-all` runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark repetitions, and put the slow files first."""
    for item in items:
        spec = getattr(item, "callspec", None)
        if spec is not None and "postgresql" in spec.params.values():
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))
