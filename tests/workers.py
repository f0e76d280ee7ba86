"""Which tests run in one worker, one after the other: those of a file, those that strain or stop an engine, and those
that share the model servers.

pytest-xdist 3.8 has groups of its own, but writes them into names of tests, which pytest 9.2 does not let it change:
each test is a group of its own there, without an error. So each run checks at its end whether the groups were whole.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_ENGINE = (
    "tests/chaos/",
    "tests/integration/gateway/test_stopping.py",
    "tests/integration/sandbox/",
    "tests/security/daemon/test_execute.py",
    "tests/security/daemon/test_processes.py",
    "tests/security/sandbox/",
)
_MODELS = "tests/models/"


def group_of(nodeid: str) -> str:
    """Return the name of a test's group: its file, "engine" or "models"."""
    file = nodeid.partition("::")[0]
    if file.startswith(_MODELS):
        return "models"
    return "engine" if file.startswith(_ENGINE) else file


class _GroupScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Workers:
    """Hands whole groups to workers, and fails a run in which a group was split."""

    def __init__(self) -> None:
        self._workers: defaultdict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        """Return what hands out the tests."""
        return _GroupScheduling(config, log)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which worker ran a test."""
        self._workers[group_of(report.nodeid)].add(getattr(report, "worker_id", ""))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail if a group ran in several workers."""
        if self._split():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name such groups."""
        for group in self._split():
            terminalreporter.write_line(f"FAILED {group}: its tests belong in one worker and ran in several", red=True)

    def _split(self) -> list[str]:
        return sorted(group for group, workers in self._workers.items() if len(workers) > 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: nearly all that is made then stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave the tests themselves, 700,000 objects, out of each collection of garbage and each fork's copies."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Hand out tests in the process that starts the workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Workers())
