"""The audit: a chain of records for each tenant, in which each record's digest covers the one before it.

An entry is appended in the transaction of what it records, so that neither exists without the other, and before the
caller sees the result. All entries of a transaction are appended together at its end: each chain's head is locked last,
in the order of the tenants' names, so a chain has no forks and no gaps, and gateways that share a database do not
deadlock.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import JsonValue
from sqlalchemy import Connection, Engine, bindparam, delete, func, insert, select, update

from airlock.audit_chain import PRUNED, START_DIGEST, record_digest
from gateway.storage.database import Database
from gateway.storage.insertion import insert_new
from gateway.storage.prepared import Prepared
from gateway.storage.tables import audit_heads, audit_records
from gateway.storage.writer import at_the_end
from gateway.support.clock import NowUs, now_us

OPERATORS = ""
"""The tenant of the operators' own chain."""

_ACTOR_LIMIT_CHARS = 256
# Fields with text of models, callers and certificates; all others are the gateway's own.
_FOREIGN_TEXT = ("actor", "thread", "call_id", "tool", "rule")
# The number of records pruned in one transaction, since other writers wait meanwhile.
_PRUNED_AT_ONCE = 5_000
_INSERT = Prepared(insert(audit_records))
_LOCK = Prepared(
    select(audit_heads.c.sequence, audit_heads.c.digest)
    .where(audit_heads.c.tenant == bindparam("of_tenant"))
    .with_for_update()
)
_MOVE = Prepared(
    update(audit_heads)
    .where(audit_heads.c.tenant == bindparam("of_tenant"))
    .values(sequence=bindparam("to_sequence"), digest=bindparam("to_digest"))
)
# The tenants whose chain this process has seen, by database.
_BEGUN: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class AuditEntry:
    """An entry; gateway/v1/audit_service.proto describes the fields and lists the kinds.

    `at_us` is when it happened, if that is earlier than now. Neither arguments nor results belong in `details`.
    """

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
    at_us: int | None = None


def shared(row: Any, *names: str) -> dict[str, Any]:
    """Return the fields of an entry that a row has under the same names; NULL is ""."""
    return {name: getattr(row, name) or "" for name in names}


class AuditStore:
    """Appends to the chains, and prunes them."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock

    async def write(self, *entries: AuditEntry) -> None:
        """Append entries that record nothing else in the database."""
        await self._database.transact(lambda connection: self.append(connection, *entries), apart=False)

    def append(self, connection: Connection, *entries: AuditEntry) -> None:
        """Append entries within a transaction, in the writer's thread."""
        if entries:
            at_the_end(connection, _append_all, [_row(entry, self._clock()) for entry in entries])

    def prune(self, connection: Connection, *, tenant: str, before_us: int) -> int:
        """Delete a chain's records from before that time, some thousands at most, and record that; return how many."""
        of_tenant = audit_records.c.tenant == tenant
        heads = audit_heads.c
        head = connection.execute(select(audit_heads).where(heads.tenant == tenant).with_for_update()).first()
        if head is None:
            return 0
        first_kept = select(func.min(audit_records.c.sequence)).where(of_tenant, audit_records.c.at_us >= before_us)
        # The newest record always stays, since the chain continues from it.
        kept = connection.execute(first_kept).scalar() or head.sequence
        first = min(kept, head.sequence, head.first_sequence + _PRUNED_AT_ONCE)
        if first <= head.first_sequence:
            return 0
        link = select(audit_records.c.previous_digest).where(of_tenant, audit_records.c.sequence == first)
        before = str(connection.execute(link).scalar_one())
        # The head first: the database refuses to delete records that the head still covers.
        begin = {"first_sequence": first, "before_digest": before}
        connection.execute(update(audit_heads).where(heads.tenant == tenant).values(**begin))
        gone = connection.execute(delete(audit_records).where(of_tenant, audit_records.c.sequence < first)).rowcount
        self.append(connection, AuditEntry(tenant, PRUNED, details={**begin, "records": gone}))
        return gone

    def erase(self, connection: Connection, *, tenant: str) -> int:
        of_tenant = audit_heads.c.tenant == tenant
        # The database deletes no record that a head covers, and no head that has records.
        connection.execute(update(audit_heads).where(of_tenant).values(first_sequence=audit_heads.c.sequence + 1))
        gone = connection.execute(delete(audit_records).where(audit_records.c.tenant == tenant)).rowcount
        connection.execute(delete(audit_heads).where(of_tenant))
        return gone


def _row(entry: AuditEntry, now: int) -> dict[str, Any]:
    """Return an entry as a row without its place in the chain, as the database will return it."""
    row = vars(entry) | {
        "at_us": now if entry.at_us is None else entry.at_us,
        "actor": entry.actor[:_ACTOR_LIMIT_CHARS],
        "tool": entry.tool[:128],
        "rule": entry.rule[:128],
        "outcome": entry.outcome[:32],
        "details": json.dumps(dict(entry.details), sort_keys=True),
    }
    for name in _FOREIGN_TEXT:
        # The digest covers what is stored, which has no NUL: gateway/storage/connecting.py.
        row[name] = row[name].replace("\0", "\ufffd")
    return row


def _append_all(connection: Connection, rows: Sequence[Any]) -> None:
    heads = _locked(connection, sorted({row["tenant"] for row in rows}))
    linked = []
    for row in rows:
        sequence, previous = heads[row["tenant"]]
        row = {**row, "sequence": sequence + 1}  # noqa: PLW2901 - the transaction may be repeated
        digest = record_digest(row, previous)
        linked.append({**row, "previous_digest": previous, "digest": digest})
        heads[row["tenant"]] = (sequence + 1, digest)
    _INSERT.execute_all(connection, linked)
    moved = [
        {"of_tenant": tenant, "to_sequence": sequence, "to_digest": digest}
        for tenant, (sequence, digest) in heads.items()
    ]
    _MOVE.execute_all(connection, moved)


def _locked(connection: Connection, tenants: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return where the chains end, locked until the commit. Missing chains are begun before any is locked."""
    begun = _BEGUN.setdefault(connection.engine, set())
    new = [tenant for tenant in tenants if tenant not in begun]
    while True:
        if new:
            _begin(connection, new)
        found = [(tenant, _LOCK.execute(connection, {"of_tenant": tenant}).first()) for tenant in tenants]  # in order
        heads = {tenant: (head.sequence, head.digest) for tenant, head in found if head is not None}
        begun.update(heads)
        # A chain that was erased, or whose beginning was rolled back.
        new = [tenant for tenant in tenants if tenant not in heads]
        if not new:
            return heads


def _begin(connection: Connection, tenants: Collection[str]) -> None:
    rows = [
        {"tenant": tenant, "sequence": 0, "digest": START_DIGEST, "first_sequence": 1, "before_digest": START_DIGEST}
        for tenant in tenants
    ]
    connection.execute(insert_new(audit_heads, connection.dialect.name), rows)
