"""The queries of channel directories: which one the gateways of an engine use, by the engine's id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, delete, insert, select

from gateway.storage.database import Database
from gateway.storage.tables import gateways, settings
from gateway.support.clock import NowUs, now_us

_PREFIX = "channels:"


@dataclass(frozen=True)
class ChannelRecord:
    """The directory that the gateways of an engine use: its identity, and the path that it had when it was recorded.

    `served_at` is the address of a live gateway of the engine, "" where there is none.
    """

    engine: str
    identity: str
    path: Path
    served_at: str = ""


class ChannelStore:
    """Typed access to the records."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock

    async def records(self) -> Sequence[ChannelRecord]:
        """Return the record of each engine."""
        found = await self._database.rows(select(settings).where(settings.c.name.startswith(_PREFIX)))
        live = await self._database.rows(select(gateways).where(gateways.c.expires_us > self._clock()))
        return _records([row.value for row in found], {row.engine: row.address for row in live})

    async def claim(self, claim: ChannelRecord, check: Callable[[Sequence[ChannelRecord]], None]) -> None:
        """Record the directory of an engine, and of no other one from now on, unless `check` of what is there raises.

        No other gateway comes in between.
        """

        def work(connection: Connection) -> None:
            stored = connection.execute(select(settings).where(settings.c.name.startswith(_PREFIX))).all()
            live = connection.execute(select(gateways).where(gateways.c.expires_us > self._clock())).all()
            records = _records([row.value for row in stored], {row.engine: row.address for row in live})
            check(records)
            gone = [one.engine for one in records if one.engine == claim.engine or one.identity == claim.identity]
            connection.execute(delete(settings).where(settings.c.name.in_([_name(engine) for engine in gone])))
            value = {"engine": claim.engine, "identity": claim.identity, "path": str(claim.path)}
            connection.execute(insert(settings).values(name=_name(claim.engine), value=json.dumps(value)))

        await self._database.transact(work)


def _records(values: Sequence[str], live: dict[str, str]) -> Sequence[ChannelRecord]:
    read = [json.loads(value) for value in values]
    return [
        ChannelRecord(one["engine"], one["identity"], Path(one["path"]), live.get(one["engine"], "")) for one in read
    ]


def _name(engine: str) -> str:
    return _PREFIX + hashlib.sha256(engine.encode()).hexdigest()[:32]
