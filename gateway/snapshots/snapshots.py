"""Snapshots of all tenants: taken, listed, deleted, and restored.

A snapshot is there when its row is, which is written last; what a crash leaves of one goes with the tenant's next, or
with the next start. A restore replaces the files of a thread as a whole: nothing begins in the thread meanwhile, nor
after a crash in the midst of it, until it is restored again or deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import structlog
from pydantic import JsonValue

from agent.cancellation import to_the_end
from gateway.calls.thread_engines import ThreadEngines
from gateway.clock import MakeId, NowUs, make_id, now_us
from gateway.errors import (
    InProgress,
    NotFound,
    QuotaExceeded,
    RequestIdReused,
    ThreadBusy,
    TooLarge,
    Unavailable,
)
from gateway.identity.principal import actor
from gateway.paging import page_size, paged, place_of
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.snapshot_files import Limits, Written, quota_exceeded
from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import CallUnderWay, RunUnderWay
from gateway.storage.snapshot_store import RESTORING, Snapshot, SnapshotStore, ThreadGoing
from gateway.storage.store import Store
from gateway.storage.thread_store import ThreadRow, ThreadStore
from gateway.tenants import Tenant
from sandbox.container_config import digest
from sandbox.engine import Engine, SandboxSpec
from sandbox.errors import WorkspaceIncomplete

log = structlog.get_logger(__name__)


class Snapshots:
    """The snapshots in one directory, which all gateways of a database have in common."""

    def __init__(
        self,
        directory: Path,
        engine: Engine,
        engines: ThreadEngines,
        store: SnapshotStore,
        threads: tuple[Store, ThreadStore],
        *,
        clock: NowUs = now_us,
        ids: MakeId = make_id,
    ) -> None:
        self._directory = directory
        self._engine = engine
        self._engines = engines
        self._store = store
        self._threads, self._listed = threads
        self._clock = clock
        self._ids = ids

    async def create(self, tenant: Tenant, thread: str, *, comment: str, request_id: str = "") -> Snapshot:
        """Keep the files of a thread as they are now. With the same request id the same snapshot is returned.

        Raises NotFound, OtherEngine, QuotaExceeded, TooLarge, NoSpace, InProgress, RequestIdReused, and SandboxError.
        """
        request = (request_id, _digest(thread, comment))
        if (known := await self._asked_before(tenant, request)) is not None:
            return known
        row = await self._row(tenant, thread)
        await self._engines.refuse_other(Thread(row.id, tenant.name, thread))
        directory = self._of(tenant.name)
        async with directory.alone():
            if (known := await self._asked_before(tenant, request)) is not None:
                return known
            others = await self._store.ids(tenant.name)
            spec = tenant.sandbox_spec(thread)
            limits = await self._limits(tenant, spec, directory, others)
            id_ = self._ids("snap")
            try:
                said = await self._store.message_count(row.id)
                written = await self._written(spec, directory, id_, limits)
                snapshot = self._snapshot(tenant, row, id_, comment, said, written)
                await self._store.add(snapshot, row.id, request, _told("snapshot_created", snapshot, thread))
            except ThreadGoing:
                await self._swept(directory, others)
                raise _going(thread) from None
            except ConstraintViolated:
                await self._swept(directory, others)
                raise InProgress("another gateway has taken this snapshot; ask again for it") from None
            except BaseException:
                await self._swept(directory, others)
                raise
            return snapshot

    async def get(self, tenant: Tenant, id_: str) -> Snapshot:
        """Return a snapshot; NotFound also when it is another tenant's."""
        found = await self._store.get(tenant.name, id_)
        if found is None:
            raise NotFound(f"no snapshot {id_[:64]!r}: `airlock sandbox snapshots` shows their ids")
        return found

    async def page(self, tenant: Tenant, *, thread: str, size: int, token: str) -> tuple[Sequence[Snapshot], str]:
        """Return snapshots, the newest first, and the token of the next page, empty at the end."""
        query = ("snapshots", thread)
        size = page_size(size)
        found = await self._store.page(tenant.name, thread=thread, before=place_of(token, *query), limit=size + 1)
        return paged(found, size, lambda one: (one.created_us, one.id), *query)

    async def delete(self, tenant: Tenant, id_: str) -> Snapshot:
        """Remove a snapshot for good, and return it as it was; NotFound, InProgress."""
        directory = self._of(tenant.name)
        async with directory.alone():
            snapshot = await self.get(tenant, id_)
            if not await self._store.remove(tenant.name, id_, _told("snapshot_deleted", snapshot, snapshot.thread)):
                raise NotFound(f"no snapshot {id_[:64]!r}: it was deleted just now")
            await self._swept(directory, await self._store.ids(tenant.name))
        return snapshot

    async def restore(self, tenant: Tenant, id_: str, thread: str) -> Snapshot:
        """Have a snapshot in the place of a thread's files, or its own thread's; a thread that is not there is made.

        Raises NotFound, ThreadBusy while a run or a call is under way in it, OtherEngine, TooLarge, Internal,
        Unavailable where the files are gone and the snapshot did not come, and SandboxError.
        """
        snapshot = await self.get(tenant, id_)
        limit = tenant.policy.document.quotas.threads_limit
        target = await self._threads.thread(tenant.name, thread or snapshot.thread, limit=limit)
        spec = tenant.sandbox_spec(target.name)
        if snapshot.size_bytes > spec.limits.workspace_bytes:
            raise TooLarge(
                f"the snapshot has {snapshot.size_bytes:,} bytes, and a workspace of this tenant at most "
                f"{spec.limits.workspace_bytes:,}: have the operator raise sandbox.workspace_mib"
            )
        await self._engines.claim(target)
        async with self._of(tenant.name).shared():
            # To its end, though the caller went away: half of it is of no use to anybody.
            await to_the_end(self._restore(snapshot, target, spec))
        return snapshot

    async def erase(self, tenant: str) -> None:
        """Remove all files of a tenant's snapshots, for it is deleted; InProgress while one is taken."""
        directory = self._of(tenant)
        async with directory.alone():
            await asyncio.to_thread(directory.erase)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `snapshot_files` there are of a tenant."""
        return {"snapshot_files": await asyncio.to_thread(self._of(tenant).count)}

    @contextlib.asynccontextmanager
    async def tidying(self) -> AsyncIterator[None]:
        """Remove in the background what gateways left that died while they took a snapshot; the block's end ends it."""
        task = asyncio.create_task(self.sweep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def sweep(self) -> None:
        """Remove what gateways left that died while they took a snapshot."""
        whose = {digest(tenant): tenant for tenant in await self._store.tenants()}
        for name in await asyncio.to_thread(_names_in, self._directory):
            directory = SnapshotDirectory(self._directory / name)
            with contextlib.suppress(InProgress):  # who is at it does the same
                async with directory.alone():
                    known = await self._store.ids(whose[name]) if name in whose else ()
                    await self._swept(directory, known)

    async def _restore(self, snapshot: Snapshot, target: Thread, spec: SandboxSpec) -> None:
        directory = self._of(snapshot.tenant)
        await asyncio.to_thread(directory.check_whole, snapshot.id)
        mark = self._ids(RESTORING.removesuffix("_"))
        try:
            earlier = await self._store.begin_restore(target.id, mark)
        except ThreadGoing:
            raise _going(target.name) from None
        except RunUnderWay as error:
            raise ThreadBusy(f"run {error} is under way in thread {target.name!r}: cancel it first") from error
        except CallUnderWay as error:
            raise ThreadBusy(f"calls are under way in thread {target.name!r}: wait until they are over") from error
        try:
            await self._engine.replace_workspace(spec, lambda: directory.read(snapshot.id))
        except WorkspaceIncomplete as error:
            raise Unavailable(
                f"thread {target.name!r} has neither its old files nor the snapshot's, and takes no calls until it is "
                f"restored again or deleted: {error}"
            ) from error
        except Exception:
            await self._store.give_up_restore(target.id, mark, earlier)
            raise
        await self._store.end_restore(target.id, _told("snapshot_restored", snapshot, target.name))

    async def _limits(
        self, tenant: Tenant, spec: SandboxSpec, directory: SnapshotDirectory, others: frozenset[str]
    ) -> Limits:
        """Return what one more snapshot may have; QuotaExceeded where there can be none."""
        quotas = tenant.policy.document.quotas
        if len(others) >= quotas.snapshots_limit:
            raise QuotaExceeded(
                f"snapshots: this tenant has {len(others)} snapshots and {quotas.snapshots_limit} is the quota; delete "
                "some (`airlock sandbox snapshots --delete ID`)",
                quota="snapshots",
                limit=str(quotas.snapshots_limit),
            )
        left_bytes = quotas.snapshot_bytes_limit - await asyncio.to_thread(directory.sweep, others)
        if left_bytes <= 0:
            raise quota_exceeded(0)
        return Limits(spec.limits.workspace_bytes, left_bytes)

    async def _written(self, spec: SandboxSpec, directory: SnapshotDirectory, id_: str, limits: Limits) -> Written:
        written = await self._engine.save_workspace(spec, lambda contents: directory.write(id_, contents, limits))
        if written is None:  # no call has made files yet
            written = await asyncio.to_thread(directory.write, id_, iter(()), limits)
        return written

    def _snapshot(
        self, tenant: Tenant, row: ThreadRow, id_: str, comment: str, said: int, written: Written
    ) -> Snapshot:
        return Snapshot(
            id=id_,
            tenant=tenant.name,
            thread=row.name,
            created_us=self._clock(),
            created_by=actor(),
            comment=comment,
            run_id=row.run_id or "",
            messages=said,
            files=written.files,
            size_bytes=written.size_bytes,
            stored_bytes=written.stored_bytes,
            skipped=written.skipped,
            stripped=written.stripped,
        )

    async def _asked_before(self, tenant: Tenant, request: tuple[str, str]) -> Snapshot | None:
        found = await self._store.of_request(tenant.name, request[0]) if request[0] else None
        if found is None:
            return None
        if found[1] != request[1]:
            raise RequestIdReused(f"request_id: {request[0]!r} was given to another snapshot; take a new one for each")
        return found[0]

    async def _swept(self, directory: SnapshotDirectory, known: Sequence[str] | frozenset[str]) -> None:
        """Sweep, though the caller went away; what cannot be removed now is with the next."""
        try:
            await to_the_end(asyncio.to_thread(directory.sweep, known))
        except Unavailable as error:
            log.warning("what is left of a snapshot stays until the next one", error=str(error))

    async def _row(self, tenant: Tenant, name: str) -> ThreadRow:
        row = await self._listed.get(tenant.name, name)
        if row is None:
            raise NotFound(f"no thread {name[:64]!r}: `airlock thread list` shows their names")
        return row

    def _of(self, tenant: str) -> SnapshotDirectory:
        return SnapshotDirectory(self._directory / digest(tenant))


def _told(kind: str, snapshot: Snapshot, thread: str) -> AuditEntry:
    details: dict[str, JsonValue] = {"snapshot": snapshot.id, "of_thread": snapshot.thread, "files": snapshot.files}
    return AuditEntry(
        snapshot.tenant, kind, actor=actor(), thread=thread, size_bytes=snapshot.size_bytes, details=details
    )


def _going(name: str) -> ThreadBusy:
    return ThreadBusy(f"thread {name[:64]!r} is being deleted, or was just now: take another")


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _names_in(directory: Path) -> Sequence[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else ()
