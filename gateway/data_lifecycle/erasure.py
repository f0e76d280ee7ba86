"""Erasure: a thread, or all that is stored of a tenant, is removed for good, and it is counted what is left.

Files go before rows: as long as there is a row somebody can ask for the same again, and it goes on where it stopped.
Before files go the row says so, and nothing begins in the thread any more: a call that came between would make it a
sandbox and files again, whose row nobody has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from agent.cancellation import to_the_end
from gateway.errors import NotFound, ThreadBusy, Unavailable
from gateway.storage.database import Database
from gateway.storage.erasure_store import CallUnderWay, DeletionLost, ErasureStore, RunUnderWay
from gateway.support.clock import MakeId, make_id
from sandbox.engines.engine import Removal
from sandbox.errors import SandboxBusy, SandboxError, SandboxUnavailable, WorkspaceIncomplete

log = structlog.get_logger(__name__)
RemoveFiles = Callable[[str, str], Awaitable[bool]]
"""Removes the sandbox and the workspace of a tenant's thread; says whether there was a workspace.

Raises SandboxBusy while calls are under way in it, WorkspaceIncomplete where some files may be gone; with any other
error none is.
"""
RemoveRest = Callable[[str], Awaitable[int]]
"""Removes every sandbox and workspace of a tenant that the engine still has; says how many workspaces there were."""
LeftOf = Callable[[str], Awaitable[Mapping[str, int]]]
"""Counts what the engine still has of a tenant: `volumes` and `containers`."""
EngineId = Callable[[], Awaitable[str]]
"""Says which engine the files are removed from; threads.engine names the same."""
Sleep = Callable[[float], Awaitable[None]]

# How long runs and calls that are under way have to end once they were asked to.
_PATIENCE_S = 30.0
_LOOK_S = 0.2
# How long a container that is being removed may still hold its workspace.
_HELD_S = 5.0


@dataclass(frozen=True)
class Erased:
    """What was removed and what is left, as rows by table; `audit_sequence` is the record in the operators' audit.

    `left` has the engine's `volumes` and `containers` too; `workspaces_removed` are volumes that there were.
    """

    removed: Mapping[str, int]
    left: Mapping[str, int]
    workspaces_removed: int
    audit_sequence: int


def remove_files_of(engine: Removal, sleep: Sleep = asyncio.sleep) -> RemoveFiles:
    """Return what removes a thread's sandbox and files from an engine."""

    async def remove(tenant: str, thread: str) -> bool:
        begun = False
        for last in (*(False,) * round(_HELD_S / _LOOK_S), True):
            try:
                # Each time: a call that came between has made it a sandbox again.
                await engine.remove_of(tenant, thread)
                return await engine.remove_workspace(tenant, thread)
            except SandboxError as error:
                begun = begun or isinstance(error, WorkspaceIncomplete)
                if last or not isinstance(error, SandboxUnavailable):
                    if begun:  # whatever the last try ended with
                        raise WorkspaceIncomplete(str(error)) from error
                    raise
                await sleep(_LOOK_S)
        raise AssertionError("unreachable")

    return remove


class Erasure:
    """Removes what is stored of threads and of tenants."""

    def __init__(
        self,
        database: Database,
        store: ErasureStore,
        remove_files: RemoveFiles,
        engine_id: EngineId | None = None,
        sleep: Sleep = asyncio.sleep,
        left_of: LeftOf | None = None,
        remove_rest: RemoveRest | None = None,
        ids: MakeId = make_id,
    ) -> None:
        self._database = database
        self._store = store
        self._remove_files = remove_files
        self._engine_id = engine_id
        self._sleep = sleep
        self._left_of = left_of
        self._remove_rest = remove_rest
        self._ids = ids

    async def thread(self, tenant: str, name: str, actor: str) -> Mapping[str, int]:
        """Remove a thread; return the rows by table. Raises ThreadBusy while anything is under way in it, NotFound."""
        deletion = self._ids("del")
        try:
            # To its end, though the caller went away: nobody else says what became of the files.
            removed = await to_the_end(self._removed(tenant, name, actor, deletion))
        except DeletionLost as error:
            raise ThreadBusy(f"thread {name[:64]!r} is being deleted by another call: wait until it is gone") from error
        except (SandboxBusy, CallUnderWay) as error:
            raise ThreadBusy(f"calls are under way in thread {name[:64]!r}: wait until they are over") from error
        except RunUnderWay as error:
            raise ThreadBusy(f"run {error} is under way in thread {name[:64]!r}: cancel it first") from error
        except WorkspaceIncomplete as error:
            raise Unavailable(
                f"files of thread {name[:64]!r} may be gone, so it takes no calls; delete it again: {error}"
            ) from error
        except SandboxError as error:
            raise Unavailable(f"the files of thread {name[:64]!r} are not removed, so nothing is: {error}") from error
        if removed is None:
            raise NotFound(f"no thread {name[:64]!r}: `airlock thread list` shows their names")
        await self._database.truncate_log()
        return removed

    async def _removed(self, tenant: str, name: str, actor: str, deletion: str) -> Mapping[str, int] | None:
        if elsewhere := await self._elsewhere(await self._store.threads_of(tenant, name)):
            raise _on_other_engines(elsewhere)
        begun = await self._store.begin(tenant, name, deletion)
        if begun is None:
            return None
        # From here on a process that is killed leaves a thread that can only be deleted. So does what may have cost
        # files: an open thread without them would look as if it were whole.
        try:
            await self._remove_files(tenant, name)
        except WorkspaceIncomplete:
            raise
        except Exception:
            await self._store.give_up(tenant, name, deletion, begun)
            raise
        return await self._store.remove_thread(tenant, name, actor, deletion)

    async def tenant(self, name: str, audit: bool, actor: str) -> Erased:
        """Remove all that is stored of a tenant, with `audit` its audit too. To be asked again does what is left.

        Its keys are useless from the first moment on. Raises Unavailable when files of it could not be removed.
        """
        await self._store.stop_tenant(name)
        await self._until_all_ended(name)
        workspaces = await self._remove_all_files(name) + await self._remove_the_rest(name)
        # Asked before the rows go: an engine that does not answer can be asked again only while there are some.
        on_engine = await self._left_on_engine(name)
        removed = await self._store.remove_tenant(name)
        everything, left, sequence = await self._store.tell(
            name, audit=audit, actor=actor, removed=removed, workspaces=workspaces, on_engine=on_engine
        )
        if not await self._database.truncate_log():
            log.warning("what was deleted stays in the database's log until it is next emptied", tenant=name)
        return Erased(everything, left, workspaces, sequence)

    async def was_deleted(self, name: str) -> bool:
        """Return whether there was a tenant of this name that was deleted, as far as the operators' audit goes back."""
        return await self._store.was_deleted(name)

    async def _until_all_ended(self, tenant: str) -> None:
        for _ in range(round(_PATIENCE_S / _LOOK_S)):
            if not await self._store.under_way(tenant):
                return
            await self._sleep(_LOOK_S)
        log.warning("runs or calls of a tenant that is deleted did not end: they are ended for it", tenant=tenant)
        await self._store.take_runs(tenant)

    async def _remove_all_files(self, tenant: str) -> int:
        """Remove the workspaces of all threads; return how many there were. Unavailable where one is elsewhere."""
        found = await self._store.threads_of(tenant)
        elsewhere = await self._elsewhere(found)
        here = found.keys() - elsewhere
        removed = 0
        for thread in sorted(here):
            try:
                removed += await self._remove_patiently(tenant, thread)
            except SandboxError as error:
                raise Unavailable(f"the files of thread {thread[:64]!r} are not removed; ask again: {error}") from error
            if elsewhere:
                await self._store.forget_engine(tenant, thread)
        if elsewhere:
            raise _on_other_engines(elsewhere)
        return removed

    async def _remove_the_rest(self, tenant: str) -> int:
        """Remove what the engine has of threads that have no row any more; return how many workspaces that were."""
        if self._remove_rest is None:
            return 0
        for last in (*(False,) * round(_HELD_S / _LOOK_S), True):
            try:
                return await self._remove_rest(tenant)
            except SandboxUnavailable as error:
                if last:
                    raise Unavailable(f"files of the tenant are held by the engine; ask again: {error}") from error
                await self._sleep(_LOOK_S)
            except SandboxError as error:
                raise Unavailable(f"the engine does not remove what it has, so ask again: {error}") from error
        raise AssertionError("unreachable")

    async def _left_on_engine(self, tenant: str) -> Mapping[str, int]:
        try:
            return {} if self._left_of is None else await self._left_of(tenant)
        except SandboxError as error:
            raise Unavailable(f"the engine does not say what it still has, so ask again: {error}") from error

    async def _elsewhere(self, found: Mapping[str, str | None]) -> Mapping[str, str]:
        """Return those of some threads whose files are on another engine, with that engine."""
        if self._engine_id is None or not any(found.values()):
            return {}
        try:
            own = await self._engine_id()
        except SandboxError as error:
            raise Unavailable(f"the engine does not answer, so nothing is removed: {error.outside}") from error
        return {thread: engine for thread, engine in found.items() if engine is not None and engine != own}

    async def _remove_patiently(self, tenant: str, thread: str) -> bool:
        for _ in range(round(_PATIENCE_S / _LOOK_S)):
            try:
                return await self._remove_files(tenant, thread)
            except SandboxBusy:
                await self._sleep(_LOOK_S)
        return await self._remove_files(tenant, thread)


def _on_other_engines(elsewhere: Mapping[str, str]) -> Unavailable:
    engines = ", ".join(sorted(set(elsewhere.values())))
    return Unavailable(
        f"the files of {len(elsewhere)} threads are on other engines ({engines}): ask a gateway on each of those to "
        "delete the same, too"
    )
