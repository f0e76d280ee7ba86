"""Which policies `airlock doctor --config` looks at: those in force, by the database as by the files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.doctor_database import is_migrated
from gateway.cli.finding import Finding

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.policy_versions.policies import Policies
    from gateway.tenancy.tenants import Tenant


@contextlib.asynccontextmanager
async def _stored(config: Config) -> AsyncIterator[Policies | None]:
    """Have what the database has in force; None where the next start makes or migrates the database."""
    from gateway.policy_versions.policies import Policies
    from gateway.storage.connecting import connect
    from gateway.storage.database import Database
    from gateway.storage.policy_store import PolicyStore

    if not is_migrated(config):
        yield None
        return
    database = Database(connect(config.resolved_database_url()))
    policies = Policies(PolicyStore(database))
    try:
        await policies.open()
        yield policies
    finally:
        policies.close()
        await database.close()


async def in_force(config: Config, tenants: Mapping[str, Tenant]) -> Mapping[str, Tenant]:
    """Return the tenants of the files with what the database has in force, and those without a file.

    A tenant one of whose files the next start takes keeps what the files say. Nothing is changed, and a database that
    the next start migrates or makes is not asked. Raises Misconfigured, Unavailable.
    """
    from gateway.tenancy.tenants import Tenants

    async with _stored(config) as policies:
        if policies is None:
            return tenants
        stored, found = Tenants(config, policies), dict(tenants)
        for name, settings in config.tenants.items():
            if policies.change_in_force(name) is None:
                continue
            if settings.policy_file is None or await _stays(name, config, policies):
                found[name] = await stored.named(name)
        return found


async def drift_findings(config: Config) -> list[Finding]:
    """Return a warning for each file that is not what is in force, and that the next start does not take.

    And one for each tenant without a file and without a policy. Raises Misconfigured, Unavailable.
    """
    async with _stored(config) as policies:
        found = []
        for layer, path in _layers(config).items():
            what = f"policy of {layer}" if layer else "operator policy"
            change = policies.change_in_force(layer) if policies is not None else None
            if path is None and change is None:
                mend = f"`airlock policy apply FILE --tenant {layer}` applies one; until then its calls are refused"
                found.append(
                    Finding(what, "warning", "managed by airlock policy apply, and none was applied yet", mend)
                )
            if policies is None or path is None or change is None or _digest(path) == change.digest:
                continue
            if not await policies.store.new(layer, _digest(path)):
                version = await policies.named(change)
                detail = f"{path} is not what is in force ({version}, {change.kind} by {change.by}) and changes nothing"
                whose = f"--tenant {layer}" if layer else "--operator-layer"
                mend = (
                    f"`airlock policy apply {path} {whose}` puts the file in force, and so does an edit; without a "
                    "file, write `policy: managed`"
                )
                found.append(Finding(what, "warning", detail, mend))
        return found


async def _stays(tenant: str, config: Config, policies: Policies) -> bool:
    """Return whether the next start leaves both layers of a tenant as they are."""
    from gateway.storage.policy_store import OPERATOR

    for layer, path in _layers(config).items():
        if path is None or layer not in (tenant, OPERATOR):
            continue
        change = policies.change_in_force(layer)
        if change is None:
            return False
        if change.digest != _digest(path) and await policies.store.new(layer, _digest(path)):
            return False
    return True


def _layers(config: Config) -> Mapping[str, Path | None]:
    """Return the file of the operator's layer, where there is one, and those of the tenants."""
    from gateway.storage.policy_store import OPERATOR

    named: dict[str, Path | None] = {OPERATOR: config.operator_policy} if config.operator_policy is not None else {}
    named |= {name: settings.policy_file for name, settings in config.tenants.items()}
    return {layer: None if path is None else config.path(path) for layer, path in named.items()}


def _digest(path: Path) -> str:
    from gateway.storage.policy_store import digest_of_text

    return digest_of_text(path.read_text(encoding="utf-8"))
