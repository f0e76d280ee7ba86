"""API keys in the database of a configuration, with the client's methods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime

from gateway.cli.command import check_tenant, user_name
from gateway.client.admin import KeyInfo, MadeKey, RevokedKey
from gateway.config.config import Config
from gateway.credentials.keys import ACTING_SCOPES, OPERATOR_SCOPES, make_key
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore, StoredKey

_S = 1_000_000


@contextlib.asynccontextmanager
async def local_database(config: Config, *, create: bool = False) -> AsyncIterator[Database]:
    """Open the database of a configuration; with `create`, in a state directory that may not exist yet."""
    if create:
        config.path(config.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    database = await Database.open(config.resolved_database_url())
    try:
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def local_keys(config: Config) -> AsyncIterator[LocalKeys]:
    """Open the keys of a configuration."""
    async with local_database(config, create=True) as database:
        yield LocalKeys(config, KeyStore(database))


class LocalKeys:
    """The key methods of `Client` on the database, for which no operator key is needed."""

    def __init__(self, config: Config, keys: KeyStore) -> None:
        self._config = config
        self._keys = keys
        self._actor = f"local:{user_name()}"

    async def tenant(self, name: str) -> None:
        """Raise Misconfigured for an unknown tenant."""
        check_tenant(self._config, name)

    async def create_key(
        self, tenant: str, *, scopes: Collection[str] = (), name: str = "", expires_in_s: int = 0
    ) -> MadeKey:
        """Create a key. Raises Misconfigured for an unknown tenant."""
        if tenant:
            check_tenant(self._config, tenant)
        key = make_key(scopes or (ACTING_SCOPES if tenant else OPERATOR_SCOPES), operator=not tenant)
        lifetime_us = expires_in_s * _S or None
        stored = await self._keys.add(tenant, key, name=name, lifetime_us=lifetime_us, by=self._actor)
        return MadeKey(_info(stored), key.secret)

    async def keys(
        self, tenant: str = "", *, include_ended: bool = False, scope: str = "", state: str = ""
    ) -> AsyncIterator[KeyInfo]:
        """Yield keys, newest first, filtered as by `Client.keys`."""
        place: tuple[int, str] | None = None
        while True:
            found = await self._keys.list(
                tenant or None, include_ended=include_ended, limit=200, before=place, scope=scope, state=state
            )
            for key in found:
                yield _info(key)
            if not found:
                return
            place = (found[-1].created_us, found[-1].id)

    async def revoke_key(self, key_id: str, *, cancel_runs: bool = False) -> RevokedKey:
        """Revoke a key, and have the gateways cancel its runs if requested."""
        key = await self._keys.revoke(key_id, by=self._actor)
        if cancel_runs:
            return RevokedKey(_info(key), await self._keys.cancel_runs(key.tenant, key.shown, by=self._actor))
        return RevokedKey(_info(key), await self._keys.runs_of(key.tenant, key.shown))

    async def rotate_key(self, key_id: str, *, overlap_s: int = 0) -> MadeKey:
        """Create a replacement for a key."""
        new, key = await self._keys.rotate(key_id, overlap_us=(overlap_s or 86_400) * _S, by=self._actor)
        return MadeKey(_info(new), key.secret)


def _info(key: StoredKey) -> KeyInfo:
    created, expires, revoked = (
        datetime.fromtimestamp((at_us or 0) / _S, UTC) for at_us in (key.created_us, key.expires_us, key.revoked_us)
    )
    return KeyInfo(
        *(key.id, key.tenant, key.shown, key.scopes, key.name, created),
        expires_at=expires if key.expires_us is not None else None,
        revoked_at=revoked if key.revoked_us is not None else None,
        replaced_by=key.replaced_by or "",
    )
