"""At the end of a run: how long the tests of each folder took, fixtures included, and how many tests were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.tiers import left_out_files

_SHOWN = 25
_LEVELS = 3
_LEFT_OUT = "airlock_left_out"


class Report:
    """Adds up what tests took; with pytest-xdist in the process that the workers report to."""

    def __init__(self) -> None:
        self._by_folder: Counter[str] = Counter()
        self._left_out = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        file = PurePosixPath(report.nodeid.partition("::")[0])
        self._by_folder["/".join(file.parent.parts[: _LEVELS + 1])] += report.duration

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what a run without workers leaves out."""
        self._left_out += len(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take a worker's count; each worker collects all tests."""
        self._left_out = max(self._left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the folders that took longest."""
        terminalreporter.section("time by folder, of all workers together")
        for folder, seconds in self._by_folder.most_common(_SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f}s {folder}")
        files = len(left_out_files(terminalreporter.config))
        if self._left_out or files:
            left_out = f"{self._left_out} tests and {files} files were left out"
            terminalreporter.write_line(f"{left_out}; `make test-all` runs every test")


class _WorkerReport:
    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, Any] = getattr(config, "workeroutput")  # noqa: B009 - of xdist's workers only
        self._output[_LEFT_OUT] = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._output[_LEFT_OUT] += len(items)


def pytest_configure(config: pytest.Config) -> None:
    """Report from the main process; workers only count."""
    config.pluginmanager.register(_WorkerReport(config) if hasattr(config, "workerinput") else Report())
