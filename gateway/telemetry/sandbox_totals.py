"""What the sandboxes of this process use together, read periodically if the operator asks for it, since reading costs.

One reading asks the daemon of each sandbox in turn for a few control group files, some milliseconds each. No label
identifies a sandbox or a tenant: use `airlock sandbox top` for that. Reading does not reset a sandbox's idle timer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.support.periodic import Periodic
from gateway.telemetry.telemetry import Telemetry
from sandbox.client.cgroup_usage import read_usage
from sandbox.errors import SandboxError
from sandbox.sandbox import Sandbox

_READ_TIMEOUT_S = 1.0


class Living(Protocol):
    """The live sandboxes of a process."""

    def living(self) -> list[Sandbox]: ...


class SandboxTotals:
    """Sums over the live sandboxes; the processor time of removed ones stays counted."""

    def __init__(self, living: Living) -> None:
        self._living = living
        self._cpu_s: dict[str, float] = {}
        self.cpu_s = 0.0
        self.memory_bytes = 0
        self.pids = 0

    async def read(self) -> None:
        """Read what each sandbox uses. Processor time from before a sandbox's first reading does not count."""
        memory_bytes, pids, cpu_s = 0, 0, dict[str, float]()
        for sandbox in self._living.living():
            try:
                async with asyncio.timeout(_READ_TIMEOUT_S):
                    usage = await read_usage(sandbox)
            except (SandboxError, TimeoutError):
                continue  # it is gone or busy
            if usage is None:
                continue
            memory_bytes += usage.memory_bytes or 0
            pids += usage.pids or 0
            if usage.cpu_s is not None:
                cpu_s[sandbox.id] = usage.cpu_s
                # Less than before: the sandbox was stopped and started again, and counts from zero.
                before_s = self._cpu_s.get(sandbox.id, usage.cpu_s)
                self.cpu_s += usage.cpu_s - before_s if usage.cpu_s >= before_s else usage.cpu_s
        self._cpu_s, self.memory_bytes, self.pids = cpu_s, memory_bytes, pids


@contextlib.asynccontextmanager
async def totalled(telemetry: Telemetry, keeper: Living) -> AsyncIterator[None]:
    """Export metrics of what sandboxes use until the block ends, every `telemetry.sandbox_usage_s` seconds."""
    every_s = telemetry.settings.sandbox_usage_s
    if not every_s or telemetry.settings.metrics_listen is None:
        yield
        return
    totals = SandboxTotals(keeper)
    telemetry.instruments.read("airlock.sandbox.cpu.time", lambda: totals.cpu_s)
    telemetry.instruments.read("airlock.sandbox.memory.usage", lambda: totals.memory_bytes)
    telemetry.instruments.read("airlock.sandbox.pids", lambda: totals.pids)
    async with Periodic(totals.read, every_s, "what sandboxes use was not read").running("what sandboxes use"):
        yield
