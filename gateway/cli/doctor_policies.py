"""Which policies `airlock doctor --config` looks at: those in force, by the database as by the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.policies import Policies
    from gateway.tenants import Tenant


async def in_force(config: Config, tenants: Mapping[str, Tenant]) -> Mapping[str, Tenant]:
    """Return the tenants of the files with what the database has in force, for those that have something there.

    A tenant one of whose files was edited since a gateway looked keeps what the files say: they will be taken. Nothing
    is changed, and a database that the next start upgrades, or makes, is not asked. Raises Misconfigured, Unavailable.
    """
    from gateway.policies import Policies
    from gateway.storage.connecting import connect, file_of
    from gateway.storage.database import Database
    from gateway.storage.migration import revision_of
    from gateway.storage.policy_store import PolicyStore
    from gateway.tenants import Tenants

    url = config.resolved_database_url()
    file = file_of(url)
    if file is not None and not file.exists():
        return tenants
    revision = revision_of(url)
    if revision.current != revision.newest:
        return tenants
    database = Database(connect(url))
    policies = Policies(PolicyStore(database))
    try:
        await policies.open()
        stored = Tenants(config, policies)
        return {
            name: await stored.named(name) if _is_as_taken(name, config, policies) else tenant
            for name, tenant in tenants.items()
        }
    finally:
        policies.close()
        await database.close()


def _is_as_taken(tenant: str, config: Config, policies: Policies) -> bool:
    from gateway.storage.policy_store import OPERATOR, digest_of_text

    files: dict[str, Path] = {tenant: config.tenants[tenant].policy}
    if config.operator_policy is not None:
        files[OPERATOR] = config.operator_policy
    for layer, path in files.items():
        taken = policies.change_from_file(layer)
        if taken is None or taken.digest != digest_of_text(config.path(path).read_text(encoding="utf-8")):
            return False
    return True
