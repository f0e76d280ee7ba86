"""The database of a configuration, and the policies in it, for commands that use them without a gateway."""

import contextlib
from collections.abc import AsyncIterator

from gateway.config.config import Config
from gateway.policy_versions.policies import Policies
from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore


@contextlib.asynccontextmanager
async def local_database(config: Config, *, create: bool = False, as_it_is: bool = False) -> AsyncIterator[Database]:
    """Open the database of a configuration; with `create`, in a state directory that may not exist yet.

    With `as_it_is`, it is neither migrated nor checked.
    """
    if create:
        config.path(config.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    url = config.resolved_database_url()
    database = await (Database.as_it_is(url) if as_it_is else Database.open(url))
    try:
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def opened_policies(database: Database) -> AsyncIterator[Policies]:
    """Open the policies of a database."""
    policies = Policies(PolicyStore(database))
    try:
        await policies.open()
        yield policies
    finally:
        policies.close()
