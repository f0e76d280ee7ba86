"""API keys as they are stored, without their secrets. Changes are audited in the same transaction.

A key that was requested with a request id is created once. A repeated request did not get the secret, so it replaces
the key's secret, unless the key was used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, insert, literal, or_, select, update

from gateway.credentials.keys import NewKey, checked_name, make_key
from gateway.errors import Conflict, InvalidArgument, NotFound, RequestIdReused
from gateway.storage.audit_store import OPERATORS, AuditEntry
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, mapped, page_of, transaction
from gateway.storage.run_writes import run_changed
from gateway.storage.tables import RUNS_UNDER_WAY, api_keys, runs
from gateway.support.paging import Place

_KEYS = api_keys.c
_ASKED_AGAIN_US = 600 * 1_000_000
WORKING, KEY_EXPIRED, KEY_REVOKED = "working", "expired", "revoked"


def _is(state: str, at_us: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition of keys that are in a state at a time."""
    if state == KEY_REVOKED:
        return _KEYS.revoked_us.is_not(None)
    over = _KEYS.expires_us <= at_us
    in_time = over if state == KEY_EXPIRED else or_(_KEYS.expires_us.is_(None), ~over)
    return and_(_KEYS.revoked_us.is_(None), in_time)


_WORKING_KEY = Prepared(select(api_keys).where(_KEYS.digest == bindparam("asked"), _is(WORKING, bindparam("at_us"))))


@dataclass(frozen=True)
class StoredKey:
    """A key. `tenant` is "" for an operator's; times are UTC microseconds since 1970, None for unset."""

    id: str
    tenant: str
    shown: str
    scopes: tuple[str, ...]
    name: str
    created_us: int
    expires_us: int | None
    revoked_us: int | None = None
    replaced_by: str | None = None

    def is_over(self, now_us: int) -> bool:
        return self.revoked_us is not None or (self.expires_us is not None and self.expires_us <= now_us)


@dataclass(frozen=True)
class KeyRequest:
    """A request for a key with a request id and a digest of its content."""

    id: str
    digest: str

    @classmethod
    def of(cls, request_id: str, by: str, *asked: JsonValue) -> KeyRequest | None:
        fields = json.dumps([by, *asked])
        return cls(request_id, hashlib.sha256(fields.encode()).hexdigest()) if request_id else None


class KeyStore(Queries):
    """The keys of all tenants and of the operators, and the runs that they started, which outlive them."""

    @transaction
    def add(
        self,
        connection: Connection,
        tenant: str,
        key: NewKey,
        *,
        name: str = "",
        lifetime_us: int | None = None,
        by: str = "gateway",
        request: KeyRequest | None = None,
    ) -> StoredKey:
        """Store a key of a tenant or an operator, or give its secret to the unused key of the same request.

        Raises InvalidArgument for an invalid name, RequestIdReused, Conflict.
        """
        checked_name(name)
        again = self._asked_again(connection, request, key, by)
        if again is not None:
            return again
        now = self.clock()
        expires_us = None if lifetime_us is None else now + lifetime_us
        made = StoredKey(key.id, tenant, key.shown, key.scopes, name, now, expires_us)
        self._insert(connection, made, key, by, request)
        return made

    async def find(self, digest: str) -> StoredKey | None:
        asked = {"asked": digest, "at_us": self.clock()}
        found = await self._database.look(_WORKING_KEY, asked, foremost=True)
        if found and found[0].request_id is not None and found[0].used_us is None:
            # The first use: from here on the key never gets another secret.
            used = update(api_keys).where(_KEYS.digest == digest, _KEYS.used_us.is_(None))
            await self._database.write((used.values(used_us=self.clock()), None))
            found = await self._database.look(_WORKING_KEY, asked, foremost=True)
        return _key(found[0]) if found else None

    async def over(self, digest: str) -> StoredKey | None:
        """Return the revoked or expired key with a digest; None if it is unknown or works."""
        found = await self._database.first(
            select(api_keys).where(_KEYS.digest == digest, ~_is(WORKING, self.clock())), foremost=True
        )
        return None if found is None else _key(found)

    async def get(self, key_id: str) -> StoredKey:
        found = await self._database.first(select(api_keys).where(_KEYS.id == key_id))
        if found is None:
            raise _unknown(key_id)
        return _key(found)

    async def list(
        self,
        tenant: str | None,
        *,
        include_ended: bool,
        limit: int,
        before: Place | None = None,
        scope: str = "",
        state: str = "",
    ) -> Sequence[StoredKey]:
        """Return keys, newest first; `tenant` is "" for operators, None for all. `state` overrides `include_ended`."""
        query = select(api_keys)
        if tenant is not None:
            query = query.where(_KEYS.tenant == tenant)
        if scope:
            query = query.where((literal(",") + _KEYS.scopes + literal(",")).contains(f",{scope},", autoescape=True))
        if state or not include_ended:
            query = query.where(_is(state or WORKING, self.clock()))
        return [_key(row) for row in await self._database.rows(page_of(query, api_keys, before, limit))]

    @transaction
    def revoke(self, connection: Connection, key_id: str, *, by: str) -> StoredKey:
        """Revoke a key; one that is revoked already stays as it is. NotFound."""
        found = _locked(connection, key_id)
        if found.revoked_us is not None:
            return found
        now = self.clock()
        connection.execute(update(api_keys).where(_KEYS.id == key_id).values(revoked_us=now))
        self._record(connection, "key_revoked", found, by)
        return replace(found, revoked_us=now)

    @transaction
    def rotate(
        self, connection: Connection, key_id: str, *, overlap_us: int, by: str, request: KeyRequest | None = None
    ) -> tuple[StoredKey, NewKey]:
        """Create a key like another one, which works until the overlap is over; otherwise as add."""
        old, now = _locked(connection, key_id), self.clock()
        key = make_key(old.scopes, operator=not old.tenant)
        again = self._asked_again(connection, request, key, by)
        if again is not None:
            return again, key
        if old.replaced_by is not None:
            raise InvalidArgument(f"key_id: {old.shown} was already rotated: rotate {old.replaced_by}")
        if old.is_over(now):
            raise InvalidArgument(f"key_id: {old.shown} is expired or revoked: create a key")
        expires_us = None if old.expires_us is None else now + old.expires_us - old.created_us
        new = StoredKey(key.id, old.tenant, key.shown, key.scopes, old.name, now, expires_us)
        ends_us = now + overlap_us if old.expires_us is None else min(now + overlap_us, old.expires_us)
        self._insert(connection, new, key, by, request)
        connection.execute(update(api_keys).where(_KEYS.id == key_id).values(replaced_by=new.id, expires_us=ends_us))
        self._record(connection, "key_rotated", old, by, replaced_by=new.id, works_until_us=ends_us)
        return new, key

    async def runs_of(self, tenant: str, shown: str) -> int:
        """Return how many runs are under way that a key started, by the part of it that is shown."""
        return int(await self._database.scalar(select(func.count()).where(_under_way(tenant, shown))))

    @transaction
    def cancel_runs(self, connection: Connection, tenant: str, shown: str, *, by: str) -> int:
        """Request the end of those runs; return how many there are, including those requested before."""
        query = select(runs.c.id, runs.c.cancel_us).where(_under_way(tenant, shown))
        found = connection.execute(query.with_for_update()).all()
        for run_id in [row.id for row in found if row.cancel_us is None]:
            connection.execute(update(runs).where(runs.c.id == run_id).values(cancel_us=self.clock()))
            self.audit.append(connection, *run_changed(connection, "run_cancelled", run_id, by=by))
        return len(found)

    # --- in the writer's thread ---

    def _insert(
        self, connection: Connection, made: StoredKey, key: NewKey, by: str, request: KeyRequest | None
    ) -> None:
        asked = {} if request is None else {"request_id": request.id, "request_digest": request.digest}
        row = {**vars(made), **asked, "scopes": ",".join(made.scopes), "digest": key.digest}
        connection.execute(insert(api_keys).values(row))
        self._record(connection, "key_created", made, by, name=made.name, expires_us=made.expires_us)

    def _asked_again(
        self, connection: Connection, request: KeyRequest | None, key: NewKey, by: str
    ) -> StoredKey | None:
        """Give the key that the same request created the secret of `key`; None if there was no such request."""
        if request is None:
            return None
        asked = select(api_keys).where(_KEYS.request_id == request.id).with_for_update()
        found = connection.execute(asked).first()
        if found is None:
            return None
        if found.request_digest != request.digest:
            raise RequestIdReused(
                f"request_id: {request.id!r} was already used for a different key; use a new one for each key"
            )
        now, known = self.clock(), _key(found)
        if found.used_us is not None or known.is_over(now) or known.created_us <= now - _ASKED_AGAIN_US:
            raise Conflict(
                f"request {request.id!r} created the key {known.id}, which has been used or is more than "
                f"{_ASKED_AGAIN_US // 60_000_000} minutes old: revoke it if its secret is lost, and create another",
                key_id=known.id,
            )
        fresh = {"digest": key.digest, "shown": key.shown}
        connection.execute(update(api_keys).where(_KEYS.id == known.id).values(**fresh))
        known = replace(known, shown=key.shown)
        self._record(connection, "key_reissued", known, by)
        return known

    def _record(self, connection: Connection, kind: str, key: StoredKey, by: str, **more: str | int | None) -> None:
        facts: dict[str, JsonValue] = {"key_id": key.id, "shown": key.shown, "tenant": key.tenant}
        facts |= {"scopes": list(key.scopes), **more}
        chains = dict.fromkeys((OPERATORS, key.tenant))
        self.audit.append(connection, *(AuditEntry(chain, kind, by, details=facts) for chain in chains))


def _locked(connection: Connection, key_id: str) -> StoredKey:
    found = connection.execute(select(api_keys).where(_KEYS.id == key_id).with_for_update()).first()
    if found is None:
        raise _unknown(key_id)
    return _key(found)


def _key(row: Row[Any]) -> StoredKey:
    return mapped(StoredKey, row, scopes=tuple(row.scopes.split(",")))


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"key {key_id[:64]!r} not found: `airlock key list` lists the keys")


def _under_way(tenant: str, shown: str) -> ColumnElement[bool]:
    return and_(runs.c.tenant == tenant, runs.c.started_by == shown, runs.c.status.in_(RUNS_UNDER_WAY))
