"""What operators do with tenants over the API: list them, see what is stored of one, and delete that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.config.config import Config
from gateway.errors import NotFound, StillConfigured
from gateway.policy_versions.policies import Policies
from gateway.storage.database import Database
from gateway.storage.tenant_rows import rows_of


class Erased(Protocol):
    """What was removed and what is left, as rows by table."""

    @property
    def removed(self) -> Mapping[str, int]: ...

    @property
    def left(self) -> Mapping[str, int]: ...

    @property
    def workspaces_removed(self) -> int: ...

    @property
    def audit_sequence(self) -> int: ...


class TenantErasure(Protocol):
    """Removes all that is stored of a tenant; gateway/data_lifecycle/erasure.py."""

    async def tenant(self, name: str, audit: bool, actor: str) -> Erased: ...
    async def was_deleted(self, name: str) -> bool: ...


@dataclass(frozen=True)
class KnownTenant:
    """A tenant, and the version of its own layer of policy."""

    name: str
    policy_version: str


class TenantAdmin:
    """The tenants of the configuration, and what others have left in the database."""

    def __init__(self, config: Config, policies: Policies, database: Database, erasure: TenantErasure) -> None:
        self._config = config
        self._policies = policies
        self._database = database
        self._erasure = erasure

    def check(self, name: str) -> None:
        """Raise NotFound for a tenant that is not configured."""
        if name not in self._config.tenants:
            raise NotFound(f"no tenant {name[:64]!r}; the configuration has {', '.join(sorted(self._config.tenants))}")

    async def page(self, size: int, after: str) -> Sequence[KnownTenant]:
        """Return one tenant more than a page holds, by name."""
        names = sorted(name for name in self._config.tenants if name > after)[: size + 1]
        return [KnownTenant(name, await self._version(name)) for name in names]

    async def get(self, name: str) -> tuple[KnownTenant, Mapping[str, int]]:
        """Return a tenant and what is stored of it; also of one that is not configured any more. NotFound."""
        stored = await rows_of(self._database, name) if name else {}
        if not any(stored.values()):
            self.check(name)
        # What was in force once is in force for nobody when there is no such tenant any more.
        version = await self._version(name) if name in self._config.tenants else ""
        return KnownTenant(name, version), stored

    async def delete(self, name: str, *, audit: bool, by: str) -> Erased:
        """Remove all that is stored of a tenant; StillConfigured while there is such a tenant.

        One that was deleted is deleted again, with nothing to remove as a rule. NotFound where none was ever stored.
        """
        if name in self._config.tenants:
            raise StillConfigured(
                f"tenant {name} is still configured: take it out of airlock.yaml, start the gateways again, then delete"
            )
        stored = any((await rows_of(self._database, name)).values()) if name else False
        if not stored and not await self._erasure.was_deleted(name):
            raise NotFound(f"nothing is stored of a tenant {name[:64]!r}")
        return await self._erasure.tenant(name, audit, by)

    async def _version(self, name: str) -> str:
        change = self._policies.change_in_force(name)
        return "" if change is None else await self._policies.named(change)
