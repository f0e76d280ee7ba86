"""Opens telemetry. The SDK is not imported while telemetry is off."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gateway.config.telemetry_settings import TelemetrySettings
from gateway.telemetry.telemetry import Telemetry


@contextlib.asynccontextmanager
async def opened(settings: TelemetrySettings, *, process: str, worker: int = 0) -> AsyncIterator[Telemetry]:
    """Export what the settings ask for until the block ends, then flush.

    Each worker serves its metrics at a port of its own. Raises Misconfigured if that port is taken.
    """
    if not settings.on:
        yield Telemetry.off()
        return
    from gateway.telemetry import providers  # noqa: PLC0415 - a tenth of what a gateway imports

    async with providers.exported(settings, process=process, worker=worker) as telemetry:
        yield telemetry
