"""RunService over gateway.runs.runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.errors import InvalidArgument
from gateway.identity.call_credentials import Context
from gateway.runs.requested_runs import RequestedRuns
from gateway.runs.runs import PolicyMode, RunRequest, Runs
from gateway.services.timestamps import timestamp
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.storage.entities import Run
from gateway.storage.thread_store import ThreadStore
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import run_service_pb2 as pb
from gateway.v1 import run_service_pb2_grpc as grpc_pb

_STATUS = {
    "running": pb.RUN_STATUS_RUNNING,
    "completed": pb.RUN_STATUS_COMPLETED,
    "stopped": pb.RUN_STATUS_STOPPED,
    "cancelled": pb.RUN_STATUS_CANCELLED,
    "failed": pb.RUN_STATUS_FAILED,
    "waiting": pb.RUN_STATUS_WAITING,
}
_STATUS_NAMES = {number: name for name, number in _STATUS.items()}
_MODES: dict[int, PolicyMode] = {
    pb.POLICY_MODE_UNSPECIFIED: "pin",
    pb.POLICY_MODE_PIN: "pin",
    pb.POLICY_MODE_FOLLOW: "follow",
}


class RunService(grpc_pb.RunServiceServicer):
    """Starts and follows runs."""

    scope = "run"
    frees = ("CancelRun",)

    def __init__(
        self,
        runs: Runs,
        authenticate: Authenticator,
        *,
        requested: RequestedRuns,
        listed: ThreadStore,
    ) -> None:
        self._runs = runs
        self._requested = requested
        self._listed = listed
        self.authenticate = authenticate

    @unary
    async def StartRun(  # noqa: N802
        self, tenant: Tenant, request: pb.StartRunRequest, context: Context
    ) -> pb.StartRunResponse:
        """Start a run and return at once."""
        del context
        mode = _MODES.get(request.policy_mode)
        if mode is None:
            raise InvalidArgument("policy_mode: PIN or FOLLOW; not set means PIN")
        asked = RunRequest(request.task, request.thread, request.agent or "default", mode, request.request_id)
        return pb.StartRunResponse(run=_run(await self._requested.start(tenant, asked)))

    @streaming
    async def WatchRun(  # noqa: N802
        self, tenant: Tenant, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Stream a run's events."""
        del context
        async for event in self._runs.watch(tenant, request.run_id, request.from_sequence):
            yield pb.WatchRunResponse(
                event=pb.Event(
                    sequence=event.sequence, type=event.type, at=timestamp(event.at_us), payload_json=event.payload
                )
            )

    @unary
    async def GetRun(self, tenant: Tenant, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:  # noqa: N802
        """Return a run."""
        del context
        return pb.GetRunResponse(run=_run(await self._runs.get(tenant, request.run_id)))

    @unary
    async def ListRuns(self, tenant: Tenant, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:  # noqa: N802
        """List runs, a page at a time."""
        del context
        statuses = sorted({_STATUS_NAMES[status] for status in request.statuses if status in _STATUS_NAMES})
        since_us = request.started_since.ToMicroseconds() if request.HasField("started_since") else None
        until_us = request.started_until.ToMicroseconds() if request.HasField("started_until") else None
        query = ("runs", request.thread, statuses, request.agent, since_us, until_us, request.started_by)
        size = page_size(request.page_size)
        found = await self._listed.runs(
            tenant.name,
            thread=request.thread,
            statuses=statuses,
            agent=request.agent,
            started_by=request.started_by,
            since_us=since_us,
            until_us=until_us,
            before=place_of(request.page_token, *query),
            limit=size + 1,
        )
        shown, token = paged(found, size, lambda run: (run.started_us, run.id), *query)
        return pb.ListRunsResponse(runs=[_run(run) for run in shown], next_page_token=token)

    @unary
    async def CancelRun(  # noqa: N802
        self, tenant: Tenant, request: pb.CancelRunRequest, context: Context
    ) -> pb.CancelRunResponse:
        """Stop a run."""
        del context
        return pb.CancelRunResponse(run=_run(await self._runs.cancel(tenant, request.run_id)))


def _run(run: Run) -> pb.Run:
    return pb.Run(
        id=run.id,
        thread=run.thread,
        agent=run.agent,
        status=_STATUS[run.status],
        stop=None
        if run.stop_hook is None
        else pb.Stop(hook=run.stop_hook, rule=run.stop_rule or "", reason=run.stop_reason or ""),
        started_at=timestamp(run.started_us),
        finished_at=None if run.finished_us is None else timestamp(run.finished_us),
        last_sequence=run.last_sequence,
        task=run.task,
        policy_mode=pb.POLICY_MODE_FOLLOW if run.policy_mode == "follow" else pb.POLICY_MODE_PIN,
        policy_version=run.policy_version,
        started_by=run.started_by,
    )
