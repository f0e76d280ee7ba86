"""Snapshots of all tenants: taken, listed, deleted, and restored.

A snapshot is there when its row is, which is written last; what a crash leaves of one goes with the tenant's next, or
with the next start. Those of steps and runs that nobody asked for make room for others, and go with their thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from agent.cancellation import to_the_end
from gateway.errors import InProgress, NotFound, RequestIdReused
from gateway.redaction.hooks import redactor_of
from gateway.snapshots.restoring import Restoring
from gateway.snapshots.snapshot_directory import PATIENCE_S, SnapshotDirectory
from gateway.snapshots.taking import Taken, Taking, in_thread
from gateway.storage.entities import Thread
from gateway.storage.restore_store import RestoreStore, WorkspaceRequest
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import Snapshot, SnapshotStore
from gateway.storage.store import Store
from gateway.storage.thread_store import ThreadRow, ThreadStore
from gateway.support.clock import MakeId, NowUs, make_id, now_us
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.thread_engines import ThreadEngines
from sandbox.engines.engine import Workspaces
from sandbox.owner import digest

log = structlog.get_logger(__name__)
# A run waits longer for its turn than a caller who can come again.
_STEP_PATIENCE_S = 4 * PATIENCE_S
# More than a thread may have: metadata from before there was that limit is kept all the same.
_METADATA_LIMIT_BYTES = 16 * 1024 * 1024


class Snapshots:
    """The snapshots in one directory, which all gateways of a database have in common."""

    def __init__(
        self,
        directory: Path,
        engine: Workspaces,
        engines: ThreadEngines,
        stores: tuple[SnapshotStore, RestoreStore],
        threads: tuple[Store, ThreadStore],
        *,
        clock: NowUs = now_us,
        ids: MakeId = make_id,
    ) -> None:
        self._directory = directory
        self._engines = engines
        self._store, self._restores = stores
        self._threads, self._listed = threads
        self.taking = Taking(engine, self._store, clock=clock, ids=ids)
        self.restoring = Restoring(engine, engines, self._restores, ids)

    def of(self, tenant: str) -> SnapshotDirectory:
        """Return where a tenant's are."""
        return SnapshotDirectory(self._directory / digest(tenant))

    async def create(self, tenant: Tenant, thread: str, *, comment: str, request_id: str = "") -> Snapshot:
        """Keep the files of a thread as they are now. With the same request id the same snapshot is returned.

        Raises NotFound, OtherEngine, QuotaExceeded, TooLarge, NoSpace, InProgress, RequestIdReused, and SandboxError.
        """
        request = (request_id, _digest(thread, comment))
        redactor = redactor_of(tenant.policy.document)
        comment = comment if redactor is None else redactor.shown(comment)
        if (known := await self._asked_before(tenant, request)) is not None:
            return known
        row = await self._row(tenant, thread)
        await self._engines.refuse_other(Thread(row.id, tenant.name, thread))
        directory = self.of(tenant.name)
        async with directory.alone():
            if (known := await self._asked_before(tenant, request)) is not None:
                return known
            metadata = await self._listed.metadata(row.id, limit_bytes=_METADATA_LIMIT_BYTES)
            said = await self._store.message_count(row.id)
            what = Taken(row.id, row.name, said, comment=comment, run_id=row.run_id or "", metadata=metadata or {})
            return await self.taking.take(tenant, directory, what, request)

    async def keep_step(self, tenant: Tenant, run_id: str, number: int, step: KeptStep, kind: str) -> Snapshot:
        """Keep the files of a thread after a step of a run, or after the run; `step` is what it adds to the thread.

        Raises OtherEngine, QuotaExceeded, TooLarge, NoSpace, InProgress, and SandboxError.
        """
        thread = step.thread
        await self._engines.refuse_other(thread)
        metadata = dict(await self._listed.metadata(thread.id, limit_bytes=_METADATA_LIMIT_BYTES) or {})
        for key in step.removed:
            metadata.pop(key, None)
        metadata.update(step.changed)
        said = step.position + len(step.said)
        what = Taken(thread.id, thread.name, said, kind, run_id=run_id, step=number, metadata=metadata)
        directory = self.of(tenant.name)
        async with directory.alone(_STEP_PATIENCE_S):
            return await self.taking.take(tenant, directory, what)

    async def get(self, tenant: Tenant, id_: str) -> Snapshot:
        """Return a snapshot; NotFound also when it is another tenant's."""
        found = await self._store.get(tenant.name, id_)
        if found is None:
            raise NotFound(f"snapshot {id_[:64]!r} not found: `airlock sandbox snapshots` lists the snapshots")
        return found

    async def page(self, tenant: Tenant, *, thread: str, size: int, token: str) -> tuple[Sequence[Snapshot], str]:
        """Return snapshots, the newest first, and the token of the next page, empty at the end.

        NotFound where there is neither such a thread nor a snapshot of one.
        """
        query = ("snapshots", thread)
        size = page_size(size)
        found = await self._store.page(tenant.name, thread=thread, before=place_of(token, *query), limit=size + 1)
        if thread and not found and not token:
            await self._row(tenant, thread)
        return paged(found, size, lambda one: (one.created_us, one.id), *query)

    async def delete(self, tenant: Tenant, id_: str) -> Snapshot:
        """Remove a snapshot for good, and return it as it was; NotFound, InProgress."""
        directory = self.of(tenant.name)
        async with directory.alone():
            snapshot = await self.get(tenant, id_)
            await to_the_end(self.taking.remove(tenant.name, directory, [snapshot]))
        return snapshot

    async def restore(self, tenant: Tenant, id_: str, thread: str, request_id: str = "") -> tuple[Snapshot, str]:
        """Have a snapshot in the place of a thread's files, or its own thread's; a thread that is not there is made.

        Return the snapshot and the thread's name. What was done for a request id is not done again. Raises NotFound,
        ThreadBusy while a run or a call is under way in it, OtherEngine, TooLarge, Internal, RequestIdReused,
        Unavailable where the files are gone and the snapshot did not come, and SandboxError.
        """
        request = WorkspaceRequest(tenant.name, request_id, _digest("restore", id_, thread)) if request_id else None
        if request is not None and (answer := await self._answer(request)) is not None:
            return Snapshot(**answer["snapshot"]), str(answer["thread"])
        snapshot = await self.get(tenant, id_)
        limit = tenant.policy.document.quotas.threads_limit
        target = await self._threads.thread(tenant.name, thread or snapshot.thread, limit=limit)
        spec = tenant.sandbox_spec(target.name)
        if request is not None:
            said = {"snapshot": snapshot.__dict__, "thread": target.name}
            request = WorkspaceRequest(tenant.name, request_id, request.digest, json.dumps(said))
        directory = self.of(tenant.name)
        async with directory.shared():
            # To its end, though the caller went away: half of it is of no use to anybody.
            await to_the_end(self.restoring.restore(snapshot, directory, target, spec, request))
        return snapshot, target.name

    async def forget_thread(self, tenant: str, thread: str) -> None:
        """Remove what is kept of a thread but for the snapshots that somebody asked for: it is being deleted."""
        row = await self._listed.get(tenant, thread)
        kept = await self._store.of_thread(row.id) if row is not None else ()
        if not kept:
            return
        directory = self.of(tenant)
        async with directory.alone():
            await self.taking.remove(tenant, directory, [one for one in kept if one.automatic])
            await in_thread(directory.forget_metadata, [one.id for one in kept])

    async def erase(self, tenant: str) -> None:
        """Remove all files of a tenant's snapshots, for it is deleted; InProgress while one is taken."""
        directory = self.of(tenant)
        async with directory.alone():
            await in_thread(directory.erase)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `snapshot_files` there are of a tenant."""
        return {"snapshot_files": await asyncio.to_thread(self.of(tenant).count)}

    async def sweep(self) -> None:
        """Remove what gateways left that died while they took a snapshot."""
        for name in await asyncio.to_thread(_names_in, self._directory):
            directory = SnapshotDirectory(self._directory / name)
            with contextlib.suppress(InProgress):  # who is at it does the same
                async with directory.alone():
                    # Asked when nobody else is at it: a tenant's first snapshot may have come just now.
                    whose = {digest(tenant): tenant for tenant in await self._store.tenants()}
                    if name in whose:
                        await self.taking.sweep(directory, whose[name])
                        gone = await self._store.threadless(whose[name])
                        await in_thread(directory.forget_metadata, gone)
                    else:
                        await in_thread(directory.sweep, ())

    async def _answer(self, request: WorkspaceRequest) -> Any | None:
        """Return what a restore was answered that was asked for before, None where it is not done."""
        known = await self._restores.request(request.tenant, request.id)
        if known is None:
            return None
        if known.digest != request.digest:
            raise RequestIdReused(
                f"request_id: {request.id!r} was already used for a different request; use a new one for each request"
            )
        return None if known.answer is None else json.loads(known.answer)

    async def _asked_before(self, tenant: Tenant, request: tuple[str, str]) -> Snapshot | None:
        found = await self._store.of_request(tenant.name, request[0]) if request[0] else None
        if found is None:
            return None
        if found[1] != request[1]:
            raise RequestIdReused(
                f"request_id: {request[0]!r} was already used for a different snapshot; use a new one for each snapshot"
            )
        return found[0]

    async def _row(self, tenant: Tenant, name: str) -> ThreadRow:
        row = await self._listed.get(tenant.name, name)
        if row is None:
            raise NotFound(f"thread {name[:64]!r} not found: `airlock thread list` lists the threads")
        return row


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _names_in(directory: Path) -> Sequence[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else ()
