"""SandboxService over the engine and the keeper: sandboxes of a tenant, whichever gateway of the engine made them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import ClassVar

from gateway.errors import InvalidArgument, Unavailable
from gateway.identity.call_credentials import Context
from gateway.sandboxes.history_reader import HistoryReader
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.sandboxes.sandbox_usage import SandboxUsage
from gateway.services.sandbox_messages import sandbox_message, state_of, stats_message, transition_message
from gateway.services.snapshot_calls import SNAPSHOT_SCOPES, SnapshotCalls
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.snapshots.forks import Forks
from gateway.snapshots.snapshots import Snapshots
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import sandbox_service_pb2 as pb
from sandbox.engines.engine import Listing
from sandbox.keeper.keeper import Keeper
from sandbox.sandbox import ListedSandbox

_INTERVAL_MS, _SHORTEST_MS = 2000, 500


class SandboxService(SnapshotCalls):
    """Looks after sandboxes."""

    scope = "tool"
    scopes: ClassVar[Mapping[str, str]] = {"DeleteSandbox": "files", **SNAPSHOT_SCOPES}

    def __init__(
        self,
        engine: Listing,
        keeper: Keeper,
        authenticate: Authenticator,
        *,
        tended: SandboxAdmin,
        usage: SandboxUsage,
        snapshots: Snapshots,
        forks: Forks,
        history: HistoryReader,
    ) -> None:
        super().__init__(snapshots, forks)
        self._engine = engine
        self._keeper = keeper
        self._tended = tended
        self._usage = usage
        self._history = history
        self.authenticate = authenticate

    @unary
    async def ListSandboxes(  # noqa: N802
        self, tenant: Tenant, request: pb.ListSandboxesRequest, context: Context
    ) -> pb.ListSandboxesResponse:
        """List the sandboxes that there are, by id, a page at a time."""
        del context
        size = page_size(request.page_size)
        state = state_of(request.state)
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
    async def GetSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.GetSandboxRequest, context: Context
    ) -> pb.GetSandboxResponse:
        """Return the sandbox of a thread."""
        del context
        found = await self._tended.get(tenant, _thread(request.thread))
        return pb.GetSandboxResponse(sandbox=self._message(tenant, found))

    @unary
    async def StopSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.StopSandboxRequest, context: Context
    ) -> pb.StopSandboxResponse:
        """Stop the sandbox of a thread, whichever gateway has it."""
        del context
        thread = _thread(request.thread)
        stopped = await self._tended.stop(tenant, thread)
        if stopped is None:
            raise await self._tended.missing(tenant, thread)
        return pb.StopSandboxResponse(sandbox=self._message(tenant, stopped))

    @unary
    async def CreateSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.CreateSandboxRequest, context: Context
    ) -> pb.CreateSandboxResponse:
        """Have the sandbox of a thread ahead of its calls."""
        del context
        made = await self._tended.create(tenant, _thread(request.thread))
        return pb.CreateSandboxResponse(sandbox=self._message(tenant, made))

    @unary
    async def ResumeSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.ResumeSandboxRequest, context: Context
    ) -> pb.ResumeSandboxResponse:
        """Start the sandbox of a thread that is stopped."""
        del context
        resumed = await self._tended.resume(tenant, _thread(request.thread))
        return pb.ResumeSandboxResponse(sandbox=self._message(tenant, resumed))

    @unary
    async def DeleteSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.DeleteSandboxRequest, context: Context
    ) -> pb.DeleteSandboxResponse:
        """Remove the sandbox of a thread and its files."""
        del context
        was, files = await self._tended.delete(tenant, _thread(request.thread))
        sandbox = None if was is None else self._message(tenant, was)
        return pb.DeleteSandboxResponse(sandbox=sandbox, files_removed=files)

    @unary
    async def GetSandboxStats(  # noqa: N802
        self, tenant: Tenant, request: pb.GetSandboxStatsRequest, context: Context
    ) -> pb.GetSandboxStatsResponse:
        """Return what the sandbox of a thread uses."""
        del context
        thread = _thread(request.thread)
        found = await self._usage.read(tenant.name, thread)
        if not found:
            raise await self._tended.missing(tenant, thread)
        return pb.GetSandboxStatsResponse(stats=stats_message(found[0]))

    @streaming
    async def WatchSandboxStats(  # noqa: N802
        self, tenant: Tenant, request: pb.WatchSandboxStatsRequest, context: Context
    ) -> AsyncIterator[pb.WatchSandboxStatsResponse]:
        """Stream what sandboxes use."""
        del context
        thread = _thread(request.thread) if request.HasField("thread") else None
        interval_ms = request.interval_ms or _INTERVAL_MS
        if interval_ms < _SHORTEST_MS:
            raise InvalidArgument(f"interval_ms: {_SHORTEST_MS} to 60,000 are expected; 0 means {_INTERVAL_MS:,}")
        if thread is not None and (await self._tended.get(tenant, thread)).state != "running":
            raise await self._tended.missing(tenant, thread)
        told = 0
        watched = self._usage.watch(tenant.name, thread, interval_s=interval_ms / 1000, readings=request.readings)
        async for found in watched:
            told += 1
            yield pb.WatchSandboxStatsResponse(stats=[stats_message(one) for one in found])
        if told != request.readings or not told:
            raise Unavailable("the gateway is shutting down: watch again when it is back")

    @unary
    async def ListSandboxTransitions(  # noqa: N802
        self, tenant: Tenant, request: pb.ListSandboxTransitionsRequest, context: Context
    ) -> pb.ListSandboxTransitionsResponse:
        """Tell what became of sandboxes, the newest first, a page at a time."""
        del context
        size = page_size(request.page_size)
        thread = _thread(request.thread) if request.HasField("thread") else None
        query = ("sandbox transitions", tenant.name, thread)
        after = place_of(request.page_token, *query)
        found = await self._history.page(
            tenant.name, thread=thread, before=None if after is None else after[0], limit=size + 1
        )
        shown, token = paged(found, size, lambda one: (one.id, ""), *query)
        told = [transition_message(one) for one in shown]
        return pb.ListSandboxTransitionsResponse(transitions=told, next_page_token=token)

    @streaming
    async def WatchSandboxTransitions(  # noqa: N802
        self, tenant: Tenant, request: pb.WatchSandboxTransitionsRequest, context: Context
    ) -> AsyncIterator[pb.WatchSandboxTransitionsResponse]:
        """Stream what becomes of sandboxes; it never ends well, for there is always more to come."""
        del context
        thread = _thread(request.thread) if request.HasField("thread") else None
        after = request.after_id if request.HasField("after_id") else None
        async for one in self._history.watch(tenant.name, thread=thread, after=after):
            told = None if one is None else transition_message(one)
            yield pb.WatchSandboxTransitionsResponse(transition=told)
        raise Unavailable("the gateway is shutting down: watch again, after the last id received, when it is back")

    def _message(self, tenant: Tenant, one: ListedSandbox) -> pb.Sandbox:
        calls = self._keeper.users(tenant.name, one.thread)
        return sandbox_message(one, calls, self._tended.ends_s(tenant, one))


def _thread(name: str) -> str:
    return name or "default"
