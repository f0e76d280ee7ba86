"""The audit: a chain of records in each tenant. Each record's digest covers the one before it.

An entry is appended in the transaction of what it tells of, so that neither is there without the other, and before
anybody sees the result. The head's row is locked by whoever appends, so a chain has no forks and no gaps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pydantic import JsonValue
from sqlalchemy import Connection, insert, select, update

from gateway.clock import NowUs, now_us
from gateway.storage.database import Database
from gateway.storage.tables import audit_heads, audit_records

START_DIGEST = "0" * 64
OPERATORS = ""
"""The tenant of the operators' own chain."""


@dataclass(frozen=True)
class AuditEntry:
    """One thing to be told; gateway/v1/audit_service.proto describes the fields and lists the kinds."""

    tenant: str
    kind: str
    actor: str = "gateway"
    thread: str = ""
    run_id: str = ""
    call_id: str = ""
    tool: str = ""
    arguments_digest: str = ""
    verdict: str = ""
    rule: str = ""
    policy_version: str = ""
    outcome: str = ""
    size_bytes: int = 0
    duration_us: int = 0
    details: Mapping[str, JsonValue] = field(default_factory=dict)


class AuditStore:
    """Appends to the chains."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock

    async def write(self, *entries: AuditEntry) -> None:
        """Append entries that tell of nothing else in the database."""
        await self._database.transact(partial(self.append, entries=entries))

    def append(self, connection: Connection, *, entries: tuple[AuditEntry, ...]) -> None:
        """Append entries within a transaction, in the writer's thread."""
        for entry in entries:
            self._append(connection, entry)

    def _append(self, connection: Connection, entry: AuditEntry) -> None:
        of_tenant = audit_heads.c.tenant == entry.tenant
        head = connection.execute(
            select(audit_heads.c.sequence, audit_heads.c.digest).where(of_tenant).with_for_update()
        ).first()
        sequence, previous = (head.sequence + 1, head.digest) if head is not None else (1, START_DIGEST)
        row = {
            "tenant": entry.tenant,
            "sequence": sequence,
            "at_us": self._clock(),
            "kind": entry.kind,
            "actor": entry.actor,
            "thread": entry.thread,
            "run_id": entry.run_id,
            "call_id": entry.call_id,
            "tool": entry.tool,
            "arguments_digest": entry.arguments_digest,
            "verdict": entry.verdict,
            "rule": entry.rule,
            "policy_version": entry.policy_version,
            "outcome": entry.outcome,
            "size_bytes": entry.size_bytes,
            "duration_us": entry.duration_us,
            "details": json.dumps(dict(entry.details), sort_keys=True),
        }
        digest = record_digest(row, previous)
        connection.execute(insert(audit_records), {**row, "previous_digest": previous, "digest": digest})
        if head is None:
            first = {"tenant": entry.tenant, "sequence": 1, "digest": digest, "before_digest": START_DIGEST}
            connection.execute(insert(audit_heads), first)
        else:
            connection.execute(update(audit_heads).where(of_tenant).values(sequence=sequence, digest=digest))


def record_digest(row: Mapping[str, object], previous: str) -> str:
    """Return the digest of a record: over the one before it and the record's fields as canonical JSON."""
    told = {name: value for name, value in row.items() if name not in {"previous_digest", "digest"}}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{canonical}".encode()).hexdigest()
