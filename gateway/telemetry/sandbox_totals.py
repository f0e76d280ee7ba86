"""What this process' sandboxes use together: read now and then, where the operator asks for it, for each reading costs.

A reading asks the daemon of each sandbox for some files of its control group, a few milliseconds each, one after the
other. No label tells sandboxes or tenants apart: `airlock sandbox top` does. To look is no use of a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import structlog

from gateway.support.background import in_background
from gateway.telemetry.telemetry import Telemetry
from sandbox.client.cgroup_usage import read_usage
from sandbox.errors import SandboxError
from sandbox.sandbox import Sandbox

log = structlog.get_logger(__name__)

_TOLD_TIMEOUT_S = 1.0


class Living(Protocol):
    """Says which sandboxes a process has."""

    def living(self) -> list[Sandbox]: ...


class SandboxTotals:
    """Sums over the sandboxes that live; processor time goes on where one is gone."""

    def __init__(self, living: Living) -> None:
        self._living = living
        self._cpu_s: dict[str, float] = {}
        self.cpu_s = 0.0
        self.memory_bytes = 0
        self.pids = 0

    async def read(self) -> None:
        """Read what each uses. Processor time from before the first reading of one is not counted."""
        memory_bytes, pids, cpu_s = 0, 0, dict[str, float]()
        for sandbox in self._living.living():
            try:
                async with asyncio.timeout(_TOLD_TIMEOUT_S):
                    usage = await read_usage(sandbox)
            except (SandboxError, TimeoutError):
                continue  # it is gone, or has other things to do
            if usage is None:
                continue
            memory_bytes += usage.memory_bytes or 0
            pids += usage.pids or 0
            if usage.cpu_s is not None:
                cpu_s[sandbox.id] = usage.cpu_s
                # Less than before: it was stopped and started again in between, and counts from nothing.
                before_s = self._cpu_s.get(sandbox.id, usage.cpu_s)
                self.cpu_s += usage.cpu_s - before_s if usage.cpu_s >= before_s else usage.cpu_s
        self._cpu_s, self.memory_bytes, self.pids = cpu_s, memory_bytes, pids


@contextlib.asynccontextmanager
async def totalled(telemetry: Telemetry, keeper: Living) -> AsyncIterator[None]:
    """Keep the metrics of what sandboxes use until the block ends, where telemetry.sandbox_usage_s says how often."""
    every_s = telemetry.settings.sandbox_usage_s
    if not every_s or telemetry.settings.metrics_listen is None:
        yield
        return
    totals = SandboxTotals(keeper)
    telemetry.instruments.read("airlock.sandbox.cpu.time", lambda: totals.cpu_s)
    telemetry.instruments.read("airlock.sandbox.memory.usage", lambda: totals.memory_bytes)
    telemetry.instruments.read("airlock.sandbox.pids", lambda: totals.pids)
    async with in_background(_read_forever(totals, every_s), "what sandboxes use"):
        yield


async def _read_forever(totals: SandboxTotals, every_s: float) -> None:
    while True:
        try:
            await totals.read()
        except Exception:  # the next one may go well
            log.exception("what sandboxes use was not read")
        await asyncio.sleep(every_s)
