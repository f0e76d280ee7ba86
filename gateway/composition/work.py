"""Builds tool calls, runs, approvals, and this process' lease on the runs that it hosts."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.approvals.approvals import Approvals
from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.data_lifecycle.erasure import remove_files
from gateway.errors import AirlockError
from gateway.runs.agent_run import RunParts
from gateway.runs.lease import Lease
from gateway.runs.runs import Runs
from gateway.runs.waiting_runs import WaitingRuns
from gateway.serving.edge import ADMISSION
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.engine_store import EngineStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.request_store import RequestStore
from gateway.storage.restore_store import RestoreStore
from gateway.storage.snapshot_store import SnapshotStore
from gateway.storage.thread_store import ThreadStore
from gateway.storage.waiting_store import LeaseStore, WaitingStore
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.thread_engines import ThreadEngines
from gateway.tool_calls.tool_calls import ToolCalls
from sandbox.engines.engine import Engine
from sandbox.errors import WorkspaceIncomplete


class TenantFiles:
    """Removes the files of tenants: workspaces on the engine, and snapshots."""

    def __init__(self, engine: Engine, snapshots: Snapshots) -> None:
        self.engine_id = engine.id
        self._engine = engine
        self._snapshots = snapshots

    async def remove(self, tenant: str, thread: str) -> bool:
        """Remove the workspace and the snapshots of a thread; return whether there was a workspace."""
        existed = await remove_files(self._engine, tenant, thread)
        try:
            await self._snapshots.forget_thread(tenant, thread)
        except AirlockError as error:
            if existed:
                raise WorkspaceIncomplete(str(error)) from error
            raise
        return existed

    async def remove_rest(self, tenant: str) -> int:
        """Remove everything else of a tenant; return the number of workspaces."""
        await self._snapshots.erase(tenant)
        return await self._engine.remove_all_of(tenant)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        return {**await self._engine.left_of(tenant), **await self._snapshots.left_of(tenant)}


@dataclass(frozen=True)
class Work:
    """The operations behind the services."""

    quotas: Quotas
    tool_calls: ToolCalls
    requests: RequestStore
    requested_calls: RequestedCalls
    runs: Runs
    approvals: Approvals
    snapshots: Snapshots


def make_lease(base: Foundation, sandboxes: Sandboxes, listen: str) -> Lease:
    """Return this process' lease, not taken yet."""
    return Lease(
        LeaseStore(base.database),
        base.process_id,
        lease_s=base.config.recovery.lease_s,
        engine=sandboxes.engine_id or "",
        channels=str(base.config.resolved_channel_dir()),
        address=listen,
    )


def start_work(stack: AsyncExitStack, base: Foundation, sandboxes: Sandboxes, lease: Lease) -> Work:
    """Start tool calls and runs. If the lease is lost, all runs are abandoned."""
    asked = ApprovalStore(base.database)
    quotas = Quotas(QuotaStore(base.database, base.process_id))
    engines = ThreadEngines(EngineStore(base.database), sandboxes.engine)
    tool_calls = ToolCalls(
        base.store, sandboxes.leases, approvals=asked, quotas=quotas, telemetry=base.telemetry, engines=engines
    )
    unhosted = WaitingStore(base.database, gateway=base.process_id, engine=sandboxes.engine_id)
    waiting = WaitingRuns(unhosted, asked, base.tenants, takes_over=True)
    directory = base.config.resolved_snapshots_dir() / base.instance
    stores = SnapshotStore(base.database), RestoreStore(base.database), base.store, ThreadStore(base.database)
    snapshots = Snapshots(directory, sandboxes.engine, engines, *stores)
    runs = Runs(
        RunParts(
            base.store,
            tool_calls,
            waiting,
            quotas,
            base.config.runs.on_stop,
            telemetry=base.telemetry,
            end_calls=sandboxes.engine.end_calls,
            lease_over=lease.over,
            keep_files=snapshots.keep_step,
        )
    )
    lease.lost = runs.abandon_all
    requests = RequestStore(base.database)
    requested = RequestedCalls(tool_calls, requests, lingering=ADMISSION.lingering)
    stack.push_async_callback(requested.close)
    approvals = Approvals(asked, tool_calls.prepare, lambda _: waiting.look())
    return Work(quotas, tool_calls, requests, requested, runs, approvals, snapshots)
