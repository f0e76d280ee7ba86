"""The RPCs of SandboxService that are about snapshots, over gateway.snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gateway.identity.call_credentials import Context
from gateway.services.timestamps import timestamp
from gateway.serving.edge import Authenticator, require_scope, unary
from gateway.snapshots.forks import ForkAt, Forks
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.snapshot_store import Snapshot
from gateway.tenancy.tenants import Tenant
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb

_OF_SNAPSHOTS = ("CreateSnapshot", "ListSnapshots", "GetSnapshot", "DeleteSnapshot", "RestoreSnapshot", "ForkThread")
SNAPSHOT_SCOPES: Mapping[str, str] = dict.fromkeys(_OF_SNAPSHOTS, "files")


class SnapshotCalls(grpc_pb.SandboxServiceServicer):
    """A part of SandboxService."""

    scope = "files"
    authenticate: Authenticator

    def __init__(self, snapshots: Snapshots, forks: Forks) -> None:
        self._snapshots = snapshots
        self._forks = forks

    @unary
    async def CreateSnapshot(  # noqa: N802
        self, tenant: Tenant, request: pb.CreateSnapshotRequest, context: Context
    ) -> pb.CreateSnapshotResponse:
        """Keep the files of a thread."""
        del context
        made = await self._snapshots.create(
            tenant, request.thread or "default", comment=request.comment, request_id=request.request_id
        )
        return pb.CreateSnapshotResponse(snapshot=_message(made))

    @unary
    async def ListSnapshots(  # noqa: N802
        self, tenant: Tenant, request: pb.ListSnapshotsRequest, context: Context
    ) -> pb.ListSnapshotsResponse:
        """List snapshots, a page at a time."""
        del context
        found, token = await self._snapshots.page(
            tenant, thread=request.thread, size=request.page_size, token=request.page_token
        )
        return pb.ListSnapshotsResponse(snapshots=[_message(one) for one in found], next_page_token=token)

    @unary
    async def GetSnapshot(  # noqa: N802
        self, tenant: Tenant, request: pb.GetSnapshotRequest, context: Context
    ) -> pb.GetSnapshotResponse:
        """Return a snapshot."""
        del context
        return pb.GetSnapshotResponse(snapshot=_message(await self._snapshots.get(tenant, request.snapshot_id)))

    @unary
    async def DeleteSnapshot(  # noqa: N802
        self, tenant: Tenant, request: pb.DeleteSnapshotRequest, context: Context
    ) -> pb.DeleteSnapshotResponse:
        """Remove a snapshot."""
        del context
        return pb.DeleteSnapshotResponse(snapshot=_message(await self._snapshots.delete(tenant, request.snapshot_id)))

    @unary
    async def RestoreSnapshot(  # noqa: N802
        self, tenant: Tenant, request: pb.RestoreSnapshotRequest, context: Context
    ) -> pb.RestoreSnapshotResponse:
        """Put a snapshot in the place of a thread's files."""
        del context
        restored, thread = await self._snapshots.restore(
            tenant, request.snapshot_id, request.thread, request.request_id
        )
        return pb.RestoreSnapshotResponse(snapshot=_message(restored), thread=thread)

    @unary
    async def ForkThread(  # noqa: N802
        self, tenant: Tenant, request: pb.ForkThreadRequest, context: Context
    ) -> pb.ForkThreadResponse:
        """Make a thread of another, with what was said in it."""
        del context
        require_scope("run")  # for what was said in a thread is in it
        step = request.step if request.HasField("step") else None
        at = ForkAt(request.snapshot_id, request.run_id, step)
        made = await self._forks.fork(tenant, request.thread, request.new_thread, at, request_id=request.request_id)
        return pb.ForkThreadResponse(**asdict(made))


def _message(one: Snapshot) -> pb.Snapshot:
    return pb.Snapshot(
        id=one.id,
        thread=one.thread,
        created_at=timestamp(one.created_us),
        created_by=one.created_by,
        comment=one.comment,
        run_id=one.run_id,
        messages=one.messages,
        files=one.files,
        size_bytes=one.size_bytes,
        stored_bytes=one.stored_bytes,
        skipped=one.skipped,
        stripped=one.stripped,
        kind=f"SNAPSHOT_KIND_{one.kind.upper()}",
        step=one.step,
    )
