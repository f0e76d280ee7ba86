"""The policies that `airlock doctor` checks: those in force, from the database or the files."""

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
    """Yield the policies in the database, or None if the next start creates or upgrades it."""
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
    """Return the tenants with the policies that the database has in force, including tenants without a file.

    A tenant keeps its policy file if the next start will apply it. Changes nothing. Raises Misconfigured, Unavailable.
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
    """Return a warning for each file that differs from the policy in force and will not be applied by the next start.

    Also one for each tenant that has neither a file nor a policy. Raises Misconfigured, Unavailable.
    """
    async with _stored(config) as policies:
        found = []
        for layer, path in _layers(config).items():
            what = f"policy of {layer}" if layer else "operator policy"
            change = policies.change_in_force(layer) if policies is not None else None
            if path is None and change is None:
                fix = f"run `airlock policy apply FILE --tenant {layer}`; until then its calls are refused"
                found.append(Finding(what, "warning", "managed by `airlock policy apply`, but never applied", fix))
            if policies is None or path is None or change is None or _digest(path) == change.digest:
                continue
            if not await policies.store.new(layer, _digest(path)):
                version = await policies.named(change)
                detail = f"{path} has no effect: {version} is in force ({change.kind} by {change.by})"
                whose = f"--tenant {layer}" if layer else "--operator-layer"
                fix = f"edit the file or run `airlock policy apply {path} {whose}`, or write `policy: managed`"
                found.append(Finding(what, "warning", detail, fix))
        return found


async def _stays(tenant: str, config: Config, policies: Policies) -> bool:
    """Return whether the next start leaves both layers of a tenant unchanged."""
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
    """Return the file of each layer; the operator's only if it has one."""
    from gateway.storage.policy_store import OPERATOR

    named: dict[str, Path | None] = {OPERATOR: config.operator_policy} if config.operator_policy is not None else {}
    named |= {name: settings.policy_file for name, settings in config.tenants.items()}
    return {layer: None if path is None else config.path(path) for layer, path in named.items()}


def _digest(path: Path) -> str:
    from gateway.storage.policy_store import digest_of_text

    return digest_of_text(path.read_text(encoding="utf-8"))
