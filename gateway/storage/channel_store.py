"""The queries of channel directories: which one the gateways of an engine use, by the engine's id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, insert, select

from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import gateways, settings

_PREFIX = "channels:"
_STORED = select(settings.c.value).where(settings.c.name.startswith(_PREFIX))


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
        return _records(await self._database.rows(_STORED), await self._database.rows(live_addresses(self.clock())))

    @transaction
    def claim(
        self, connection: Connection, claim: ChannelRecord, check: Callable[[Sequence[ChannelRecord]], None]
    ) -> None:
        """Record the directory of an engine, and of no other engine, unless `check` of the current records raises.

        No other gateway comes in between.
        """
        live = connection.execute(live_addresses(self.clock())).all()
        records = _records(connection.execute(_STORED).all(), live)
        check(records)
        gone = [one.engine for one in records if one.engine == claim.engine or one.identity == claim.identity]
        connection.execute(delete(settings).where(settings.c.name.in_([_name(engine) for engine in gone])))
        value = {"engine": claim.engine, "identity": claim.identity, "path": str(claim.path)}
        connection.execute(insert(settings).values(name=_name(claim.engine), value=json.dumps(value)))


def _records(stored: Sequence[Row[Any]], live: Sequence[Row[Any]]) -> Sequence[ChannelRecord]:
    addresses = {row.engine: row.address for row in live}
    found = [json.loads(row.value) for row in stored]
    return [
        ChannelRecord(one["engine"], one["identity"], Path(one["path"]), addresses.get(one["engine"], ""))
        for one in found
    ]


def live_addresses(now_us: int) -> Select[tuple[str, str]]:
    """Select the engine and the address of each gateway with a valid lease."""
    return select(gateways.c.engine, gateways.c.address).where(gateways.c.expires_us > now_us)


def _name(engine: str) -> str:
    return _PREFIX + hashlib.sha256(engine.encode()).hexdigest()[:32]
