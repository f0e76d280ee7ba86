"""API keys as they are stored: never their secrets."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import insert, select

from gateway.clock import NowUs, now_us
from gateway.keys import NewKey
from gateway.storage.database import Database
from gateway.storage.tables import api_keys


@dataclass(frozen=True)
class StoredKey:
    """A key that is known and not revoked."""

    id: str
    tenant: str
    shown: str
    scopes: tuple[str, ...]


class KeyStore:
    """The keys of all tenants."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock

    async def add(self, tenant: str, *keys: NewKey) -> None:
        """Store keys of a tenant: all of them or none."""
        rows = [
            {
                "id": key.id,
                "tenant": tenant,
                "shown": key.shown,
                "digest": key.digest,
                "created_us": self._clock(),
                "scopes": ",".join(key.scopes),
            }
            for key in keys
        ]
        await self._database.write((insert(api_keys), rows))

    async def find(self, digest: str) -> StoredKey | None:
        """Return the key with a digest, None when it is not known or revoked."""
        columns = api_keys.c
        query = select(columns.id, columns.tenant, columns.shown, columns.scopes).where(
            columns.digest == digest, columns.revoked_us.is_(None)
        )
        found = await self._database.rows(query)
        if not found:
            return None
        row = found[0]
        return StoredKey(row.id, row.tenant, row.shown, tuple(row.scopes.split(",")))
