"""The snapshot RPCs of SandboxService, over gateway.snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gateway.services.messages import message
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
    """The part of SandboxService that is about snapshots."""

    scope = "files"
    authenticate: Authenticator

    def __init__(self, snapshots: Snapshots, forks: Forks) -> None:
        self._snapshots = snapshots
        self._forks = forks

    @unary
    async def CreateSnapshot(self, tenant: Tenant, request: pb.CreateSnapshotRequest) -> pb.CreateSnapshotResponse:
        made = await self._snapshots.create(
            tenant, request.thread or "default", comment=request.comment, request_id=request.request_id
        )
        return pb.CreateSnapshotResponse(snapshot=_message(made))

    @unary
    async def ListSnapshots(self, tenant: Tenant, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        found, token = await self._snapshots.page(
            tenant, thread=request.thread, size=request.page_size, token=request.page_token
        )
        return pb.ListSnapshotsResponse(snapshots=[_message(one) for one in found], next_page_token=token)

    @unary
    async def GetSnapshot(self, tenant: Tenant, request: pb.GetSnapshotRequest) -> pb.GetSnapshotResponse:
        return pb.GetSnapshotResponse(snapshot=_message(await self._snapshots.get(tenant, request.snapshot_id)))

    @unary
    async def DeleteSnapshot(self, tenant: Tenant, request: pb.DeleteSnapshotRequest) -> pb.DeleteSnapshotResponse:
        return pb.DeleteSnapshotResponse(snapshot=_message(await self._snapshots.delete(tenant, request.snapshot_id)))

    @unary
    async def RestoreSnapshot(self, tenant: Tenant, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        restored, thread = await self._snapshots.restore(
            tenant, request.snapshot_id, request.thread, request.request_id
        )
        return pb.RestoreSnapshotResponse(snapshot=_message(restored), thread=thread)

    @unary
    async def ForkThread(self, tenant: Tenant, request: pb.ForkThreadRequest) -> pb.ForkThreadResponse:
        require_scope("run")  # the new thread has the messages of the old one
        step = request.step if request.HasField("step") else None
        at = ForkAt(request.snapshot_id, request.run_id, step)
        made = await self._forks.fork(tenant, request.thread, request.new_thread, at, request_id=request.request_id)
        return pb.ForkThreadResponse(**asdict(made))


def _message(one: Snapshot) -> pb.Snapshot:
    return message(pb.Snapshot, one, kind=f"SNAPSHOT_KIND_{one.kind.upper()}")
