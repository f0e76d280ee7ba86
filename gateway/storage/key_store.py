"""API keys as they are stored: never their secrets. What is done with them is audited where it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Connection, Row, and_, insert, or_, select, update

from gateway.clock import NowUs, now_us
from gateway.errors import InvalidArgument, NotFound
from gateway.identity.keys import NewKey, checked_name, make_key
from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import api_keys

_KEYS = api_keys.c


@dataclass(frozen=True)
class StoredKey:
    """A key. `tenant` is "" for an operator's; times are UTC microseconds since 1970, None where there is none."""

    id: str
    tenant: str
    shown: str
    scopes: tuple[str, ...]
    name: str
    created_us: int
    expires_us: int | None
    revoked_us: int | None
    replaced_by: str | None


class KeyStore:
    """The keys of all tenants, and of the operators."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def add(
        self, tenant: str, *keys: NewKey, name: str = "", lifetime_us: int | None = None, by: str = "gateway"
    ) -> Sequence[StoredKey]:
        """Store keys of a tenant, or of an operator: all of them or none. InvalidArgument for a name that is none."""
        checked_name(name)
        now = self._clock()
        expires_us = None if lifetime_us is None else now + lifetime_us
        made = [_stored(tenant, key, name, now, expires_us) for key in keys]
        await self._database.transact(partial(self._insert, made=made, keys=keys, by=by))
        return made

    async def find(self, digest: str) -> StoredKey | None:
        """Return the key with a digest, None when it is not known, revoked or expired."""
        query = select(api_keys).where(_KEYS.digest == digest, self._works())
        found = await self._database.rows(query, foremost=True)
        return _key(found[0]) if found else None

    async def get(self, key_id: str) -> StoredKey:
        """Return a key by its id; NotFound."""
        found = await self._database.rows(select(api_keys).where(_KEYS.id == key_id))
        if not found:
            raise _unknown(key_id)
        return _key(found[0])

    async def list(
        self, tenant: str | None, *, include_ended: bool, limit: int, before: tuple[int, str] | None = None
    ) -> Sequence[StoredKey]:
        """Return keys, the newest first; of one tenant ("" for operators) or, with None, of all."""
        query = select(api_keys).order_by(_KEYS.created_us.desc(), _KEYS.id.desc()).limit(limit)
        if tenant is not None:
            query = query.where(_KEYS.tenant == tenant)
        if not include_ended:
            query = query.where(self._works())
        if before is not None:
            at_us, id_ = before
            query = query.where(or_(_KEYS.created_us < at_us, and_(_KEYS.created_us == at_us, _KEYS.id < id_)))
        return [_key(row) for row in await self._database.rows(query)]

    async def revoke(self, key_id: str, *, by: str) -> StoredKey:
        """Make a key useless; one that is revoked already stays as it is. NotFound."""
        return await self._database.transact(partial(self._revoke, key_id=key_id, by=by))

    async def rotate(self, key_id: str, *, overlap_us: int, by: str) -> tuple[StoredKey, NewKey]:
        """Make a key like another, as long-lived, which works on until the overlap is over.

        NotFound; InvalidArgument for one that does not work any more, or was rotated already.
        """
        return await self._database.transact(partial(self._rotate, key_id=key_id, overlap_us=overlap_us, by=by))

    def _works(self) -> Any:
        return and_(_KEYS.revoked_us.is_(None), or_(_KEYS.expires_us.is_(None), _KEYS.expires_us > self._clock()))

    # --- in the writer's thread ---

    def _insert(self, connection: Connection, *, made: Sequence[StoredKey], keys: Sequence[NewKey], by: str) -> None:
        for stored, key in zip(made, keys, strict=True):
            row = {name: getattr(stored, name) for name in StoredKey.__dataclass_fields__}
            connection.execute(
                insert(api_keys).values({**row, "scopes": ",".join(stored.scopes), "digest": key.digest})
            )
            self._tell(connection, "key_created", stored, by, name=stored.name, expires_us=stored.expires_us)

    def _revoke(self, connection: Connection, *, key_id: str, by: str) -> StoredKey:
        found = _locked(connection, key_id)
        if found.revoked_us is not None:
            return found
        connection.execute(update(api_keys).where(_KEYS.id == key_id).values(revoked_us=self._clock()))
        self._tell(connection, "key_revoked", found, by)
        return _locked(connection, key_id)

    def _rotate(self, connection: Connection, *, key_id: str, overlap_us: int, by: str) -> tuple[StoredKey, NewKey]:
        old, now = _locked(connection, key_id), self._clock()
        if old.replaced_by is not None:
            raise InvalidArgument(f"key_id: {old.shown} was rotated already: rotate {old.replaced_by}")
        if old.revoked_us is not None or (old.expires_us is not None and old.expires_us <= now):
            raise InvalidArgument(f"key_id: {old.shown} does not work any more: make a key")
        key = make_key(old.scopes, operator=not old.tenant)
        expires_us = None if old.expires_us is None else now + old.expires_us - old.created_us
        new = _stored(old.tenant, key, old.name, now, expires_us)
        ends_us = now + overlap_us if old.expires_us is None else min(now + overlap_us, old.expires_us)
        self._insert(connection, made=(new,), keys=(key,), by=by)
        connection.execute(update(api_keys).where(_KEYS.id == key_id).values(replaced_by=new.id, expires_us=ends_us))
        self._tell(connection, "key_rotated", old, by, replaced_by=new.id, works_until_us=ends_us)
        return new, key

    def _tell(self, connection: Connection, kind: str, key: StoredKey, by: str, **details: str | int | None) -> None:
        told: dict[str, JsonValue] = {
            "key_id": key.id,
            "shown": key.shown,
            "tenant": key.tenant,
            "scopes": list(key.scopes),
            **details,
        }
        chains = dict.fromkeys((OPERATORS, key.tenant))
        entries = tuple(AuditEntry(tenant=chain, kind=kind, actor=by, details=told) for chain in chains)
        self._audit.append(connection, entries=entries)


def _stored(tenant: str, key: NewKey, name: str, now: int, expires_us: int | None) -> StoredKey:
    return StoredKey(key.id, tenant, key.shown, key.scopes, name, now, expires_us, None, None)


def _locked(connection: Connection, key_id: str) -> StoredKey:
    found = connection.execute(select(api_keys).where(_KEYS.id == key_id).with_for_update()).first()
    if found is None:
        raise _unknown(key_id)
    return _key(found)


def _key(row: Row[Any]) -> StoredKey:
    fields = {name: getattr(row, name) for name in StoredKey.__dataclass_fields__}
    return StoredKey(**{**fields, "scopes": tuple(row.scopes.split(","))})


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"no key {key_id[:64]!r}: `airlock key list` shows those there are")
