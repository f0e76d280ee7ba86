"""Periodic work: a round that fails is logged, and the next one is tried."""

from __future__ import annotations

import asyncio
import logging

import pytest
from structlog.testing import capture_logs

from gateway.support.background import Periodic


async def test_work_goes_on_after_expected_errors_and_after_faults() -> None:
    rounds = asyncio.Queue[int]()
    errors: list[Exception] = [OSError("x" * 1000), ValueError("a fault")]

    async def work() -> None:
        rounds.put_nowait(len(errors))
        if errors:
            raise errors.pop(0)

    with capture_logs() as lines:
        async with Periodic(work, 0, "it failed", (OSError,), logging.ERROR).running("work"), asyncio.timeout(60):
            assert [await rounds.get() for _ in range(4)] == [2, 1, 0, 0]
    assert [(line["event"], line["log_level"], line.get("error")) for line in lines] == [
        ("it failed", "error", "x" * 300),
        ("it failed", "error", None),
    ]
    assert "exc_info" in lines[1]


async def test_the_first_round_can_wait_for_the_interval() -> None:
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    async with Periodic(work, 3600, "it failed").running("work", at_once=False):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await done.wait()
    async with Periodic(work, 3600, "it failed").running("work"), asyncio.timeout(60):
        await done.wait()
