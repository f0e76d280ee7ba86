"""The versions of policies, and who applied which one when. Only texts that were loaded are stored."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Select, bindparam, func, insert, select

from gateway.errors import NotFound
from gateway.storage.audit_store import AuditEntry
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, mapped
from gateway.storage.tables import policies, policy_changes

OPERATOR = ""
"""In the place of a tenant: the operator's layer, which applies to all tenants."""

Kind = Literal["file", "apply", "rollback"]
_CHANGES = policy_changes.c
_BY_LIMIT_CHARS = 256
# Two transactions may become visible in another order than their ids; none is this far behind.
_LATE_CHANGES = 64
_SINCE = Prepared(select(policy_changes).where(_CHANGES.id > bindparam("after")).order_by(_CHANGES.id))


@dataclass(frozen=True)
class Change:
    """A change: from then on the text with this digest was in force. `at_us` is UTC microseconds since 1970."""

    id: int
    tenant: str
    digest: str
    kind: Kind
    by: str
    comment: str
    at_us: int


class NotStanding(Exception):
    """The policy in force is not the expected one; `standing` is its change, None if there is none."""

    def __init__(self, standing: Change | None) -> None:
        super().__init__("another change is in force")
        self.standing = standing


def digest_of_text(text: str) -> str:
    """Return the SHA-256 of a policy's text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


class PolicyStore(Queries):
    """The changes of each tenant's policy."""

    async def apply(
        self,
        tenant: str,
        text: str,
        kind: Kind,
        by: str,
        comment: str = "",
        *,
        expected: int | None = None,
        after: int = 0,
    ) -> Change:
        """Put a text, which the caller has checked, in force in one transaction; return the change.

        A text that is in force already changes nothing, nor does a file's text that is not new(): then the change in
        force is returned. `expected` is the id of the change that must be in force until then, 0 for none; NotStanding.
        """
        row: dict[str, Any] = {
            "tenant": tenant,
            "digest": digest_of_text(text),
            "kind": kind,
            "by": by[:_BY_LIMIT_CHARS],
            "comment": comment,
            "at_us": self.clock(),
        }
        digest = row["digest"]

        def work(connection: Connection) -> Change:
            standing = _last(connection, _CHANGES.tenant == tenant)
            if standing is not None and (
                standing.digest == digest or (kind == "file" and not _is_new(connection, tenant, digest, after))
            ):
                return standing
            if expected is not None and expected != (0 if standing is None else standing.id):
                raise NotStanding(standing)
            if connection.execute(select(policies.c.digest).where(policies.c.digest == digest)).first() is None:
                connection.execute(insert(policies).values(digest=digest, text=text, created_us=row["at_us"]))
            key: Any = connection.execute(insert(policy_changes).values(row)).inserted_primary_key
            facts = {"tenant": tenant, "how": kind, "text_sha256": digest, "change": key[0]}
            # A change by an operator is in both chains; a file's change, which has no actor, only in the tenant's.
            chains = (tenant,) if kind == "file" else dict.fromkeys((OPERATOR, tenant))
            entries = [AuditEntry(chain, "policy_applied", by, details=facts) for chain in chains]
            self.audit.append(connection, *entries)
            return Change(id=key[0], **row)

        return await self._database.transact(work)

    async def new(self, tenant: str, digest: str, after: int = 0) -> bool:
        """Return whether a file's text counts: it was not in force after the change with this id.

        0 means that the file was never read before. Then the text counts if it was never in force while another text of
        a file was: only that shows that the file was edited since.
        """
        return await self._database.transact(lambda connection: _is_new(connection, tenant, digest, after))

    async def current(self, tenant: str) -> Change | None:
        found = await self.history(tenant, 1)
        return found[0] if found else None

    async def history(self, tenant: str, limit: int, *, before: int | None = None) -> Sequence[Change]:
        query = select(policy_changes).where(_CHANGES.tenant == tenant).order_by(_CHANGES.id.desc()).limit(limit)
        if before is not None:
            query = query.where(_CHANGES.id < before)
        return await self._all(Change, query)

    async def last_of_each(self) -> dict[str, Change]:
        last = select(func.max(_CHANGES.id)).group_by(_CHANGES.tenant)
        found = await self._all(Change, select(policy_changes).where(_CHANGES.id.in_(last)))
        return {change.tenant: change for change in found}

    async def changes_since(self, id_: int) -> Sequence[Change]:
        """Return the changes after one, oldest first, and a few before it, in case they became visible late."""
        return [mapped(Change, row) for row in await self._database.look(_SINCE, {"after": id_ - _LATE_CHANGES})]

    async def text(self, digest: str) -> str:
        """Return a version's text; NotFound for an unknown digest."""
        # A tenant's first call waits for it before it is authenticated, so no tenant's reads may delay it.
        found = await self._database.first(select(policies.c.text).where(policies.c.digest == digest), foremost=True)
        if found is None:
            raise NotFound(f"no policy has the digest {digest[:64]!r}: `airlock policy history` lists the versions")
        return str(found.text)


def _is_new(connection: Connection, tenant: str, digest: str, after: int) -> bool:
    of_tenant = _CHANGES.tenant == tenant
    if _last(connection, of_tenant & (_CHANGES.digest == digest) & (_CHANGES.id > after)) is not None:
        return False
    return bool(
        after
        or _last(connection, of_tenant & (_CHANGES.kind == "file")) is not None
        or _last(connection, of_tenant) is None
    )


def _last(connection: Connection, which: Any) -> Change | None:
    query: Select[Any] = select(policy_changes).where(which).order_by(_CHANGES.id.desc()).limit(1)
    found = connection.execute(query).first()
    return None if found is None else mapped(Change, found)
