"""How many runs and approvals wait, read from the database periodically: a metrics scrape must not wait for a query."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from gateway.errors import AirlockError
from gateway.storage.database import Database
from gateway.storage.waiting_store import count_waiting
from gateway.support.periodic import Periodic
from gateway.telemetry.telemetry import Telemetry

_EVERY_S = 5.0


@contextlib.asynccontextmanager
async def counted(telemetry: Telemetry, database: Database, *, every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Keep the gauges of waiting runs and approvals, and time the database's writer, until the block ends."""
    if telemetry.settings.metrics_listen is None:
        yield
        return
    found = {"airlock.run.waiting": 0, "airlock.approval.waiting": 0}
    for name in tuple(found):
        telemetry.instruments.read(name, partial(found.__getitem__, name))

    def wrote(writes: int, taken_s: float) -> None:
        telemetry.instruments.add("airlock.database.write.duration", taken_s)
        telemetry.instruments.add("airlock.database.write.group_size", writes)

    async def count() -> None:
        waiting = await count_waiting(database)
        found.update({"airlock.run.waiting": waiting.runs, "airlock.approval.waiting": waiting.approvals})

    database.listen(wrote)
    async with Periodic(count, every_s, "what waits is not counted", (AirlockError,)).running("count of what waits"):
        yield
