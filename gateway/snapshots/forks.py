"""Forks: a new thread with another's messages up to some moment, and its files of that moment.

The new thread has a row from the beginning, which is invisible and in which nothing begins. Its files come first; then,
in one transaction, its messages, its metadata and the end of that mark. What a gateway that died left half-done is
removed when one starts, and before the tenant's next fork. Runs, approvals and grants are not copied: they belong to
the thread in which they were made.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import structlog

from agent.cancellation import to_the_end
from gateway.credentials.caller import actor
from gateway.errors import (
    AirlockError,
    Conflict,
    InProgress,
    InvalidArgument,
    NotFound,
    OtherEngine,
    ThreadBusy,
    Unavailable,
    WorkspaceNotSaved,
)
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.snapshots import Snapshots
from gateway.snapshots.taking import Taken, no_snapshot
from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import Thread, read_message
from gateway.storage.snapshot_store import FORK, Fork, ForkStore, Snapshot, WorkspaceRequest
from gateway.storage.thread_store import FORKING, MessageRow, ThreadRow
from gateway.support.clock import make_id
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from sandbox.engines.engine import Removal
from sandbox.errors import SandboxError, WorkspaceIncomplete

# More messages than a step can have.
_STEP_MESSAGES = 2_000
_SHOWN = 5
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ForkPoint:
    """The first `messages` of a thread, and its files then; `step` of `run_id` was the last, 0 and "" for none.

    A step that called tools and has a snapshot is a point. So is a step after it that called none, and with it the
    run's end, as the files were the same. For any other moment, the error names the nearest points.
    """

    snapshot: Snapshot
    messages: int
    run_id: str = ""
    step: int = 0


def _without_tools(said: Sequence[MessageRow], before: Snapshot, step: int | None) -> tuple[int | None, int]:
    """Return how many messages there are up to a step or the end, and its number; None if tools were called."""
    count, reached = before.messages, before.step
    for one in said:
        message = read_message(one.message).message
        if message is None or message.role == "tool" or message.tool_calls:
            return None, reached
        if message.role == "assistant":
            if reached == step:
                break
            reached += 1
        count = one.position + 1
    return (count, reached) if step in (None, reached) else (None, reached)


def _not_saved(row: ThreadRow, run_id: str, step: int | None, kept: Sequence[Snapshot]) -> WorkspaceNotSaved:
    near = sorted(kept, key=lambda one: (abs(one.step - step) if step is not None else -one.step, one.step))[:_SHOWN]
    nearest = ", ".join(str(one.step) for one in sorted(near, key=lambda one: one.step))
    at = "at its end" if step is None else f"after step {step}"
    known = (
        f"the nearest steps of it that were kept: {nearest}"
        if near
        else "none of its steps was kept: set `snapshots: step` in the policy's sandbox section for runs to come"
    )
    return WorkspaceNotSaved(
        f"the files of thread {row.name!r} {at} of run {run_id} were not saved; {known}. Or fork a snapshot, or "
        "the current state of the thread",
        nearest=nearest,
    )


@dataclass(frozen=True)
class ForkAt:
    """Where to fork: at a snapshot, at a run's end or step, or, with none of them, now."""

    snapshot_id: str = ""
    run_id: str = ""
    step: int | None = None


@dataclass(frozen=True)
class Forked:
    """A fork: the new thread's name, and where it begins in which thread."""

    thread: str
    of_thread: str
    snapshot_id: str
    run_id: str
    step: int
    messages: int


class Forks:
    """Forks threads whose files are on this gateway's engine."""

    def __init__(self, engine: Removal, snapshots: Snapshots, store: ForkStore, *, quotas: Quotas) -> None:
        self._engine = engine
        self._snapshots = snapshots
        self._store = store
        self._quotas = quotas

    async def fork(self, tenant: Tenant, source: str, name: str, at: ForkAt, *, request_id: str = "") -> Forked:
        """Create a thread `name` as a fork of another. A repeated request id returns the same fork.

        Raises NotFound, Conflict if there is a thread of that name, WorkspaceNotSaved, ThreadBusy, OtherEngine,
        QuotaExceeded, TooLarge, NoSpace, InProgress, RequestIdReused and SandboxError.
        """
        asked = hashlib.sha256(json.dumps([source, name, asdict(at)]).encode()).hexdigest()
        request = WorkspaceRequest(tenant.name, request_id, asked) if request_id else None
        if (answer := await self._snapshots.restores.answer(request)) is not None:
            return Forked(**answer)
        if at.step is not None and not at.run_id:
            raise InvalidArgument("step: set run_id too, because a step belongs to a run")
        if at.snapshot_id and at.run_id:
            raise InvalidArgument("snapshot_id: set only one of snapshot_id and run_id")
        await self._quotas.check_stored(tenant.name, tenant.policy.document.quotas)
        row, snapshot = await self._source(tenant, source, at)
        await self._snapshots.engines.refuse_other(Thread(row.id, tenant.name, row.name))
        await self.remove_half_made(tenant.name)
        directory = self._snapshots.of(tenant.name)
        async with directory.forking():
            if not at.run_id and snapshot is None:
                if await self._store.is_taken(tenant.name, name, tenant.policy.document.quotas.threads):
                    raise await self._taken_name(tenant.name, name, request)
                snapshot = await self._now(tenant, row, directory)
            async with directory.shared():
                point = await self._point(tenant, row, at, snapshot)
                # Completed even if the caller goes away: half a fork is useless.
                return await to_the_end(self._made(tenant, row, name, point, request))

    async def remove_half_made(self, tenant: str | None = None) -> None:
        """Remove this engine's forks, of all tenants or one, that gateways left when they died."""
        for name in {one.tenant for one in await self._store.half_made(tenant)}:
            # If a fork is in progress, it is not known which of them it is.
            with contextlib.suppress(InProgress):
                async with self._snapshots.of(name).not_forking(wait=tenant is None):
                    for thread in await self._store.half_made(name):
                        await self._undone(thread)

    async def _source(self, tenant: Tenant, source: str, at: ForkAt) -> tuple[ThreadRow, Snapshot | None]:
        if at.snapshot_id:
            snapshot = await self._snapshots.store.get(tenant.name, at.snapshot_id)
            if snapshot is None:
                raise no_snapshot(at.snapshot_id)
            source = source or snapshot.thread
            row = await self._snapshots.listed.get(tenant.name, source)
            if row is None or row.id != snapshot.thread_id:
                raise NotFound(
                    f"snapshot {snapshot.id} belongs to no existing thread {source[:64]!r}: restore it into a thread "
                    "instead"
                )
            return row, snapshot
        return await self._snapshots.listed.known(tenant.name, source or "default"), None

    async def _now(self, tenant: Tenant, row: ThreadRow, directory: SnapshotDirectory) -> Snapshot:
        """Take a snapshot of a thread now.

        ThreadBusy while anything is under way: messages and files would not match.
        """
        await self._store.refuse_busy(row.id, row.name)
        metadata = await self._snapshots.metadata_of(row.id)
        said = await self._snapshots.listed.message_count(row.id)
        what = Taken(row.id, row.name, said, FORK, metadata=metadata)
        async with directory.alone():
            return await self._snapshots.taking.take(tenant, directory, what)

    async def _point(self, tenant: Tenant, row: ThreadRow, at: ForkAt, snapshot: Snapshot | None) -> ForkPoint:
        """Return where to fork; from here on no snapshot is removed."""
        if snapshot is None:
            return await self._point_in(row, at.run_id, at.step)
        if await self._snapshots.store.get(tenant.name, snapshot.id) is None:
            raise InProgress("the snapshot was just removed to make room for another: try again", 0.2)
        return await self._point_of(snapshot)

    async def _point_of(self, snapshot: Snapshot) -> ForkPoint:
        """Return the point at which a snapshot was taken."""
        messages = await self._whole_steps(snapshot.thread_id, snapshot.messages)
        return ForkPoint(snapshot, messages, snapshot.run_id, snapshot.step)

    async def _point_in(self, row: ThreadRow, run_id: str, step: int | None) -> ForkPoint:
        """Return the end of a run, or of one of its steps.

        NotFound for a run without messages in the thread, WorkspaceNotSaved if the files are not known.
        """
        said = await self._store.said_in(row.id, run_id)
        if not said:
            raise NotFound(f"run {run_id[:64]!r} has no messages in thread {row.name!r}")
        if step is None and row.run_id == run_id:
            raise ThreadBusy(f"run {run_id} has not finished: wait for it, or fork at one of its steps", run_id=run_id)
        kept = [one for one in await self._snapshots.store.of_thread(row.id) if one.run_id == run_id and one.step]
        before = max((one for one in kept if step is None or one.step <= step), key=lambda one: one.step, default=None)
        if before is not None and before.step == step:
            return await self._point_of(before)
        if before is not None:
            count, reached = _without_tools([one for one in said if one.position >= before.messages], before, step)
            if count is not None:
                return ForkPoint(before, count, run_id, reached)
        raise _not_saved(row, run_id, step, kept)

    async def _whole_steps(self, thread_id: str, count: int) -> int:
        """Return how many of the first messages leave no call without its answer."""
        last = await self._store.last_said(thread_id, count, _STEP_MESSAGES)
        answered: set[str | None] = set()
        for one in reversed(last):
            message = read_message(one.message).message
            if message is None or message.role != "tool":
                asked = {call.id for call in message.tool_calls} if message is not None else set()
                return one.position if asked - answered else count
            answered.add(message.tool_call_id)
        return count

    async def _made(
        self, tenant: Tenant, row: ThreadRow, name: str, point: ForkPoint, request: WorkspaceRequest | None
    ) -> Forked:
        target, mark = Thread(make_id("thr"), tenant.name, name), make_id(FORKING.removesuffix("_"))
        limit = tenant.policy.document.quotas.threads
        try:
            await self._store.begin(target, mark, limit, request)
        except ConstraintViolated:
            raise await self._taken_name(tenant.name, name, request) from None
        fork = Fork(target, mark, point.messages, {}, request)
        try:
            return await self._filled(tenant, row, fork, point)
        except BaseException as error:
            await self._undone(target)
            if isinstance(error, WorkspaceIncomplete):
                raise Unavailable(f"the files of the new thread could not be written: {error}") from error
            raise

    async def _filled(self, tenant: Tenant, row: ThreadRow, fork: Fork, point: ForkPoint) -> Forked:
        snapshot, name = point.snapshot, fork.thread.name
        await self._snapshots.fill(snapshot, fork.thread, tenant)
        forked = Forked(name, row.name, snapshot.id, point.run_id, point.step, point.messages)
        details = {key: value for key, value in asdict(forked).items() if key != "thread"}
        entry = AuditEntry(
            tenant.name, "thread_forked", actor=actor(), thread=name, size_bytes=snapshot.size_bytes, details=details
        )
        request = fork.request and replace(fork.request, answer=json.dumps(asdict(forked)))
        metadata = await asyncio.to_thread(self._snapshots.of(tenant.name).of(snapshot.id).read_metadata)
        await self._store.end(replace(fork, metadata=metadata or {}, request=request), snapshot, entry)
        return forked

    async def _taken_name(self, tenant: str, name: str, request: WorkspaceRequest | None) -> AirlockError:
        """Return why the thread's row could not be written."""
        if request is not None and await self._snapshots.restores.request(tenant, request.id) is not None:
            return InProgress("the same request is still running: repeat it to get its thread")
        if any(one.name == name for one in await self._store.half_made(tenant)):
            return ThreadBusy(f"thread {name[:64]!r} is being created as a fork: choose another name, or wait")
        return Conflict(f"thread {name[:64]!r} already exists: choose another name, or delete it")

    async def _undone(self, thread: Thread) -> None:
        """Remove an invisible thread, files first; what cannot be removed now goes with the next fork."""

        async def work() -> None:
            half_made = await self._store.half_made(thread.tenant)
            if all(one.id != thread.id for one in half_made):
                return  # the fork is complete; only the database's answer was lost
            await self._snapshots.engines.refuse_other(thread)
            await self._engine.remove_of(thread.tenant, thread.name)
            await self._engine.remove_workspace(thread.tenant, thread.name)
            await self._store.undo(thread.id)

        try:
            await to_the_end(work())
        except (SandboxError, Unavailable, OtherEngine) as error:
            log.warning("the remains of a fork will be removed later", tenant=thread.tenant, error=str(error))
