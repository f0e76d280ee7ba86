"""Opens what a gateway tells of itself, or nothing: where telemetry is off its SDK is not loaded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gateway.config.telemetry_settings import TelemetrySettings
from gateway.telemetry.telemetry import Telemetry


@contextlib.asynccontextmanager
async def opened(settings: TelemetrySettings, *, process: str, worker: int = 0) -> AsyncIterator[Telemetry]:
    """Tell what is asked for until the block ends; what was told by then is sent.

    Each worker is scraped by itself, at a port of its own. Misconfigured where that port is taken.
    """
    if not settings.on:
        yield Telemetry.off()
        return
    from gateway.telemetry import providers  # noqa: PLC0415 - a tenth of what a gateway imports

    async with providers.told(settings, process=process, worker=worker) as telemetry:
        yield telemetry
