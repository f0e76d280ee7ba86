"""Taking a snapshot: first space for it, then its files, and its row last.

A snapshot taken on request is never removed for another. Automatic ones are: the tenant's oldest when a quota is
reached, and the thread's oldest beyond `sandbox.snapshots_kept`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import structlog
from pydantic import JsonValue

from agent.cancellation import to_the_end
from gateway.credentials.caller import actor
from gateway.errors import InProgress, NotFound, QuotaExceeded, Unavailable
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.snapshot_files import Limits, quota_exceeded
from gateway.snapshots.volume_copies import Copies, in_thread
from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated
from gateway.storage.snapshot_store import ASKED, Snapshot, SnapshotStore
from gateway.support.clock import NowUs, make_id
from gateway.tenancy.tenants import Tenant
from sandbox.engines.engine import Workspaces
from sandbox.sandbox import digest

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Taken:
    """What a snapshot is taken of: a thread's files, and what else is known of the thread at that moment."""

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
    """A tenant's directory, the ids of the snapshots in it, and how many bytes they take."""

    tenant: str
    directory: SnapshotDirectory
    ids: frozenset[str]
    used_bytes: int

    async def close(self) -> None:
        await in_thread(self.directory.end, self.ids, self.used_bytes)


class Taking:
    """Takes snapshots of one engine's workspaces."""

    def __init__(self, engine: Workspaces, copies: Copies, store: SnapshotStore, *, clock: NowUs) -> None:
        self._engine, self._copies, self._store, self._clock = engine, copies, store, clock
        self._warned: set[str] = set()

    async def take(
        self, tenant: Tenant, directory: SnapshotDirectory, what: Taken, request: tuple[str, str] = ("", "")
    ) -> Snapshot:
        """Take a snapshot; the caller has the directory's exclusive lock. A failure leaves nothing of it.

        Raises QuotaExceeded, TooLarge, NoSpace, ThreadBusy, InProgress if another has the request id, and SandboxError.
        """
        quotas = tenant.policy.document.quotas
        # Before anything is removed for it: nothing that is removed makes room for it.
        await self._copies.refuse_larger(tenant.sandbox_spec(what.thread), quotas.snapshot_bytes)
        books = await self._opened(tenant.name, directory)
        try:
            books = await self._with_a_place(books, quotas.snapshots)
            while True:
                try:
                    return await self._taken(tenant, what, request, books)
                except QuotaExceeded as error:
                    books = await self._with_more_room(tenant.name, directory, error)
        except BaseException as error:
            await self.sweep(directory, tenant.name)
            if isinstance(error, ConstraintViolated):
                raise InProgress("another gateway has taken this snapshot: repeat the request to get it") from None
            raise

    async def remove(self, tenant: str, directory: SnapshotDirectory, gone: Collection[Snapshot]) -> None:
        """Remove snapshots. The caller has the directory's exclusive lock."""
        await (await self._without(await self._opened(tenant, directory), gone)).close()

    async def sweep(self, directory: SnapshotDirectory, tenant: str) -> None:
        """Sweep even if the caller goes away; what cannot be removed now is removed next time."""

        async def work() -> None:
            ids = await self._store.ids_of(tenant)
            await in_thread(directory.sweep, ids)
            await self._copies.sweep(digest(tenant), ids, directory.still_locked)

        try:
            await to_the_end(work())
        except Unavailable as error:
            log.warning("the remains of a snapshot will be removed with the next one", error=str(error))

    async def _opened(self, tenant: str, directory: SnapshotDirectory) -> _Books:
        ids = await self._store.ids_of(tenant)
        await self._copies.sweep(digest(tenant), ids, directory.still_locked)
        return _Books(tenant, directory, ids, await in_thread(directory.begin, ids))

    async def _taken(self, tenant: Tenant, what: Taken, request: tuple[str, str], books: _Books) -> Snapshot:
        quota_bytes = tenant.policy.document.quotas.snapshot_bytes
        left_bytes = quota_bytes - books.used_bytes
        if left_bytes <= 0:
            raise quota_exceeded(0)
        spec, id_ = tenant.sandbox_spec(what.thread), make_id("snap")
        limits = Limits(spec.limits.workspace_bytes, left_bytes)
        directory = books.directory
        write = directory.of(id_).write
        write_copy = partial(directory.write_copy, id_, metadata=what.metadata)
        written = await self._copies.take(spec, id_, limits, quota_bytes, write_copy)
        if written is None:
            written = await self._engine.save_workspace(spec, lambda contents: write(contents, limits, what.metadata))
        if written is None:  # the thread has no files yet
            written = await in_thread(write, iter(()), limits, what.metadata)
        fields: dict[str, Any] = vars(what) | vars(written) | {"created_us": self._clock(), "created_by": actor()}
        del fields["metadata"]
        snapshot = Snapshot(id=id_, tenant=tenant.name, **fields)
        # Committed even if the caller goes away, and its files must not be swept before.
        entry = audit_entry("snapshot_created", snapshot, what.thread)
        replaced = await to_the_end(self._store.add(snapshot, request, entry, directory.lock))
        ids = (books.ids | {id_}) - replaced
        freed_bytes = await in_thread(directory.remove, replaced, ids)
        if replaced:
            await self._copies.sweep(digest(tenant.name), ids, directory.still_locked)
        books = replace(books, ids=ids, used_bytes=books.used_bytes + written.stored_bytes - freed_bytes)
        if snapshot.automatic:
            kept = tenant.policy.document.sandbox.snapshots_kept
            automatic = [one for one in await self._store.of_thread(what.thread_id) if one.automatic]
            over = await self._reachable(books, automatic[:-kept])
            books = await self._without(books, over, "snapshots_kept")
        await books.close()
        return snapshot

    async def _reachable(self, books: _Books, found: Sequence[Snapshot]) -> Sequence[Snapshot]:
        """Return the automatic snapshots without copies that this gateway cannot reach, and so cannot remove."""
        if not found or self._copies.engine is not None:
            return found
        lost = await in_thread(lambda: {one.id for one in found if books.directory.is_copy(one.id)})
        if lost and books.tenant not in self._warned:
            self._warned.add(books.tenant)
            log.warning(
                "automatic snapshots beyond sandbox.snapshots_kept and the quotas stay: they are copies of volumes, "
                "and sandbox.kubernetes.snapshot_class is not set; set it again to have them removed",
                tenant=books.tenant,
                copies=len(lost),
            )
        return [one for one in found if one.id not in lost]

    async def _with_a_place(self, books: _Books, limit: int) -> _Books:
        """Make room for one more by number; QuotaExceeded if no others can be removed."""
        too_many = len(books.ids) - limit + 1
        if too_many <= 0:
            return books
        automatic = await self._reachable(books, await self._store.automatic(books.tenant))
        if len(automatic) < too_many:
            raise QuotaExceeded(
                f"snapshots: this tenant has {len(books.ids)} snapshots, and its quota is {limit}: delete some "
                "(`airlock sandbox snapshots --delete ID`)",
                quota="snapshots",
                limit=str(limit),
            )
        return await self._without(books, automatic[:too_many], "snapshots")

    async def _with_more_room(self, tenant: str, directory: SnapshotDirectory, missed: QuotaExceeded) -> _Books:
        """Remove the older half of the automatic snapshots; raises `missed` if there are none."""
        # The files of the one that did not fit go first, since their size is unknown.
        books = await self._opened(tenant, directory)
        automatic = await self._reachable(books, await self._store.automatic(tenant))
        if not automatic:
            raise missed
        return await self._without(books, automatic[: len(automatic) // 2 + 1], "snapshot_bytes")

    async def _without(self, books: _Books, gone: Collection[Snapshot], because: str = "") -> _Books:
        """Remove snapshots, rows first: a snapshot with a row must be complete."""
        if not gone:
            return books
        await in_thread(self._copies.refuse_unreachable, (books.directory.is_copy(one.id) for one in gone))
        for one in gone:
            entry = audit_entry("snapshot_deleted", one, one.thread, because=because)
            await self._store.remove(books.tenant, one.id, entry)
        ids = books.ids - {one.id for one in gone}
        freed_bytes = await in_thread(books.directory.remove, [one.id for one in gone], ids)
        await self._copies.sweep(digest(books.tenant), ids, books.directory.still_locked)
        return replace(books, ids=ids, used_bytes=books.used_bytes - freed_bytes)


def audit_entry(kind: str, snapshot: Snapshot, thread: str, **more: JsonValue) -> AuditEntry:
    """Return the audit entry of an operation on a snapshot."""
    details: dict[str, JsonValue] = {"snapshot": snapshot.id, "of_thread": snapshot.thread, "files": snapshot.files}
    if snapshot.automatic:
        details |= {"taken_for": snapshot.kind, "step": snapshot.step}
    details |= {name: value for name, value in more.items() if value}
    return AuditEntry(
        snapshot.tenant, kind, actor=actor(), thread=thread, size_bytes=snapshot.size_bytes, details=details
    )


def no_snapshot(id_: str) -> NotFound:
    """Return the error for an unknown snapshot."""
    return NotFound(f"snapshot {id_[:64]!r} not found: `airlock sandbox snapshots` lists the snapshots")
