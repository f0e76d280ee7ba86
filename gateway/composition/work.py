"""The work: tool calls and runs, this process' lease on the runs that it hosts, and who is asked about them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.approvals.approvals import Approvals
from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.composition.snapshot_wiring import make_snapshots
from gateway.runs.lease import Lease
from gateway.runs.run_parts import RunParts
from gateway.runs.runs import Runs
from gateway.runs.waiting_runs import WaitingRuns
from gateway.serving.edge import ADMISSION
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.engine_store import EngineStore
from gateway.storage.lease_store import LeaseStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.request_store import RequestStore
from gateway.storage.waiting_store import WaitingStore
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.thread_engines import ThreadEngines
from gateway.tool_calls.tool_calls import ToolCalls


@dataclass(frozen=True)
class Work:
    """What callers ask for, and answer."""

    quotas: Quotas
    tool_calls: ToolCalls
    requests: RequestStore
    requested_calls: RequestedCalls
    runs: Runs
    approvals: Approvals
    snapshots: Snapshots


def make_lease(on: Foundation, sandboxes: Sandboxes, listen: str) -> Lease:
    """Return this process' lease, not held yet."""
    return Lease(
        LeaseStore(on.database),
        on.process_id,
        lease_s=on.config.recovery.lease_s,
        engine=sandboxes.engine_id or "",
        channels=str(on.config.resolved_channel_dir()),
        address=listen,
    )


def begin_work(stack: AsyncExitStack, on: Foundation, sandboxes: Sandboxes, lease: Lease) -> Work:
    """Lay the way of tool calls and host runs. The lease is held; what it is lost with is abandoned."""
    asked = ApprovalStore(on.database)
    quotas = Quotas(QuotaStore(on.database, on.process_id))
    tool_calls = ToolCalls(
        on.store,
        sandboxes.leases,
        approvals=asked,
        quotas=quotas,
        telemetry=on.telemetry,
        engines=ThreadEngines(EngineStore(on.database), sandboxes.engine),
    )
    unhosted = WaitingStore(on.database, gateway=on.process_id, engine=sandboxes.engine_id)
    waiting = WaitingRuns(unhosted, asked, on.tenants, takes_over=True)
    snapshots = make_snapshots(on, sandboxes)
    runs = Runs(
        RunParts(
            on.store,
            tool_calls,
            waiting,
            quotas,
            on.config.runs.on_stop,
            telemetry=on.telemetry,
            end_calls=sandboxes.engine.end_calls,
            lease_over=lease.over,
            keep_files=snapshots.keep_step,
        )
    )
    lease.lost = runs.abandon_all
    requests = RequestStore(on.database)
    requested = RequestedCalls(tool_calls, requests, lingering=ADMISSION.lingering)
    stack.push_async_callback(requested.close)
    approvals = Approvals(asked, tool_calls.normalised, lambda _: waiting.look())
    return Work(quotas, tool_calls, requests, requested, runs, approvals, snapshots)
