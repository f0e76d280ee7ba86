"""API keys in the database of a configuration, with the client's methods."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.client.admin import KeyInfo, MadeKey, RevokedKey
    from gateway.config.config import Config
    from gateway.storage.database import Database
    from gateway.storage.key_store import KeyStore, StoredKey

_S = 1_000_000


@contextlib.asynccontextmanager
async def local_database(config: Config) -> AsyncIterator[Database]:
    """Open the database of a configuration; create it if it does not exist."""
    from gateway.storage.database import Database

    config.path(config.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    database = await Database.open(config.resolved_database_url())
    try:
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def local_keys(config: Config) -> AsyncIterator[LocalKeys]:
    """Open the keys of a configuration."""
    from gateway.storage.key_store import KeyStore

    async with local_database(config) as database:
        yield LocalKeys(config, KeyStore(database))


def check_tenant(config: Config, tenant: str) -> None:
    """Raise Misconfigured for an unknown tenant."""
    from gateway.errors import Misconfigured

    if tenant not in config.tenants:
        raise Misconfigured(f"unknown tenant {tenant!r}; configured tenants: {', '.join(sorted(config.tenants))}")


class LocalKeys:
    """The key methods of `Client` on the database, for which no operator key is needed."""

    def __init__(self, config: Config, keys: KeyStore) -> None:
        self._config = config
        self._keys = keys

    async def tenant(self, name: str) -> None:
        """Raise Misconfigured for an unknown tenant."""
        check_tenant(self._config, name)

    async def create_key(
        self, tenant: str, *, scopes: Collection[str] = (), name: str = "", expires_in_s: int = 0
    ) -> MadeKey:
        """Create a key. Raises Misconfigured for an unknown tenant."""
        from gateway.client.admin import MadeKey
        from gateway.credentials.keys import ACTING_SCOPES, OPERATOR_SCOPES, make_key

        if tenant:
            check_tenant(self._config, tenant)
        key = make_key(scopes or (ACTING_SCOPES if tenant else OPERATOR_SCOPES), operator=not tenant)
        lifetime_us = expires_in_s * _S or None
        (stored,) = await self._keys.add(tenant, key, name=name, lifetime_us=lifetime_us, by=local_actor())
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
        from gateway.client.admin import RevokedKey

        key = await self._keys.revoke(key_id, by=local_actor())
        runs = self._keys.runs
        if cancel_runs:
            return RevokedKey(_info(key), await runs.cancel(key.tenant, key.shown, by=local_actor()))
        return RevokedKey(_info(key), await runs.count(key.tenant, key.shown))

    async def rotate_key(self, key_id: str, *, overlap_s: int = 0) -> MadeKey:
        """Create a replacement for a key."""
        from gateway.client.admin import MadeKey

        new, key = await self._keys.rotate(key_id, overlap_us=(overlap_s or 86_400) * _S, by=local_actor())
        return MadeKey(_info(new), key.secret)


def local_actor() -> str:
    """Return the actor that the audit records for work on the database itself."""
    try:
        return f"local:{getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name
        return "local:unknown"


def _info(key: StoredKey) -> KeyInfo:
    from gateway.client.admin import KeyInfo

    return KeyInfo(
        id=key.id,
        tenant=key.tenant,
        shown=key.shown,
        scopes=key.scopes,
        name=key.name,
        created_at=_time(key.created_us),
        expires_at=None if key.expires_us is None else _time(key.expires_us),
        revoked_at=None if key.revoked_us is None else _time(key.revoked_us),
        replaced_by=key.replaced_by or "",
    )


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / _S, UTC)
