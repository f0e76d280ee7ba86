"""Why a container does not run, in the words of a sandbox's history."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.engines.docker.sandbox_listing import why_ended


@pytest.mark.parametrize(
    "state, why",
    [
        ({"Status": "exited", "ExitCode": 0}, "its container ended with exit code 0"),
        ({"Status": "exited", "ExitCode": 1}, "its container ended with exit code 1"),
        ({"Status": "exited", "ExitCode": 143}, "its container ended with exit code 143 (SIGTERM)"),
        (
            {"Status": "exited", "ExitCode": 137, "OOMKilled": True},
            "its container ended with exit code 137 (SIGKILL); the kernel had killed something in it for memory",
        ),
        ({"Status": "paused", "ExitCode": 0}, "its container is paused"),
    ],
)
def test_why_a_container_does_not_run_is_said_as_far_as_the_engine_knows(state: dict[str, Any], why: str) -> None:
    assert why_ended(state) == why
