"""Restoring: replaces a thread's files with a snapshot, while nothing begins in the thread.

A crash in between leaves the thread closed: its files are unknown, until it is restored again or deleted.
"""

from __future__ import annotations

import asyncio

from gateway.errors import TooLarge, Unavailable
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.taking import audit_entry, thread_errors
from gateway.storage.entities import Thread
from gateway.storage.restore_store import RestoreStore, WorkspaceRequest
from gateway.storage.snapshot_store import Snapshot
from gateway.storage.thread_store import RESTORING
from gateway.support.clock import MakeId
from gateway.tool_calls.thread_engines import ThreadEngines
from sandbox.engines.engine import Workspaces
from sandbox.errors import WorkspaceIncomplete
from sandbox.sandbox import SandboxSpec

# The most that a file takes on a disk beyond its content: the rest of its last block.
_BLOCK_BYTES = 4096


class Restoring:
    """Restores into one engine's workspaces."""

    def __init__(self, engine: Workspaces, engines: ThreadEngines, store: RestoreStore, ids: MakeId) -> None:
        self._engine = engine
        self._engines = engines
        self._store = store
        self._ids = ids

    async def fill(self, snapshot: Snapshot, directory: SnapshotDirectory, target: Thread, spec: SandboxSpec) -> None:
        """Replace the files of a thread in which nothing begins; the caller has the directory's shared lock.

        Raises OtherEngine, TooLarge, Internal, WorkspaceIncomplete and other SandboxErrors, including NoSpace if the
        engine's disk is down to its reserve.
        """
        if snapshot.size_bytes > spec.limits.workspace_bytes:
            raise TooLarge(
                f"the snapshot has {snapshot.size_bytes:,} bytes, and a workspace of this tenant at most "
                f"{spec.limits.workspace_bytes:,}: have the operator raise sandbox.workspace_mib"
            )
        await self._engines.claim(target)
        await asyncio.to_thread(directory.check_whole, snapshot.id)
        coming_bytes = snapshot.size_bytes + snapshot.files * _BLOCK_BYTES
        await self._engine.replace_workspace(spec, lambda: directory.read(snapshot.id), size_bytes=coming_bytes)

    async def restore(
        self,
        snapshot: Snapshot,
        directory: SnapshotDirectory,
        target: Thread,
        spec: SandboxSpec,
        request: WorkspaceRequest | None,
    ) -> None:
        """Replace a thread's files with a snapshot; the caller has the directory's shared lock.

        Raises ThreadBusy, Unavailable if the old files may be gone without the new ones in place, and what fill()
        raises.
        """
        mark = self._ids(RESTORING.removesuffix("_"))
        with thread_errors(target.name, "cancel it first"):
            earlier = await self._store.begin(target.id, mark, request)
        try:
            await self.fill(snapshot, directory, target, spec)
        except WorkspaceIncomplete as error:
            raise Unavailable(
                f"files of thread {target.name!r} may be gone, so it accepts no calls until it is restored again "
                f"or deleted: {error}"
            ) from error
        except Exception:
            await self._store.give_up(target.id, mark, earlier)
            raise
        await self._store.end(target.id, audit_entry("snapshot_restored", snapshot, target.name), request)
