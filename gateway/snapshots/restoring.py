"""Restoring: a snapshot in the place of a thread's files, and nothing begins in the thread meanwhile.

A crash in the midst of it leaves the thread shut: nobody knows its files, until it is restored again or deleted.
"""

from __future__ import annotations

import asyncio

from gateway.errors import ThreadBusy, TooLarge, Unavailable
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.taking import going, told
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import CallUnderWay, RunUnderWay
from gateway.storage.restore_store import RestoreStore, WorkspaceRequest
from gateway.storage.snapshot_store import Snapshot
from gateway.storage.thread_marks import RESTORING, ThreadGoing
from gateway.support.clock import MakeId
from gateway.tool_calls.thread_engines import ThreadEngines
from sandbox.engines.engine import Workspaces
from sandbox.errors import WorkspaceIncomplete
from sandbox.sandbox import SandboxSpec

# What a file takes of a disk beside what is in it, at most: the rest of its last block.
_BLOCK_BYTES = 4096


class Restoring:
    """Restores into one engine's workspaces."""

    def __init__(self, engine: Workspaces, engines: ThreadEngines, store: RestoreStore, ids: MakeId) -> None:
        self._engine = engine
        self._engines = engines
        self._store = store
        self._ids = ids

    async def fill(self, snapshot: Snapshot, directory: SnapshotDirectory, target: Thread, spec: SandboxSpec) -> None:
        """Have a snapshot in the place of a thread's files, in which nothing begins; the caller shares the directory.

        Raises OtherEngine, TooLarge, Internal, WorkspaceIncomplete and other SandboxErrors, NoSpace of them where
        the engine's disk is down to its reserve.
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
        """Have a snapshot in the place of a thread's files; the caller shares the directory.

        Raises ThreadBusy, Unavailable where the old files may be gone and the new ones are not there, and as fill()
        does.
        """
        mark = self._ids(RESTORING.removesuffix("_"))
        try:
            earlier = await self._store.begin(target.id, mark, request)
        except ThreadGoing:
            raise going(target.name) from None
        except RunUnderWay as error:
            raise ThreadBusy(f"thread {target.name!r} is busy with run {error}: cancel it first") from error
        except CallUnderWay as error:
            raise ThreadBusy(f"thread {target.name!r} is busy with tool calls: wait until they finish") from error
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
        await self._store.end(target.id, told("snapshot_restored", snapshot, target.name), request)
