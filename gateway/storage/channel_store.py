"""The queries of channel directories: which one the gateways of an engine use, by the engine's id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, delete, insert, select

from gateway.storage.queries import Queries
from gateway.storage.tables import gateways, settings

_PREFIX = "channels:"


@dataclass(frozen=True)
class ChannelRecord:
    """The directory that an engine's gateways use: its identity, and its path when it was recorded.

    `served_at` is the address of a live gateway of the engine, "" if there is none.
    """

    engine: str
    identity: str
    path: Path
    served_at: str = ""


class ChannelStore(Queries):
    """Typed access to the records."""

    async def records(self) -> Sequence[ChannelRecord]:
        """Return the record of each engine."""
        return await self._database.transact(self._records)

    async def claim(self, claim: ChannelRecord, check: Callable[[Sequence[ChannelRecord]], None]) -> None:
        """Record the directory of an engine, and of no other engine, unless `check` of the current records raises.

        No other gateway comes in between.
        """

        def work(connection: Connection) -> None:
            records = self._records(connection)
            check(records)
            gone = [one.engine for one in records if one.engine == claim.engine or one.identity == claim.identity]
            connection.execute(delete(settings).where(settings.c.name.in_([_name(engine) for engine in gone])))
            value = {"engine": claim.engine, "identity": claim.identity, "path": str(claim.path)}
            connection.execute(insert(settings).values(name=_name(claim.engine), value=json.dumps(value)))

        await self._database.transact(work)

    def _records(self, connection: Connection) -> Sequence[ChannelRecord]:
        live = connection.execute(select(gateways).where(gateways.c.expires_us > self.clock()))
        addresses = {row.engine: row.address for row in live}
        stored = connection.execute(select(settings.c.value).where(settings.c.name.startswith(_PREFIX)))
        found = [json.loads(row.value) for row in stored]
        return [
            ChannelRecord(one["engine"], one["identity"], Path(one["path"]), addresses.get(one["engine"], ""))
            for one in found
        ]


def _name(engine: str) -> str:
    return _PREFIX + hashlib.sha256(engine.encode()).hexdigest()[:32]
