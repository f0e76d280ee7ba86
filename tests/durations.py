"""At the end of a run: how long the tests of each folder took, the time of their fixtures included."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

import pytest

_SHOWN = 25
_LEVELS = 3


class Durations:
    """Adds up what tests took; with pytest-xdist in the process that the workers report to."""

    def __init__(self) -> None:
        self._by_folder: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        file = PurePosixPath(report.nodeid.partition("::")[0])
        self._by_folder["/".join(file.parent.parts[: _LEVELS + 1])] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the folders that took longest."""
        terminalreporter.section("time by folder, of all workers together")
        for folder, seconds in self._by_folder.most_common(_SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f}s {folder}")


def pytest_configure(config: pytest.Config) -> None:
    """Take part where results are reported, not in a worker."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())
