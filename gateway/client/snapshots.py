"""Snapshots in the Python client: a thread's files, kept and put back, and threads that are made of others."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.client.messages import enum_name, record
from gateway.client.wire import Wire
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb


@dataclass(frozen=True)
class Snapshot:
    """The files of a thread as they were. `messages` were said in it by then, in the run `run_id` if one was under way.

    `stored_bytes` is what it added on the gateway's disk. `skipped` devices, pipes and sockets are not in it;
    `stripped` entries lost setuid, setgid or sticky. `kind` is why it was taken: asked, step, run or fork. `step` is
    the last one of the run that is in it, 0 where it was not taken between two.
    """

    id: str
    thread: str
    created_at: datetime
    created_by: str
    comment: str
    run_id: str
    messages: int
    files: int
    size_bytes: int
    stored_bytes: int
    skipped: int
    stripped: int
    kind: str = "asked"
    step: int = 0


@dataclass(frozen=True)
class Fork:
    """A thread made of another: its name, and where of which thread it begins, as Snapshot says it."""

    thread: str
    of_thread: str
    snapshot_id: str
    run_id: str
    step: int
    messages: int


class SnapshotCalls(Wire):
    """The calls of SandboxService that are about snapshots."""

    @property
    def _snapshots(self) -> Any:
        return self._stub(grpc_pb.SandboxServiceStub)

    async def create_snapshot(self, thread: str, *, comment: str = "", request_id: str = "") -> Snapshot:
        """Keep the files of a thread as they are now; once, however often a broken connection makes the client ask.

        With a `request_id` of your own you may ask again. Raises NotFound, QuotaExceeded, TooLarge, NoSpace, and
        InProgress while another snapshot of the tenant is taken.
        """
        create, asked = self._snapshots.CreateSnapshot, request_id or str(uuid.uuid4())
        made = await self._ask(create, pb.CreateSnapshotRequest, thread=thread, comment=comment, request_id=asked)
        return _snapshot(made.snapshot)

    async def snapshots(self, *, thread: str = "") -> AsyncIterator[Snapshot]:
        """Yield the tenant's snapshots, the newest first, a page at a time as it is asked for; those of a thread.

        Raises NotFound where there is neither such a thread nor a snapshot of one.
        """
        listed = self._listed(self._snapshots.ListSnapshots, pb.ListSnapshotsRequest, "snapshots", thread=thread)
        async for one in listed:
            yield _snapshot(one)

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """Return a snapshot; NotFound."""
        get = self._snapshots.GetSnapshot
        return _snapshot((await self._ask(get, pb.GetSnapshotRequest, snapshot_id=snapshot_id)).snapshot)

    async def delete_snapshot(self, snapshot_id: str) -> Snapshot:
        """Remove a snapshot for good, and return it as it was.

        Raises NotFound, also because an answer was lost and it is removed already.
        """
        delete = self._snapshots.DeleteSnapshot
        return _snapshot((await self._ask(delete, pb.DeleteSnapshotRequest, snapshot_id=snapshot_id)).snapshot)

    async def restore_snapshot(self, snapshot_id: str, *, thread: str = "", request_id: str = "") -> str:
        """Have a snapshot in the place of all files of a thread, its own where none is named; return the thread's name.

        The thread's sandbox is removed with all that runs in it. Once, however often a broken connection makes the
        client ask; with a `request_id` of your own you may ask again. Raises NotFound, ThreadBusy while a run or a call
        is under way in the thread, TooLarge, Unavailable.
        """
        asked = {"snapshot_id": snapshot_id, "thread": thread, "request_id": request_id or str(uuid.uuid4())}
        return str((await self._ask(self._snapshots.RestoreSnapshot, pb.RestoreSnapshotRequest, **asked)).thread)

    async def fork_thread(
        self,
        thread: str,
        new_thread: str,
        *,
        run_id: str = "",
        step: int | None = None,
        snapshot_id: str = "",
        request_id: str = "",
    ) -> Fork:
        """Make a thread of another, with what was said in it, its metadata and its files of some moment.

        That is the end of the run `run_id`, or of its `step`; the moment of a snapshot; else now. The key needs the
        scopes files and run. Once, however often a broken connection makes the client ask. Raises NotFound, Conflict
        where there is a thread of that name, WorkspaceNotSaved for a step whose files are not kept, ThreadBusy,
        QuotaExceeded and TooLarge.
        """
        made = await self._ask(
            self._snapshots.ForkThread,
            pb.ForkThreadRequest,
            thread=thread,
            new_thread=new_thread,
            run_id=run_id,
            step=step,
            snapshot_id=snapshot_id,
            request_id=request_id or str(uuid.uuid4()),
        )
        return record(Fork, made)


def _snapshot(one: pb.Snapshot) -> Snapshot:
    return record(Snapshot, one, kind=enum_name(pb.SnapshotKind, one.kind))
