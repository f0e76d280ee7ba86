"""What waits, as the database knows it: read now and then, for a scrape must not wait for a query."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import structlog

from gateway.errors import AirlockError
from gateway.storage.database import Database
from gateway.storage.waiting_store import count_waiting
from gateway.support.background import in_background
from gateway.telemetry.telemetry import Telemetry

_EVERY_S = 5.0
log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def counted(telemetry: Telemetry, database: Database, *, every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Keep the gauges of what waits until the block ends, and time the database's writer."""
    if telemetry.settings.metrics_listen is None:
        yield
        return
    found = {"airlock.run.waiting": 0, "airlock.approval.waiting": 0}
    for name in tuple(found):
        telemetry.instruments.read(name, partial(found.__getitem__, name))

    def wrote(writes: int, taken_s: float) -> None:
        telemetry.instruments.add("airlock.database.write.duration", taken_s)
        telemetry.instruments.add("airlock.database.write.group_size", writes)

    database.listen(wrote)
    async with in_background(_count(database, found, every_s), "count of what waits"):
        yield


async def _count(database: Database, found: dict[str, int], every_s: float) -> None:
    while True:
        try:
            waiting = await count_waiting(database)
            found.update({"airlock.run.waiting": waiting.runs, "airlock.approval.waiting": waiting.approvals})
        except AirlockError as error:
            log.warning("what waits is not counted", error=str(error))
        await asyncio.sleep(every_s)
