"""What is kept of threads' files: snapshots, forks, and how a deletion removes both."""

from __future__ import annotations

from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.data_lifecycle.erasure import RemoveFiles, remove_files_of
from gateway.errors import AirlockError
from gateway.snapshots.forks import Forks, ForkStores
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.engine_store import EngineStore
from gateway.storage.fork_store import ForkStore
from gateway.storage.restore_store import RestoreStore
from gateway.storage.snapshot_store import SnapshotStore
from gateway.storage.thread_store import ThreadStore
from gateway.support.clock import make_id
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.thread_engines import ThreadEngines
from sandbox.engines.engine import Removal
from sandbox.errors import WorkspaceIncomplete


def make_snapshots(on: Foundation, sandboxes: Sandboxes) -> Snapshots:
    """Return the snapshots of this database, taken of this process' engine."""
    return Snapshots(
        on.config.resolved_snapshots_dir() / on.instance,
        sandboxes.engine,
        ThreadEngines(EngineStore(on.database), sandboxes.engine),
        (SnapshotStore(on.database), RestoreStore(on.database)),
        (on.store, ThreadStore(on.database)),
    )


def make_forks(on: Foundation, sandboxes: Sandboxes, snapshots: Snapshots, quotas: Quotas) -> Forks:
    """Return what makes a thread of another."""
    stores = ForkStores(
        ForkStore(on.database), SnapshotStore(on.database), RestoreStore(on.database), ThreadStore(on.database)
    )
    engines = ThreadEngines(EngineStore(on.database), sandboxes.engine)
    return Forks(sandboxes.engine, engines, stores, snapshots, quotas=quotas, ids=make_id)


def removing_files(engine: Removal, snapshots: Snapshots) -> RemoveFiles:
    """Return what removes a thread's sandbox and files, and what was kept of them by itself."""
    remove_files = remove_files_of(engine)

    async def remove(tenant: str, thread: str) -> bool:
        there = await remove_files(tenant, thread)
        try:
            await snapshots.forget_thread(tenant, thread)
        except AirlockError as error:
            if there:
                raise WorkspaceIncomplete(str(error)) from error
            raise
        return there

    return remove
