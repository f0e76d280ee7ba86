"""What every group of queries of the store stands on."""

from __future__ import annotations

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.support.clock import MakeId, NowUs, make_id, now_us


class Queries:
    """A database, and the audit that is written with what it tells of; `gateway` is who hosts what is begun here."""

    def __init__(
        self, database: Database, *, gateway: str | None = None, clock: NowUs = now_us, ids: MakeId = make_id
    ) -> None:
        self._database = database
        self.audit = AuditStore(database, clock)
        self._gateway = gateway
        self._clock = clock
        self._ids = ids
