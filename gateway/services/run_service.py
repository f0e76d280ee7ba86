"""RunService over gateway.runs."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from airlock.v1 import run_service_pb2 as pb
from gateway.errors import InvalidArgument
from gateway.runs.runs import RunRequest, Runs
from gateway.services.messages import message, microseconds, name_of
from gateway.services.usage_service import run_usage
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.storage.entities import Run
from gateway.storage.thread_store import RunFilter, ThreadStore
from gateway.storage.usage_store import RunUse, UsageStore
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import run_service_pb2_grpc as grpc_pb


@dataclass(eq=False)
class RunService(grpc_pb.RunServiceServicer):
    """Starts and watches runs."""

    scope = "run"
    frees = ("CancelRun",)

    runs: Runs
    authenticate: Authenticator
    listed: ThreadStore
    usage: UsageStore

    @unary
    async def StartRun(self, tenant: Tenant, request: pb.StartRunRequest) -> pb.StartRunResponse:
        mode = name_of(pb.PolicyMode, request.policy_mode)
        if request.policy_mode and not mode:
            raise InvalidArgument("policy_mode: PIN or FOLLOW; not set means PIN")
        asked = RunRequest(
            request.task,
            request.thread,
            request.agent or "default",
            mode or "pin",
            request.request_id,
            tuple(request.attachments),
        )
        return pb.StartRunResponse(run=await self._run(await self.runs.start(tenant, asked)))

    @streaming
    async def WatchRun(self, tenant: Tenant, request: pb.WatchRunRequest) -> AsyncIterator[pb.WatchRunResponse]:
        async for event in self.runs.watch(tenant, request.run_id, request.from_sequence):
            yield pb.WatchRunResponse(event=message(pb.Event, event, payload_json=event.payload))

    @unary
    async def GetRun(self, tenant: Tenant, request: pb.GetRunRequest) -> pb.GetRunResponse:
        return pb.GetRunResponse(run=await self._run(await self.runs.get(tenant, request.run_id)))

    @unary
    async def ListRuns(self, tenant: Tenant, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        statuses = sorted({name for status in request.statuses if (name := name_of(pb.RunStatus, status))})
        since_us = microseconds(request, "started_since")
        until_us = microseconds(request, "started_until")
        query = ("runs", request.thread, statuses, request.agent, since_us, until_us, request.started_by)
        size = page_size(request.page_size)
        wanted = RunFilter(request.thread, tuple(statuses), request.agent, request.started_by, since_us, until_us)
        before = place_of(request.page_token, *query)
        found = await self.listed.runs(tenant.name, wanted, before=before, limit=size + 1)
        shown, token = paged(found, size, lambda run: (run.started_us, run.id), *query)
        uses = await self.usage.of_runs([run.id for run in shown])
        return pb.ListRunsResponse(runs=[_run(run, uses[run.id]) for run in shown], next_page_token=token)

    @unary
    async def CancelRun(self, tenant: Tenant, request: pb.CancelRunRequest) -> pb.CancelRunResponse:
        return pb.CancelRunResponse(run=await self._run(await self.runs.cancel(tenant, request.run_id)))

    async def _run(self, run: Run) -> pb.Run:
        # Nothing is charged to a run that has not begun.
        uses = await self.usage.of_runs([run.id]) if run.steps else {}
        return _run(run, uses.get(run.id, ()))


def _run(run: Run, uses: Sequence[RunUse]) -> pb.Run:
    stop = None
    if run.stop_hook is not None:
        stop = pb.Stop(hook=run.stop_hook, rule=run.stop_rule or "", reason=run.stop_reason or "")
    return message(pb.Run, run, stop=stop, **run_usage(uses))
