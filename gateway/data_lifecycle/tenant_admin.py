"""Operations of operators on tenants: list them, show what is stored of one, delete it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config.config import Config
from gateway.data_lifecycle.erasure import Erasure
from gateway.errors import NotFound, StillConfigured
from gateway.policy_versions.policies import Policies
from gateway.storage.database import Database
from gateway.storage.erasure_store import Erased, rows_of


@dataclass(frozen=True)
class KnownTenant:
    """A tenant, and the version of its own layer of policy."""

    name: str
    policy_version: str


class TenantAdmin:
    """The tenants of the configuration, and what the database has of others."""

    def __init__(self, config: Config, policies: Policies, database: Database, erasure: Erasure) -> None:
        self._config = config
        self._policies = policies
        self._database = database
        self._erasure = erasure

    def check(self, name: str) -> None:
        if name not in self._config.tenants:
            raise NotFound(
                f"unknown tenant {name[:64]!r}; configured tenants: {', '.join(sorted(self._config.tenants))}"
            )

    async def page(self, size: int, after: str) -> Sequence[KnownTenant]:
        """Return the tenants of a page, and one more if there is a next page, by name."""
        names = sorted(name for name in self._config.tenants if name > after)[: size + 1]
        return [KnownTenant(name, await self._version(name)) for name in names]

    async def get(self, name: str) -> tuple[KnownTenant, Mapping[str, int]]:
        """Return a tenant, also a formerly configured one, and what is stored of it; NotFound if there is nothing."""
        stored = await rows_of(self._database, name) if name else {}
        if not any(stored.values()):
            self.check(name)
        # A policy is in force for configured tenants only.
        version = await self._version(name) if name in self._config.tenants else ""
        return KnownTenant(name, version), stored

    async def delete(self, name: str, *, audit: bool, by: str) -> Erased:
        """Erase a tenant; StillConfigured while the configuration has it.

        A deleted tenant can be deleted again, usually with nothing left to remove. NotFound if it never existed.
        """
        if name in self._config.tenants:
            raise StillConfigured(
                f"tenant {name} is still configured: remove it from airlock.yaml, restart the gateways, then delete it"
            )
        stored = any((await rows_of(self._database, name)).values()) if name else False
        if not stored and not await self._erasure.was_deleted(name):
            raise NotFound(f"no data is stored for tenant {name[:64]!r}")
        return await self._erasure.tenant(name, audit, by)

    async def _version(self, name: str) -> str:
        change = self._policies.change_in_force(name)
        return "" if change is None else await self._policies.named(change)
