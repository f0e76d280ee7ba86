"""What the tests of all frameworks share. The python that runs this has the framework, pytest and the client only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
_PROGRAM_S = 120


def _given(name: str) -> str:
    if name not in os.environ:
        pytest.exit(f"{name} is not set: these tests are run by `deploy/run-tests frameworks`", returncode=2)
    return os.environ[name]


@pytest.fixture(scope="session")
def address() -> str:
    """Return where the gateway is."""
    return _given("AIRLOCK_ADDRESS")


@pytest.fixture(scope="session")
def api_key() -> str:
    """Return a key of the tenant that has the policy of `airlock init`."""
    return _given("AIRLOCK_API_KEY")


@pytest.fixture(scope="session")
def strict_key() -> str:
    """Return a key of the tenant that has the policy strict.yaml."""
    return _given("AIRLOCK_STRICT_API_KEY")


@pytest.fixture(scope="session")
def approver_key() -> str:
    """Return a key of an approver of that tenant."""
    return _given("AIRLOCK_APPROVER_API_KEY")


@pytest.fixture(scope="session")
def streaming_key() -> str:
    """Return a key of the tenant that has the policy streaming.yaml."""
    return _given("AIRLOCK_STREAMING_API_KEY")


@pytest.fixture(scope="session")
def streaming_approver_key() -> str:
    """Return a key of an approver of that tenant."""
    return _given("AIRLOCK_STREAMING_APPROVER_API_KEY")


@pytest.fixture
def thread() -> str:
    """Return the name of a thread that no other test uses."""
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def program_of() -> Callable[[str], str]:
    """Return a function that returns the first Python program of a section of the page."""

    def find(section: str) -> str:
        text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        program = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        assert program is not None, f"docs/integrations.md has no program under {section!r}"
        return program[1]

    return find


@pytest.fixture
def run_program(tmp_path: Path, program_of: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function that runs such a program, and returns what it printed."""

    def run(section: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program_of(section)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
