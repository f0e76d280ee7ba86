"""SandboxService: a tenant's sandboxes, whichever gateway of the engine created them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from google.protobuf.timestamp_pb2 import Timestamp

from agent.cancellation import ended
from airlock.v1 import sandbox_service_pb2 as pb
from gateway.errors import Cancelled, InvalidArgument, TooLarge, Unavailable
from gateway.sandboxes.history import HistoryReader
from gateway.sandboxes.port_forwarding import PIECE_BYTES, ForwardedConnection, PortForwarding
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.sandboxes.sandbox_usage import Disk, SandboxStats, SandboxUsage
from gateway.services.messages import in_time, message, name_of, paging, timestamp
from gateway.serving.edge import Authenticator, require_scope, streaming, unary
from gateway.serving.request_checks import check
from gateway.snapshots.forks import ForkAt, Forks
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.transition_store import StoredTransition
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb
from sandbox.engines.engine import Listing
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import ListedSandbox

_INTERVAL_MS, _SHORTEST_MS = 2000, 500
_ON_FILES = (
    *("CreateSnapshot", "ListSnapshots", "GetSnapshot", "DeleteSnapshot", "RestoreSnapshot", "ForkThread"),
    "DeleteSandbox",
)


@dataclass(eq=False)
class SandboxService(grpc_pb.SandboxServiceServicer):
    """Manages sandboxes."""

    scope = "tool"
    scopes: ClassVar[Mapping[str, str]] = dict.fromkeys(_ON_FILES, "files")

    engine: Listing
    keeper: SandboxKeeper
    admin: SandboxAdmin
    usage: SandboxUsage
    snapshots: Snapshots
    forks: Forks
    history: HistoryReader
    forwarding: PortForwarding
    authenticate: Authenticator

    @unary
    async def ListSandboxes(self, tenant: Tenant, request: pb.ListSandboxesRequest) -> pb.ListSandboxesResponse:
        size = page_size(request.page_size)
        state = name_of(pb.SandboxState, request.state)
        query = ("sandboxes", tenant.name, request.runtime, request.image, state)
        after = place_of(request.page_token, *query)
        found = [
            one
            for one in await self.engine.listed(tenant.name)
            if (after is None or one.id > after[1])
            and request.runtime in ("", one.runtime)
            and request.image in ("", one.image)
            and state in ("", one.state)
        ]
        shown, token = paged(found, size, lambda one: (0, one.id), *query)
        return pb.ListSandboxesResponse(sandboxes=[self._message(tenant, one) for one in shown], next_page_token=token)

    @unary
    async def GetSandbox(self, tenant: Tenant, request: pb.GetSandboxRequest) -> pb.GetSandboxResponse:
        found = await self.admin.get(tenant, _thread(request.thread))
        return pb.GetSandboxResponse(sandbox=self._message(tenant, found))

    @unary
    async def StopSandbox(self, tenant: Tenant, request: pb.StopSandboxRequest) -> pb.StopSandboxResponse:
        thread = _thread(request.thread)
        stopped = await self.admin.stop(tenant, thread)
        if stopped is None:
            raise await self.admin.missing(tenant, thread)
        return pb.StopSandboxResponse(sandbox=self._message(tenant, stopped))

    @unary
    async def CreateSandbox(self, tenant: Tenant, request: pb.CreateSandboxRequest) -> pb.CreateSandboxResponse:
        made = await self.admin.create(tenant, _thread(request.thread))
        return pb.CreateSandboxResponse(sandbox=self._message(tenant, made))

    @unary
    async def ResumeSandbox(self, tenant: Tenant, request: pb.ResumeSandboxRequest) -> pb.ResumeSandboxResponse:
        resumed = await self.admin.resume(tenant, _thread(request.thread))
        return pb.ResumeSandboxResponse(sandbox=self._message(tenant, resumed))

    @unary
    async def DeleteSandbox(self, tenant: Tenant, request: pb.DeleteSandboxRequest) -> pb.DeleteSandboxResponse:
        was, files = await self.admin.delete(tenant, _thread(request.thread))
        sandbox = None if was is None else self._message(tenant, was)
        return pb.DeleteSandboxResponse(sandbox=sandbox, files_removed=files)

    @unary
    async def GetSandboxStats(self, tenant: Tenant, request: pb.GetSandboxStatsRequest) -> pb.GetSandboxStatsResponse:
        thread = _thread(request.thread)
        found = await self.usage.read(tenant.name, thread)
        if not found:
            raise await self.admin.missing(tenant, thread)
        return pb.GetSandboxStatsResponse(stats=_stats_message(found[0]))

    @streaming
    async def WatchSandboxStats(
        self, tenant: Tenant, request: pb.WatchSandboxStatsRequest
    ) -> AsyncIterator[pb.WatchSandboxStatsResponse]:
        thread = _one_thread(request)
        interval_ms = request.interval_ms or _INTERVAL_MS
        if interval_ms < _SHORTEST_MS:
            raise InvalidArgument(f"interval_ms: {_SHORTEST_MS} to 60,000 are expected; 0 means {_INTERVAL_MS:,}")
        if thread is not None and (await self.admin.get(tenant, thread)).state != "running":
            raise await self.admin.missing(tenant, thread)
        sent = 0
        watched = self.usage.watch(tenant.name, thread, interval_s=interval_ms / 1000, readings=request.readings)
        async for found in watched:
            sent += 1
            yield pb.WatchSandboxStatsResponse(stats=[_stats_message(one) for one in found])
        if sent != request.readings or not sent:
            raise Unavailable("the gateway is shutting down: watch again when it is back")

    @unary
    async def ListSandboxTransitions(
        self, tenant: Tenant, request: pb.ListSandboxTransitionsRequest
    ) -> pb.ListSandboxTransitionsResponse:
        size = page_size(request.page_size)
        thread = _one_thread(request)
        query = ("sandbox transitions", tenant.name, thread)
        after = place_of(request.page_token, *query)
        found = await self.history.page(
            tenant.name, thread=thread, before=None if after is None else after[0], limit=size + 1
        )
        shown, token = paged(found, size, lambda one: (one.id, ""), *query)
        transitions = [_transition_message(one) for one in shown]
        return pb.ListSandboxTransitionsResponse(transitions=transitions, next_page_token=token)

    @streaming
    async def WatchSandboxTransitions(
        self, tenant: Tenant, request: pb.WatchSandboxTransitionsRequest
    ) -> AsyncIterator[pb.WatchSandboxTransitionsResponse]:
        """Stream transitions; ends with Unavailable when the gateway stops."""
        thread = _one_thread(request)
        after = request.after_id if request.HasField("after_id") else None
        async for one in self.history.watch(tenant.name, thread=thread, after=after):
            transition = None if one is None else _transition_message(one)
            yield pb.WatchSandboxTransitionsResponse(transition=transition)
        raise Unavailable("the gateway is shutting down: watch again, after the last id received, when it is back")

    @unary
    async def CreateSnapshot(self, tenant: Tenant, request: pb.CreateSnapshotRequest) -> pb.CreateSnapshotResponse:
        made = await self.snapshots.create(
            tenant, request.thread or "default", comment=request.comment, request_id=request.request_id
        )
        return pb.CreateSnapshotResponse(snapshot=message(pb.Snapshot, made))

    @unary
    async def ListSnapshots(self, tenant: Tenant, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        found, token = await self.snapshots.page(tenant, thread=request.thread, **paging(request))
        return pb.ListSnapshotsResponse(snapshots=[message(pb.Snapshot, one) for one in found], next_page_token=token)

    @unary
    async def GetSnapshot(self, tenant: Tenant, request: pb.GetSnapshotRequest) -> pb.GetSnapshotResponse:
        found = await self.snapshots.get(tenant, request.snapshot_id)
        return pb.GetSnapshotResponse(snapshot=message(pb.Snapshot, found))

    @unary
    async def DeleteSnapshot(self, tenant: Tenant, request: pb.DeleteSnapshotRequest) -> pb.DeleteSnapshotResponse:
        deleted = await self.snapshots.delete(tenant, request.snapshot_id)
        return pb.DeleteSnapshotResponse(snapshot=message(pb.Snapshot, deleted))

    @unary
    async def RestoreSnapshot(self, tenant: Tenant, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        restored, thread = await self.snapshots.restore(tenant, request.snapshot_id, request.thread, request.request_id)
        return pb.RestoreSnapshotResponse(snapshot=message(pb.Snapshot, restored), thread=thread)

    @unary
    async def ForkThread(self, tenant: Tenant, request: pb.ForkThreadRequest) -> pb.ForkThreadResponse:
        require_scope("run")  # the new thread has the messages of the old one
        step = request.step if request.HasField("step") else None
        at = ForkAt(request.snapshot_id, request.run_id, step)
        made = await self.forks.fork(tenant, request.thread, request.new_thread, at, request_id=request.request_id)
        return pb.ForkThreadResponse(**asdict(made))

    @streaming
    async def ForwardPort(
        self, tenant: Tenant, request: AsyncIterator[pb.ForwardPortRequest]
    ) -> AsyncIterator[pb.ForwardPortResponse]:
        """Relay one connection until both directions have ended."""
        messages = aiter(request)
        first = await in_time(anext(messages, None), "no message came", "the first must be `forward`")
        if first is None or first.WhichOneof("request") != "forward":
            raise InvalidArgument("the first message must be `forward`, with the port; data follows in further ones")
        check(first)
        async with self.forwarding.connection(tenant, _thread(first.forward.thread), first.forward.port) as connection:
            yield pb.ForwardPortResponse(opened=True)
            sending = asyncio.create_task(_pass_on(messages, connection))
            try:
                while data := await connection.receive():
                    yield pb.ForwardPortResponse(data=data)
                yield pb.ForwardPortResponse(end=True)
                await connection.wait_for(sending)
            finally:
                await ended(sending)

    def _message(self, tenant: Tenant, one: ListedSandbox) -> pb.Sandbox:
        stopped, since = one.state == "idle_stopped", _moment(one.since_s)
        ends = _moment(self.admin.ends_s(tenant, one))
        return message(
            pb.Sandbox,
            one,
            created_at=_moment(one.created_s),
            calls=self.keeper.users(tenant.name, one.thread),
            idle_since=None if stopped else since,
            stops_at=None if stopped else ends,
            stopped_since=since if stopped else None,
            removes_at=ends if stopped else None,
        )


async def _pass_on(messages: AsyncIterator[pb.ForwardPortRequest], connection: ForwardedConnection) -> None:
    """Send a client's data to the program, up to `end` or until it takes no more; abort the connection on an error.

    Only `end` ends it: a client that dies closes its stream as well.
    """
    try:
        async for message in messages:
            kind = message.WhichOneof("request")
            if kind == "end":
                connection.end()
                return
            if kind != "data":
                raise InvalidArgument("only the first message may be `forward`; the others are `data`, and `end`")
            if len(message.data) > PIECE_BYTES:
                raise TooLarge(f"data: {PIECE_BYTES:,} bytes a message at most; send smaller pieces")
            if not await connection.send(message.data):
                return
        raise Cancelled("the stream was closed without `end`, so the data is not whole; the connection was ended")
    except Exception as error:
        connection.abort(error)


def _thread(name: str) -> str:
    return name or "default"


def _one_thread(request: Any) -> str | None:
    """Return the one thread that a request is about; None for all."""
    return _thread(request.thread) if request.HasField("thread") else None


def _transition_message(one: StoredTransition) -> pb.SandboxTransition:
    return message(pb.SandboxTransition, one, sandbox_id=one.sandbox)


def _stats_message(stats: SandboxStats) -> pb.SandboxStats:
    """Return what a sandbox uses; unknown values are not set."""
    sandbox, usage = stats.sandbox, asdict(stats.usage)
    disks = {"workspace": _disk(stats.workspace), "tmp": _disk(stats.tmp)}
    return message(
        pb.SandboxStats, stats, id=sandbox.id, thread=sandbox.thread, runtime=sandbox.runtime, **usage, **disks
    )


def _moment(at_s: float | None) -> Timestamp | None:
    return None if at_s is None else timestamp(round(at_s * 1_000_000) * 1000)


def _disk(disk: Disk | None) -> pb.DiskStats | None:
    return None if disk is None else message(pb.DiskStats, disk)
