"""Erases a thread, or everything that is stored of a tenant, and counts what is left.

Files go before rows: while a row is left, the same deletion can be requested again and resumes. Before the files go,
the row is marked, and no call starts in the thread any more: such a call would create a sandbox and files without a
row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Protocol, TypeVar

import structlog

from agent.cancellation import to_the_end
from gateway.config.config import Config
from gateway.errors import NotFound, StillConfigured, Unavailable
from gateway.policy_versions.policies import Policies
from gateway.storage.database import Database
from gateway.storage.erasure_store import Erased, ErasureStore, TenantErasure, busy_with_calls, rows_of
from gateway.support.clock import make_id
from sandbox.engines.engine import Removal
from sandbox.errors import SandboxBusy, SandboxError, SandboxUnavailable, WorkspaceIncomplete

log = structlog.get_logger(__name__)
T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

# How long runs and calls in progress may take to end after a request to do so.
_END_S = 30.0
_POLL_S = 0.2
# How long a container that is being removed may still use its workspace.
_RELEASE_S = 5.0


class StoredFiles(Protocol):
    """The files of tenants outside the database: workspaces on an engine, and snapshots."""

    async def engine_id(self) -> str:
        """Return the id of the engine, as threads.engine has it."""

    async def remove(self, tenant: str, thread: str) -> bool:
        """Remove the files of a thread, as remove_files() does."""

    async def remove_rest(self, tenant: str) -> int:
        """Remove every other sandbox and workspace of a tenant; return the number of workspaces."""

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Count what is left of a tenant, such as `volumes` and `containers`."""


async def remove_files(engine: Removal, tenant: str, thread: str, sleep: Sleep = asyncio.sleep) -> bool:
    """Remove the sandbox and the workspace of a tenant's thread; return whether there was a workspace.

    Raises SandboxBusy while calls are in progress in it, WorkspaceIncomplete if some files may be gone; after any other
    error none is.
    """
    incomplete = False

    async def attempt() -> bool:
        nonlocal incomplete
        try:
            # In each attempt: a call may have created a sandbox again in between.
            await engine.remove_of(tenant, thread)
            return await engine.remove_workspace(tenant, thread)
        except WorkspaceIncomplete:
            incomplete = True
            raise

    try:
        return await _retried(attempt, SandboxUnavailable, _RELEASE_S, sleep)
    except SandboxError as error:
        if incomplete:
            raise WorkspaceIncomplete(str(error)) from error
        raise


async def _retried(operation: Callable[[], Awaitable[T]], error: type[SandboxError], limit_s: float, sleep: Sleep) -> T:
    """Repeat an operation while it raises `error`, for so many seconds at most."""
    for _ in range(round(limit_s / _POLL_S)):
        try:
            return await operation()
        except error:
            await sleep(_POLL_S)
    return await operation()


@dataclass
class Erasure:
    """Erases threads and tenants."""

    database: Database
    store: ErasureStore
    files: StoredFiles
    _: KW_ONLY
    sleep: Sleep = asyncio.sleep

    async def thread(self, tenant: str, name: str, actor: str) -> Mapping[str, int]:
        """Delete a thread; return the rows by table. Raises NotFound, and ThreadBusy while anything runs in it."""
        deletion = make_id("del")
        try:
            # To the end, even if the caller disconnects: only this task knows what became of the files.
            removed = await to_the_end(self._removed(tenant, name, actor, deletion))
        except SandboxBusy as error:
            raise busy_with_calls(name) from error
        except WorkspaceIncomplete as error:
            raise Unavailable(
                f"files of thread {name[:64]!r} may be gone, so it accepts no calls: delete it again: {error}"
            ) from error
        except SandboxError as error:
            raise Unavailable(
                f"the files of thread {name[:64]!r} could not be removed, so nothing was deleted: {error}"
            ) from error
        await self.database.truncate_log()
        return removed

    async def _removed(self, tenant: str, name: str, actor: str, deletion: str) -> Mapping[str, int]:
        if elsewhere := await self._elsewhere(await self.store.threads_of(tenant, name)):
            raise _on_other_engines(elsewhere)
        mark = await self.store.begin(tenant, name, deletion)
        # If the process dies from here on, or files may be gone, the thread can only be deleted: opened again, it
        # would look complete without its files.
        try:
            await self.files.remove(tenant, name)
        except WorkspaceIncomplete:
            raise
        except Exception:
            await self.store.give_up(tenant, name, deletion, mark)
            raise
        return await self.store.remove_thread(tenant, name, actor, deletion)

    async def tenant(self, name: str, audit: bool, actor: str) -> Erased:
        """Erase everything that is stored of a tenant, with `audit` also its audit. Repeat it to erase what is left.

        The tenant's keys stop working first. Raises Unavailable if files could not be removed.
        """
        await self.store.stop_tenant(name)
        await self._until_all_ended(name)
        workspaces = await self._remove_all_files(name) + await self._remove_the_rest(name)
        # Before the rows go: while there are some, the deletion can be repeated if the engine does not answer.
        try:
            on_engine = await self.files.left_of(name)
        except SandboxError as error:
            raise Unavailable(f"the engine could not list its remaining data; try again: {error}") from error
        removed = await self.store.remove_tenant(name)
        erased = await self.store.record(TenantErasure(name, audit, actor, removed, workspaces, on_engine))
        if not await self.database.truncate_log():
            log.warning("deleted data stays in the database's log until that is next truncated", tenant=name)
        return erased

    async def _until_all_ended(self, tenant: str) -> None:
        for _ in range(round(_END_S / _POLL_S)):
            if not await self.store.under_way(tenant):
                return
            await self.sleep(_POLL_S)
        log.warning(
            "runs or calls of a deleted tenant did not end in time and are taken from their gateway", tenant=tenant
        )
        await self.store.take_runs(tenant)

    async def _remove_all_files(self, tenant: str) -> int:
        """Remove the workspaces of all threads; return how many existed. Unavailable if one is on another engine."""
        found = await self.store.threads_of(tenant)
        elsewhere = await self._elsewhere(found)
        removed = 0
        for thread in sorted(found.keys() - elsewhere):
            remove = partial(self.files.remove, tenant, thread)
            try:
                removed += await _retried(remove, SandboxBusy, _END_S, self.sleep)
            except SandboxError as error:
                raise Unavailable(
                    f"the files of thread {thread[:64]!r} could not be removed: {error}; try again"
                ) from error
            if elsewhere:
                await self.store.forget_engine(tenant, thread)
        if elsewhere:
            raise _on_other_engines(elsewhere)
        return removed

    async def _remove_the_rest(self, tenant: str) -> int:
        """Remove what the engine has of threads without a row; return how many workspaces there were."""
        try:
            return await _retried(partial(self.files.remove_rest, tenant), SandboxUnavailable, _RELEASE_S, self.sleep)
        except SandboxError as error:
            still = isinstance(error, SandboxUnavailable)
            problem = "still uses files of the tenant" if still else "could not remove all data"
            raise Unavailable(f"the engine {problem}; try again: {error}") from error

    async def _elsewhere(self, found: Mapping[str, str | None]) -> Mapping[str, str]:
        if not any(found.values()):
            return {}
        try:
            own = await self.files.engine_id()
        except SandboxError as error:
            raise Unavailable(f"the engine does not answer, so nothing is removed: {error.outside}") from error
        return {thread: engine for thread, engine in found.items() if engine is not None and engine != own}


def _on_other_engines(elsewhere: Mapping[str, str]) -> Unavailable:
    engines = ", ".join(sorted(set(elsewhere.values())))
    return Unavailable(
        f"the files of {len(elsewhere)} threads are on other engines ({engines}): delete it through a gateway on each "
        "of those, too"
    )


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
        if not stored and not await self._erasure.store.was_deleted(name):
            raise NotFound(f"no data is stored for tenant {name[:64]!r}")
        return await self._erasure.tenant(name, audit, by)

    async def _version(self, name: str) -> str:
        change = self._policies.change_in_force(name)
        return "" if change is None else await self._policies.named(change)
