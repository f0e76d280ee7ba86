"""Snapshots of all tenants: take, list, delete, restore.

A snapshot exists once its row does, which is written last; what a crash leaves of one is removed with the tenant's next
snapshot, or at the next start. Automatic snapshots are removed for newer ones, and with their thread.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import structlog

from agent.cancellation import to_the_end
from gateway.errors import InProgress, RequestIdReused, TooLarge, Unavailable
from gateway.redaction import Redactor
from gateway.snapshots.locks import LOCK_TIMEOUT_S
from gateway.snapshots.places import Place
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.taking import Taken, Taking, audit_entry, no_snapshot
from gateway.snapshots.volume_copies import Copies, in_thread
from gateway.storage.entities import Thread
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import RestoreStore, Snapshot, SnapshotStore, WorkspaceRequest
from gateway.storage.store import Store
from gateway.storage.thread_store import RESTORING, ThreadStore
from gateway.support.clock import NowUs, make_id, now_us
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.thread_sandbox import ThreadEngines
from sandbox.engines.engine import Workspaces
from sandbox.errors import WorkspaceIncomplete
from sandbox.sandbox import digest

log = structlog.get_logger(__name__)
# A run waits longer for the lock than a caller, who can retry.
_STEP_TIMEOUT_S = 4 * LOCK_TIMEOUT_S
# The most that a file takes on a disk beyond its content: the rest of its last block.
_BLOCK_BYTES = 4096
# More than a thread may have, so that metadata from before that limit is stored as well.
_METADATA_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass
class Snapshots:
    """The snapshots in one place, which all gateways of a database share."""

    place: Place
    engine: Workspaces
    engines: ThreadEngines
    store: SnapshotStore
    restores: RestoreStore
    threads: Store
    listed: ThreadStore
    _: KW_ONLY
    copies: Copies = field(default_factory=Copies)
    clock: NowUs = now_us

    def __post_init__(self) -> None:
        self.taking = Taking(self.engine, self.copies, self.store, clock=self.clock)

    def of(self, tenant: str) -> SnapshotDirectory:
        return self.place.of(digest(tenant))

    async def create(self, tenant: Tenant, thread: str, *, comment: str, request_id: str = "") -> Snapshot:
        """Take a snapshot of a thread's files. A repeated request id returns the same snapshot.

        Raises NotFound, OtherEngine, QuotaExceeded, TooLarge, NoSpace, InProgress, RequestIdReused, and SandboxError.
        """
        request = (request_id, _digest(thread, comment))
        comment = Redactor(tenant.policy.document.redaction).shown(comment)
        if (known := await self._asked_before(tenant, request)) is not None:
            return known
        row = await self.listed.known(tenant.name, thread)
        await self.engines.refuse_other(Thread(row.id, tenant.name, thread))
        directory = self.of(tenant.name)
        async with directory.alone():
            if (known := await self._asked_before(tenant, request)) is not None:
                return known
            metadata = await self.metadata_of(row.id)
            said = await self.listed.message_count(row.id)
            what = Taken(row.id, row.name, said, comment=comment, run_id=row.run_id or "", metadata=metadata)
            return await self.taking.take(tenant, directory, what, request)

    async def keep_step(self, tenant: Tenant, run_id: str, number: int, step: KeptStep, kind: str) -> Snapshot:
        """Take a snapshot after a step of a run, or after the run; `step` is what it adds to the thread.

        Raises OtherEngine, QuotaExceeded, TooLarge, NoSpace, InProgress, and SandboxError.
        """
        thread = step.thread
        await self.engines.refuse_other(thread)
        metadata = await self.metadata_of(thread.id)
        for key in step.removed:
            metadata.pop(key, None)
        metadata.update(step.changed)
        said = step.position + len(step.said)
        what = Taken(thread.id, thread.name, said, kind, run_id=run_id, step=number, metadata=metadata)
        directory = self.of(tenant.name)
        async with directory.alone(_STEP_TIMEOUT_S):
            return await self.taking.take(tenant, directory, what)

    async def metadata_of(self, thread_id: str) -> dict[str, str]:
        """Return the metadata of a thread that a snapshot stores."""
        return dict(await self.listed.metadata(thread_id, limit_bytes=_METADATA_LIMIT_BYTES) or {})

    async def get(self, tenant: Tenant, id_: str) -> Snapshot:
        """Return a snapshot; NotFound also for another tenant's."""
        if (found := await self.store.get(tenant.name, id_)) is None:
            raise no_snapshot(id_)
        return found

    async def page(self, tenant: Tenant, *, thread: str, size: int, token: str) -> tuple[Sequence[Snapshot], str]:
        """Return snapshots, newest first, and the token of the next page, "" at the end.

        NotFound if there is neither such a thread nor a snapshot of one.
        """
        query = ("snapshots", thread)
        size = page_size(size)
        found = await self.store.page(tenant.name, thread=thread, before=place_of(token, *query), limit=size + 1)
        if thread and not found and not token:
            await self.listed.known(tenant.name, thread)
        return paged(found, size, lambda one: (one.created_us, one.id), *query)

    async def delete(self, tenant: Tenant, id_: str) -> Snapshot:
        """Delete a snapshot, and return it as it was; NotFound, InProgress."""
        directory = self.of(tenant.name)
        async with directory.alone():
            snapshot = await self.get(tenant, id_)
            await to_the_end(self.taking.remove(tenant.name, directory, [snapshot]))
        return snapshot

    async def restore(self, tenant: Tenant, id_: str, thread: str, request_id: str = "") -> tuple[Snapshot, str]:
        """Replace the files of a thread, by default the snapshot's own, with a snapshot; a missing thread is created.

        Return the snapshot and the thread's name. A repeated request id does nothing. Raises NotFound, ThreadBusy while
        a run or a call is under way in the thread, OtherEngine, TooLarge, Internal, RequestIdReused, Unavailable if the
        old files are gone without the new ones in place, and SandboxError.
        """
        request = WorkspaceRequest(tenant.name, request_id, _digest("restore", id_, thread)) if request_id else None
        if (answer := await self.restores.answer(request)) is not None:
            return Snapshot(**answer["snapshot"]), str(answer["thread"])
        snapshot = await self.get(tenant, id_)
        limit = tenant.policy.document.quotas.threads
        target = await self.threads.thread(tenant.name, thread or snapshot.thread, limit=limit)
        if request is not None:
            said = {"snapshot": vars(snapshot), "thread": target.name}
            request = replace(request, answer=json.dumps(said))
        async with self.of(tenant.name).shared():
            # Completed even if the caller goes away: half a restore is useless.
            await to_the_end(self._replaced(snapshot, target, tenant, request))
        return snapshot, target.name

    async def _replaced(
        self, snapshot: Snapshot, target: Thread, tenant: Tenant, request: WorkspaceRequest | None
    ) -> None:
        """Replace a thread's files, while nothing begins in the thread.

        A crash in between leaves the thread closed: its files are unknown, until it is restored again or deleted.
        """
        mark = make_id(RESTORING.removesuffix("_"))
        earlier = await self.restores.begin(target, mark, request)
        try:
            await self.fill(snapshot, target, tenant)
        except WorkspaceIncomplete as error:
            raise Unavailable(
                f"files of thread {target.name!r} may be gone, so it accepts no calls until it is restored again "
                f"or deleted: {error}"
            ) from error
        except Exception:
            await self.restores.give_up(target.id, mark, earlier)
            raise
        await self.restores.end(target.id, audit_entry("snapshot_restored", snapshot, target.name), request)

    async def fill(self, snapshot: Snapshot, target: Thread, tenant: Tenant) -> None:
        """Replace the files of a thread in which nothing begins; the caller has the directory's shared lock.

        Raises OtherEngine, TooLarge, Internal, WorkspaceIncomplete and other SandboxErrors, including NoSpace if the
        engine's disk is down to its reserve.
        """
        directory, spec = self.of(tenant.name), tenant.sandbox_spec(target.name)
        if snapshot.size_bytes > spec.limits.workspace_bytes:
            raise TooLarge(
                f"the snapshot has {snapshot.size_bytes:,} bytes, and a workspace of this tenant at most "
                f"{spec.limits.workspace_bytes:,}: have the operator raise sandbox.workspace_mib"
            )
        await self.engines.claim(target)
        copy = await asyncio.to_thread(directory.copy_of, snapshot.id)
        if copy is not None:
            await self.copies.restore(spec, copy)
            return
        files = directory.of(snapshot.id)
        await asyncio.to_thread(files.check_whole)
        coming_bytes = snapshot.size_bytes + snapshot.files * _BLOCK_BYTES
        await self.engine.replace_workspace(spec, files.read, size_bytes=coming_bytes)

    async def forget_thread(self, tenant: str, thread: str) -> None:
        """Remove what snapshots have of a thread that is being deleted, except those taken on request."""
        row = await self.listed.get(tenant, thread)
        kept = await self.store.of_thread(row.id) if row is not None else ()
        if not kept:
            return
        directory = self.of(tenant)
        async with directory.alone():
            await self.taking.remove(tenant, directory, [one for one in kept if one.automatic])
            await in_thread(directory.forget_metadata, [one.id for one in kept])

    async def erase(self, tenant: str) -> None:
        """Remove all files of a deleted tenant's snapshots; InProgress while one is taken."""
        directory = self.of(tenant)
        async with directory.alone():
            await in_thread(self.copies.refuse_unreachable, directory.copies())
            await self.copies.erase(digest(tenant))
            await in_thread(directory.erase)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `snapshot_files` a tenant has, with those that the engine keeps."""
        files = await asyncio.to_thread(self.of(tenant).count)
        return {"snapshot_files": files + await self.copies.count(digest(tenant))}

    async def sweep(self) -> None:
        """Remove what gateways left when they died while taking a snapshot."""
        for name in {*await asyncio.to_thread(self.place.names), *await self.copies.tenants()}:
            directory = self.place.of(name)
            with contextlib.suppress(InProgress):  # the process that has the lock cleans up itself
                async with directory.inherited():
                    # Read under the lock: a tenant's first snapshot may have been taken just now.
                    whose = {digest(tenant): tenant for tenant in await self.store.tenants()}
                    if name in whose:
                        await self.taking.sweep(directory, whose[name])
                        gone = await self.store.threadless(whose[name])
                        await in_thread(directory.forget_metadata, gone)
                    else:
                        await in_thread(directory.sweep, ())
                        await self.copies.sweep(name, (), directory.still_locked)

    async def _asked_before(self, tenant: Tenant, request: tuple[str, str]) -> Snapshot | None:
        found = await self.store.of_request(tenant.name, request[0]) if request[0] else None
        if found is None:
            return None
        if found[1] != request[1]:
            raise RequestIdReused(
                f"request_id: {request[0]!r} was already used for a different snapshot; use a new one for each snapshot"
            )
        return found[0]


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
