"""SandboxService: a tenant's sandboxes, whichever gateway of the engine created them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.errors import InvalidArgument, Unavailable
from gateway.sandboxes.history_reader import HistoryReader
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.sandboxes.sandbox_usage import Disk, SandboxStats, SandboxUsage
from gateway.services.messages import message, numbers, timestamp
from gateway.services.snapshot_calls import SNAPSHOT_SCOPES, SnapshotCalls
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.snapshots.forks import Forks
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.transition_store import StoredTransition
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import sandbox_service_pb2 as pb
from sandbox.engines.engine import Listing
from sandbox.keeper.keeper import Keeper
from sandbox.sandbox import ListedSandbox

_INTERVAL_MS, _SHORTEST_MS = 2000, 500
_STATES = numbers(pb.SandboxState, "SANDBOX_STATE_")
_NAMES = {number: name for name, number in _STATES.items()}


@dataclass(frozen=True)
class SandboxParts:
    """The parts behind the service."""

    engine: Listing
    keeper: Keeper
    admin: SandboxAdmin
    usage: SandboxUsage
    snapshots: Snapshots
    forks: Forks
    history: HistoryReader


class SandboxService(SnapshotCalls):
    """Manages sandboxes."""

    scope = "tool"
    scopes: ClassVar[Mapping[str, str]] = {"DeleteSandbox": "files", **SNAPSHOT_SCOPES}

    def __init__(self, parts: SandboxParts, authenticate: Authenticator) -> None:
        super().__init__(parts.snapshots, parts.forks)
        self._engine = parts.engine
        self._keeper = parts.keeper
        self._admin = parts.admin
        self._usage = parts.usage
        self._history = parts.history
        self.authenticate = authenticate

    @unary
    async def ListSandboxes(self, tenant: Tenant, request: pb.ListSandboxesRequest) -> pb.ListSandboxesResponse:
        size = page_size(request.page_size)
        state = _NAMES.get(request.state, "")
        query = ("sandboxes", tenant.name, request.runtime, request.image, state)
        after = place_of(request.page_token, *query)
        found = [
            one
            for one in await self._engine.listed(tenant.name)
            if (after is None or one.id > after[1])
            and request.runtime in ("", one.runtime)
            and request.image in ("", one.image)
            and state in ("", one.state)
        ]
        shown, token = paged(found, size, lambda one: (0, one.id), *query)
        return pb.ListSandboxesResponse(sandboxes=[self._message(tenant, one) for one in shown], next_page_token=token)

    @unary
    async def GetSandbox(self, tenant: Tenant, request: pb.GetSandboxRequest) -> pb.GetSandboxResponse:
        found = await self._admin.get(tenant, _thread(request.thread))
        return pb.GetSandboxResponse(sandbox=self._message(tenant, found))

    @unary
    async def StopSandbox(self, tenant: Tenant, request: pb.StopSandboxRequest) -> pb.StopSandboxResponse:
        thread = _thread(request.thread)
        stopped = await self._admin.stop(tenant, thread)
        if stopped is None:
            raise await self._admin.missing(tenant, thread)
        return pb.StopSandboxResponse(sandbox=self._message(tenant, stopped))

    @unary
    async def CreateSandbox(self, tenant: Tenant, request: pb.CreateSandboxRequest) -> pb.CreateSandboxResponse:
        made = await self._admin.create(tenant, _thread(request.thread))
        return pb.CreateSandboxResponse(sandbox=self._message(tenant, made))

    @unary
    async def ResumeSandbox(self, tenant: Tenant, request: pb.ResumeSandboxRequest) -> pb.ResumeSandboxResponse:
        resumed = await self._admin.resume(tenant, _thread(request.thread))
        return pb.ResumeSandboxResponse(sandbox=self._message(tenant, resumed))

    @unary
    async def DeleteSandbox(self, tenant: Tenant, request: pb.DeleteSandboxRequest) -> pb.DeleteSandboxResponse:
        was, files = await self._admin.delete(tenant, _thread(request.thread))
        sandbox = None if was is None else self._message(tenant, was)
        return pb.DeleteSandboxResponse(sandbox=sandbox, files_removed=files)

    @unary
    async def GetSandboxStats(self, tenant: Tenant, request: pb.GetSandboxStatsRequest) -> pb.GetSandboxStatsResponse:
        thread = _thread(request.thread)
        found = await self._usage.read(tenant.name, thread)
        if not found:
            raise await self._admin.missing(tenant, thread)
        return pb.GetSandboxStatsResponse(stats=_stats_message(found[0]))

    @streaming
    async def WatchSandboxStats(
        self, tenant: Tenant, request: pb.WatchSandboxStatsRequest
    ) -> AsyncIterator[pb.WatchSandboxStatsResponse]:
        thread = _thread(request.thread) if request.HasField("thread") else None
        interval_ms = request.interval_ms or _INTERVAL_MS
        if interval_ms < _SHORTEST_MS:
            raise InvalidArgument(f"interval_ms: {_SHORTEST_MS} to 60,000 are expected; 0 means {_INTERVAL_MS:,}")
        if thread is not None and (await self._admin.get(tenant, thread)).state != "running":
            raise await self._admin.missing(tenant, thread)
        sent = 0
        watched = self._usage.watch(tenant.name, thread, interval_s=interval_ms / 1000, readings=request.readings)
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
        thread = _thread(request.thread) if request.HasField("thread") else None
        query = ("sandbox transitions", tenant.name, thread)
        after = place_of(request.page_token, *query)
        found = await self._history.page(
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
        thread = _thread(request.thread) if request.HasField("thread") else None
        after = request.after_id if request.HasField("after_id") else None
        async for one in self._history.watch(tenant.name, thread=thread, after=after):
            transition = None if one is None else _transition_message(one)
            yield pb.WatchSandboxTransitionsResponse(transition=transition)
        raise Unavailable("the gateway is shutting down: watch again, after the last id received, when it is back")

    def _message(self, tenant: Tenant, one: ListedSandbox) -> pb.Sandbox:
        calls = self._keeper.users(tenant.name, one.thread)
        return _sandbox_message(one, calls, self._admin.ends_s(tenant, one))


def _thread(name: str) -> str:
    return name or "default"


def _sandbox_message(one: ListedSandbox, calls: int, ends_s: float | None) -> pb.Sandbox:
    """Return a sandbox with `calls` under way here; `ends_s` is when it is stopped or, once stopped, removed."""
    stopped = one.state == "idle_stopped"
    since, ends = _moment(one.since_s), _moment(ends_s)
    return pb.Sandbox(
        id=one.id,
        thread=one.thread,
        image=one.image,
        runtime=one.runtime,
        created_at=_moment(one.created_s),
        calls=calls,
        state=_STATES[one.state],
        idle_since=None if stopped else since,
        stops_at=None if stopped else ends,
        stopped_since=since if stopped else None,
        removes_at=ends if stopped else None,
    )


def _transition_message(one: StoredTransition) -> pb.SandboxTransition:
    return message(pb.SandboxTransition, one, sandbox_id=one.sandbox, state=_STATES[one.state])


def _stats_message(stats: SandboxStats) -> pb.SandboxStats:
    """Return what a sandbox uses; unknown values are not set."""
    sandbox, usage = stats.sandbox, asdict(stats.usage)
    disks = {"workspace": _disk(stats.workspace), "tmp": _disk(stats.tmp)}
    return message(
        pb.SandboxStats, stats, id=sandbox.id, thread=sandbox.thread, runtime=sandbox.runtime, **usage, **disks
    )


def _moment(at_s: float | None) -> Timestamp | None:
    return None if at_s is None else timestamp(round(at_s * 1_000_000))


def _disk(disk: Disk | None) -> pb.DiskStats | None:
    return None if disk is None else message(pb.DiskStats, disk)
