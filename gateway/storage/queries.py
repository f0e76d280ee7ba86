"""What every group of queries has: the database, the audit, and a clock."""

from __future__ import annotations

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.support.clock import MakeId, NowUs, make_id, now_us


class Queries:
    """A database, and the audit that is written in the same transactions; `gateway` hosts what is begun here."""

    def __init__(
        self, database: Database, clock: NowUs = now_us, *, gateway: str | None = None, ids: MakeId = make_id
    ) -> None:
        self._database = database
        self.audit = AuditStore(database, clock)
        self.clock = clock
        self.gateway = gateway
        self.ids = ids
