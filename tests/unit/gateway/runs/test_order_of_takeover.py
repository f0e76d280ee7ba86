"""In which order a gateway tries the runs without a host that it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.entities import Thread
from gateway.storage.waiting_store import WaitingRun

LOST = [WaitingRun(f"lost-{n}", Thread(f"t-{n}", "acme", f"t{n}"), None, 1, "gateway_lost") for n in range(50)]
QUEUED = [WaitingRun(f"queued-{n}", Thread(f"q-{n}", "acme", f"q{n}"), None, 0, "queued") for n in range(50)]


class Found:
    """A store that finds the same runs for every gateway, and approvals of which none expires."""

    gateway = "gw_1"

    async def ready(self) -> Sequence[WaitingRun]:
        return []

    async def abandoned(self) -> Sequence[WaitingRun]:
        return [run for pair in zip(LOST, QUEUED, strict=True) for run in pair]

    async def expire(self) -> None: ...


async def _tried() -> list[WaitingRun]:
    """Return the runs of a gateway's first look, as it tries them."""
    tried: list[WaitingRun] = []
    found = cast(Any, Found())

    async def resume(run: WaitingRun) -> None:
        tried.append(run)

    task = asyncio.create_task(WaitingRuns(found, found, cast(Any, None), takes_over=True).follow(resume))
    while len(tried) < len(LOST) + len(QUEUED):
        await asyncio.sleep(0)
    task.cancel()
    return tried


async def test_each_gateway_tries_lost_runs_in_an_order_of_its_own_and_new_ones_in_the_order_they_came() -> None:
    one, other = await _tried(), await _tried()
    lost = [[run for run in tried if run.because == "gateway_lost"] for tried in (one, other)]
    assert lost[0] != lost[1]
    assert [sorted(run.id for run in found) for found in lost] == [sorted(run.id for run in LOST)] * 2
    assert [run for run in one if run.because == "queued"] == QUEUED
