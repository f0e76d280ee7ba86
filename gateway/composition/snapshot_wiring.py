"""Snapshots, forks, and how a deletion removes the files of tenants."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.data_lifecycle.erasure import remove_files_of
from gateway.errors import AirlockError
from gateway.snapshots.forks import Forks, ForkStores
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.engine_store import EngineStore
from gateway.storage.restore_store import ForkStore, RestoreStore
from gateway.storage.snapshot_store import SnapshotStore
from gateway.storage.thread_store import ThreadStore
from gateway.support.clock import make_id
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.thread_engines import ThreadEngines
from sandbox.engines.engine import Engine
from sandbox.errors import WorkspaceIncomplete


def make_snapshots(base: Foundation, sandboxes: Sandboxes) -> Snapshots:
    """Return the snapshots of this database, taken on this process' engine."""
    return Snapshots(
        base.config.resolved_snapshots_dir() / base.instance,
        sandboxes.engine,
        ThreadEngines(EngineStore(base.database), sandboxes.engine),
        (SnapshotStore(base.database), RestoreStore(base.database)),
        (base.store, ThreadStore(base.database)),
    )


def make_forks(base: Foundation, sandboxes: Sandboxes, snapshots: Snapshots, quotas: Quotas) -> Forks:
    """Return what forks threads."""
    stores = ForkStores(
        ForkStore(base.database), SnapshotStore(base.database), RestoreStore(base.database), ThreadStore(base.database)
    )
    engines = ThreadEngines(EngineStore(base.database), sandboxes.engine)
    return Forks(sandboxes.engine, engines, stores, snapshots, quotas=quotas, ids=make_id)


class TenantFiles:
    """Removes the files of tenants: workspaces on the engine, and snapshots."""

    def __init__(self, engine: Engine, snapshots: Snapshots) -> None:
        self.engine_id = engine.id
        self._engine = engine
        self._snapshots = snapshots
        self._remove_workspace = remove_files_of(engine)

    async def remove(self, tenant: str, thread: str) -> bool:
        """Remove the workspace and the snapshots of a thread; return whether there was a workspace."""
        existed = await self._remove_workspace(tenant, thread)
        try:
            await self._snapshots.forget_thread(tenant, thread)
        except AirlockError as error:
            if existed:
                raise WorkspaceIncomplete(str(error)) from error
            raise
        return existed

    async def remove_rest(self, tenant: str) -> int:
        """Remove everything else of a tenant; return the number of workspaces."""
        await self._snapshots.erase(tenant)
        return await self._engine.remove_all_of(tenant)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        return {**await self._engine.left_of(tenant), **await self._snapshots.left_of(tenant)}
