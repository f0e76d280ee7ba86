"""What the engine logs: in the log of `airlock serve`, and nowhere where a command speaks for itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

_REPORTS = "import logging, gateway.cli.main; {}; logging.getLogger('sandbox.engines.docker').warning('no quotas')"


@pytest.mark.parametrize(
    "before, reported",
    [("pass", False), ("from gateway.telemetry.logging import set_up_logging; set_up_logging()", True)],
)
def test_the_engine_warns_in_a_log_and_not_beside_what_a_command_says(before: str, *, reported: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _REPORTS.format(before)], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout == ""
    assert ("no quotas" in ran.stderr) is reported
    assert reported or ran.stderr == ""
