"""Where `airlock key` and `airlock tenant` do their work: on a gateway, with an operator's key, or on its database."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

if TYPE_CHECKING:
    from gateway.client.admin import KeyInfo, MadeKey, RevokedKey
    from gateway.config.config import Config
    from gateway.storage.key_store import KeyStore, StoredKey

_S = 1_000_000
CONFIG = Path("airlock.yaml")
ConfigFile = Annotated[Path, typer.Option(help="Configuration file; its database is used, without a gateway.")]


def address_of(context: typer.Context, given: str) -> str:
    """Return the address that a command asks, "" for none: the option's, else the environment's where no file speaks.

    Who stands beside a configuration means its database, whatever the environment says.
    """
    source = context.get_parameter_source("config")
    if given or context.resilient_parsing or source is None or source.name != "DEFAULT" or CONFIG.exists():
        return given
    return os.environ.get("AIRLOCK_ADDRESS", "")


AtAddress = Annotated[
    str,
    typer.Option(
        "--address",
        help="HOST:PORT of a gateway, to ask it with an operator's key instead. Where neither this nor --config is "
        "given and no airlock.yaml is here, it is AIRLOCK_ADDRESS.",
        callback=address_of,
    ),
]


class KeyDesk(Protocol):
    """What can be done with keys; gateway/client/admin.py has it over the API."""

    async def tenant(self, name: str) -> object: ...

    async def create_key(
        self, tenant: str, *, scopes: Collection[str] = (), name: str = "", expires_in_s: int = 0
    ) -> MadeKey: ...

    def keys(
        self, tenant: str = "", *, include_ended: bool = False, scope: str = "", state: str = ""
    ) -> AsyncIterator[KeyInfo]: ...

    async def revoke_key(self, key_id: str, *, cancel_runs: bool = False) -> RevokedKey: ...

    async def rotate_key(self, key_id: str, *, overlap_s: int = 0) -> MadeKey: ...


@contextlib.asynccontextmanager
async def key_desk(config: Path, address: str, key: str) -> AsyncIterator[KeyDesk]:
    """Open what an address is given for, else the configuration's database."""
    if address:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            yield airlock
        return
    from gateway.config.config import Config

    async with local_keys(Config.load(config)) as desk:
        yield desk


@contextlib.asynccontextmanager
async def local_keys(config: Config) -> AsyncIterator[LocalKeys]:
    """Open the database of a configuration."""
    from gateway.storage.database import Database
    from gateway.storage.key_store import KeyStore

    config.path(config.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    database = await Database.open(config.resolved_database_url())
    try:
        yield LocalKeys(config, KeyStore(database))
    finally:
        await database.close()


class LocalKeys:
    """Keys in the database: who can write that needs no operator's key."""

    def __init__(self, config: Config, keys: KeyStore) -> None:
        self._config = config
        self._keys = keys

    async def tenant(self, name: str) -> None:
        """Raise Misconfigured for a tenant that is not configured."""
        from gateway.errors import Misconfigured

        if name not in self._config.tenants:
            raise Misconfigured(f"tenant {name!r} is not one of {', '.join(sorted(self._config.tenants))}")

    async def create_key(
        self, tenant: str, *, scopes: Collection[str] = (), name: str = "", expires_in_s: int = 0
    ) -> MadeKey:
        """Make a key; Misconfigured for a tenant that is not configured."""
        from gateway.client.admin import MadeKey
        from gateway.credentials.keys import ACTING_SCOPES, OPERATOR_SCOPES, make_key

        if tenant:
            await self.tenant(tenant)
        key = make_key(scopes or (ACTING_SCOPES if tenant else OPERATOR_SCOPES), operator=not tenant)
        lifetime_us = expires_in_s * _S or None
        (stored,) = await self._keys.add(tenant, key, name=name, lifetime_us=lifetime_us, by=local_actor())
        return MadeKey(_info(stored), key.secret)

    async def keys(
        self, tenant: str = "", *, include_ended: bool = False, scope: str = "", state: str = ""
    ) -> AsyncIterator[KeyInfo]:
        """Yield keys, the newest first; `scope` and `state` as `Client.keys` has them."""
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
        """Make a key useless, and have the gateways end its runs where that is asked for."""
        from gateway.client.admin import RevokedKey

        key = await self._keys.revoke(key_id, by=local_actor())
        runs = self._keys.runs
        if cancel_runs:
            return RevokedKey(_info(key), await runs.cancel(key.tenant, key.shown, by=local_actor()))
        return RevokedKey(_info(key), await runs.count(key.tenant, key.shown))

    async def rotate_key(self, key_id: str, *, overlap_s: int = 0) -> MadeKey:
        """Make a key like another one."""
        from gateway.client.admin import MadeKey

        new, key = await self._keys.rotate(key_id, overlap_us=(overlap_s or 86_400) * _S, by=local_actor())
        return MadeKey(_info(new), key.secret)


def local_actor() -> str:
    """Return who does something on the database itself, as the audit names it."""
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
