"""Taking a snapshot: room for it made and looked at, files written, and last of all its row.

A snapshot that somebody asked for is never removed for another. Those that nobody asked for are: the oldest of the
tenant where a quota is reached, and the oldest of the thread past `sandbox.snapshots_kept`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ParamSpec, TypeVar

import structlog
from pydantic import JsonValue

from agent.cancellation import to_the_end
from gateway.credentials.caller import actor
from gateway.errors import InProgress, QuotaExceeded, ThreadBusy, Unavailable
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.snapshot_files import Limits, Written, quota_exceeded
from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated
from gateway.storage.snapshot_store import ASKED, Snapshot, SnapshotStore
from gateway.storage.thread_marks import ThreadGoing
from gateway.support.clock import MakeId, NowUs
from gateway.tenancy.tenants import Tenant
from sandbox.engines.engine import Workspaces
from sandbox.sandbox import SandboxSpec

log = structlog.get_logger(__name__)
_Asked = ParamSpec("_Asked")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Taken:
    """What is to be kept: the files of a thread as they are, and what else is known of it at that moment."""

    thread_id: str
    thread: str
    messages: int
    kind: str = ASKED
    comment: str = ""
    run_id: str = ""
    step: int = 0
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class _Books:
    """Which snapshots a tenant has, and how many bytes of disk they take."""

    ids: frozenset[str]
    used_bytes: int


class Taking:
    """Takes snapshots of one engine's workspaces."""

    def __init__(self, engine: Workspaces, store: SnapshotStore, *, clock: NowUs, ids: MakeId) -> None:
        self._engine = engine
        self._store = store
        self._clock = clock
        self._ids = ids

    async def take(
        self, tenant: Tenant, directory: SnapshotDirectory, what: Taken, request: tuple[str, str] = ("", "")
    ) -> Snapshot:
        """Keep the files of a thread; the caller is alone with the directory. What goes wrong leaves nothing of it.

        Raises QuotaExceeded, TooLarge, NoSpace, ThreadBusy, InProgress where another has the request's id, and
        SandboxError.
        """
        books = await self._opened(tenant.name, directory)
        try:
            books = await self._with_a_place(tenant, directory, books)
            while True:
                try:
                    return await self._taken(tenant, directory, what, request, books)
                except QuotaExceeded as error:
                    books = await self._with_more_room(tenant.name, directory, error)
        except ThreadGoing:
            await self.sweep(directory, tenant.name)
            raise going(what.thread) from None
        except ConstraintViolated:
            await self.sweep(directory, tenant.name)
            raise InProgress("another gateway has taken this snapshot: repeat the request to get it") from None
        except BaseException:
            await self.sweep(directory, tenant.name)
            raise

    async def remove(self, tenant: str, directory: SnapshotDirectory, gone: Collection[Snapshot]) -> None:
        """Remove snapshots. The caller is alone with the directory."""
        books = await self._without(tenant, directory, await self._opened(tenant, directory), gone)
        await in_thread(directory.end, books.ids, books.used_bytes)

    async def sweep(self, directory: SnapshotDirectory, tenant: str) -> None:
        """Sweep, though the caller went away; what cannot be removed now is with the next."""

        async def work() -> None:
            await in_thread(directory.sweep, await self._store.ids_of(tenant))

        try:
            await to_the_end(work())
        except Unavailable as error:
            log.warning("the remains of a snapshot will be removed with the next one", error=str(error))

    async def _opened(self, tenant: str, directory: SnapshotDirectory) -> _Books:
        ids = await self._store.ids_of(tenant)
        return _Books(ids, await in_thread(directory.begin, ids))

    async def _taken(
        self, tenant: Tenant, directory: SnapshotDirectory, what: Taken, request: tuple[str, str], books: _Books
    ) -> Snapshot:
        left_bytes = tenant.policy.document.quotas.snapshot_bytes_limit - books.used_bytes
        if left_bytes <= 0:
            raise quota_exceeded(0)
        spec = tenant.sandbox_spec(what.thread)
        limits = Limits(spec.limits.workspace_bytes, left_bytes)
        id_ = self._ids("snap")
        written = await self._written(spec, directory, id_, limits, what.metadata)
        snapshot = self._snapshot(tenant.name, id_, what, written)
        # Whoever goes away has it committed all the same, and its files must not be swept before.
        replaced = await to_the_end(self._store.add(snapshot, request, told("snapshot_created", snapshot, what.thread)))
        books = _Books((books.ids | {id_}) - replaced, books.used_bytes + written.stored_bytes)
        freed_bytes = await in_thread(directory.remove, replaced, books.ids)
        books = replace(books, used_bytes=books.used_bytes - freed_bytes)
        if snapshot.automatic:
            kept = tenant.policy.document.sandbox.snapshots_kept
            automatic = [one for one in await self._store.of_thread(what.thread_id) if one.automatic]
            books = await self._without(tenant.name, directory, books, automatic[:-kept], "snapshots_kept")
        await in_thread(directory.end, books.ids, books.used_bytes)
        return snapshot

    async def _written(
        self, spec: SandboxSpec, directory: SnapshotDirectory, id_: str, limits: Limits, metadata: Mapping[str, str]
    ) -> Written:
        written = await self._engine.save_workspace(
            spec, lambda contents: directory.write(id_, contents, limits, metadata)
        )
        if written is None:  # no call has made files yet
            written = await in_thread(directory.write, id_, iter(()), limits, metadata)
        return written

    async def _with_a_place(self, tenant: Tenant, directory: SnapshotDirectory, books: _Books) -> _Books:
        """Have room for one more by their number; QuotaExceeded where all are asked for."""
        limit = tenant.policy.document.quotas.snapshots_limit
        too_many = len(books.ids) - limit + 1
        if too_many <= 0:
            return books
        automatic = await self._store.automatic(tenant.name)
        if len(automatic) < too_many:
            raise QuotaExceeded(
                f"snapshots: this tenant has {len(books.ids)} snapshots, and its quota is {limit}: delete some "
                "(`airlock sandbox snapshots --delete ID`)",
                quota="snapshots",
                limit=str(limit),
            )
        return await self._without(tenant.name, directory, books, automatic[:too_many], "snapshots")

    async def _with_more_room(self, tenant: str, directory: SnapshotDirectory, missed: QuotaExceeded) -> _Books:
        """Remove the older half of what nobody asked for; raises `missed` where there is nothing of that."""
        automatic = await self._store.automatic(tenant)
        if not automatic:
            raise missed
        # What was written of the one that did not fit goes first, for nobody knows how much that is.
        books = await self._opened(tenant, directory)
        return await self._without(tenant, directory, books, automatic[: len(automatic) // 2 + 1], "snapshot_bytes")

    async def _without(
        self, tenant: str, directory: SnapshotDirectory, books: _Books, gone: Collection[Snapshot], because: str = ""
    ) -> _Books:
        """Remove snapshots, rows first, for what has a row must be whole."""
        for one in gone:
            await self._store.remove(tenant, one.id, told("snapshot_deleted", one, one.thread, because=because))
        ids = books.ids - {one.id for one in gone}
        freed_bytes = await in_thread(directory.remove, [one.id for one in gone], ids)
        return _Books(ids, books.used_bytes - freed_bytes)

    def _snapshot(self, tenant: str, id_: str, what: Taken, written: Written) -> Snapshot:
        return Snapshot(
            id=id_,
            tenant=tenant,
            thread=what.thread,
            created_us=self._clock(),
            created_by=actor(),
            comment=what.comment,
            run_id=what.run_id,
            messages=what.messages,
            files=written.files,
            size_bytes=written.size_bytes,
            stored_bytes=written.stored_bytes,
            skipped=written.skipped,
            stripped=written.stripped,
            thread_id=what.thread_id,
            kind=what.kind,
            step=what.step,
        )


def told(kind: str, snapshot: Snapshot, thread: str, **more: JsonValue) -> AuditEntry:
    """Return the audit's record of what was done with a snapshot."""
    details: dict[str, JsonValue] = {"snapshot": snapshot.id, "of_thread": snapshot.thread, "files": snapshot.files}
    if snapshot.automatic:
        details |= {"taken_for": snapshot.kind, "step": snapshot.step}
    details |= {name: value for name, value in more.items() if value}
    return AuditEntry(
        snapshot.tenant, kind, actor=actor(), thread=thread, size_bytes=snapshot.size_bytes, details=details
    )


def going(name: str) -> ThreadBusy:
    """Return the error of a thread that is going."""
    return ThreadBusy(
        f"thread {name[:64]!r} is being deleted or restored, or was a moment ago: use another thread, or repeat a "
        "restore that was interrupted"
    )


async def in_thread(work: Callable[_Asked, _Value], *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Value:
    """Return what `work` does in a thread, to its end: whoever goes away frees the lock of what it works in."""
    return await to_the_end(asyncio.to_thread(work, *args, **kwargs))
