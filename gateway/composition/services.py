"""Builds tool calls, runs, this process' lease on the runs that it hosts, and the services on a server."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gateway.approvals.approvals import Approvals
from gateway.audit.audit import Audit
from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.config.operation_settings import AnchorSettings
from gateway.data_lifecycle.erasure import Erasure, TenantAdmin, remove_files
from gateway.errors import AirlockError
from gateway.identity.auth import Authentication, authentication
from gateway.mcp_servers.pins import PinAdmin
from gateway.mcp_servers.servers import McpServers
from gateway.network.door import Doors
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.runs.hosting import RunParts
from gateway.runs.lease import Lease
from gateway.runs.runs import Runs
from gateway.runs.threads import Threads
from gateway.runs.waiting_runs import WaitingRuns
from gateway.sandboxes.history import HistoryReader
from gateway.sandboxes.port_forwarding import PortForwarding
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.sandboxes.sandbox_usage import SandboxUsage
from gateway.services.admin_service import AdminService
from gateway.services.approval_service import ApprovalService
from gateway.services.audit_service import AuditService
from gateway.services.process_service import ProcessService
from gateway.services.run_service import RunService
from gateway.services.sandbox_service import SandboxService
from gateway.services.thread_service import ThreadService
from gateway.services.tool_service import ToolService
from gateway.services.usage_service import UsageService
from gateway.services.workspace_service import WorkspaceService
from gateway.serving.edge import ADMISSION
from gateway.serving.health import BoundedHealth, BoundedReflection
from gateway.serving.prefetching_server import PrefetchingServer
from gateway.snapshots.forks import Forks
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.audit_reader import AuditReader
from gateway.storage.engine_store import EngineStore
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.key_store import KeyStore
from gateway.storage.mcp_pin_store import McpPinStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.snapshot_store import ForkStore, RestoreStore, SnapshotStore
from gateway.storage.thread_store import ThreadStore
from gateway.storage.transition_store import TransitionStore
from gateway.storage.usage_store import UsageStore
from gateway.storage.waiting_store import LeaseStore, WaitingStore
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.requested_calls import RequestedCalls, RequestedPrograms
from gateway.tool_calls.thread_sandbox import ThreadEngines
from gateway.tool_calls.tool_calls import ToolCalls
from sandbox.engines.engine import Engine
from sandbox.errors import WorkspaceIncomplete

if TYPE_CHECKING:
    from gateway.audit.anchoring import Anchoring

_SERVICERS = (
    *(AdminService, ApprovalService, AuditService, ProcessService, RunService),
    *(SandboxService, ThreadService, ToolService, UsageService, WorkspaceService),
)
SERVICES = tuple(f"gateway.v1.{servicer.__name__}" for servicer in _SERVICERS)
"""The full names of Airlock's own services."""


def service_files() -> Sequence[FileDescriptor]:
    """Return the protos of Airlock's own services."""
    names = [servicer.__mro__[1].__module__.rpartition(".")[2].removesuffix("_grpc") for servicer in _SERVICERS]
    return [sys.modules[f"airlock.v1.{name}"].DESCRIPTOR for name in names]


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


def start_work(stack: AsyncExitStack, base: Foundation, sandboxes: Sandboxes, lease: Lease, doors: Doors) -> Work:
    """Start tool calls and runs. If the lease is lost, all runs are abandoned."""
    asked = ApprovalStore(base.database)
    quotas = Quotas(QuotaStore(base.database, base.process_id))
    engines = ThreadEngines(EngineStore(base.database), sandboxes.engine)
    tool_calls = ToolCalls(
        base.store,
        sandboxes.leases,
        approvals=asked,
        quotas=quotas,
        heavy_work=base.heavy_work,
        telemetry=base.telemetry,
        engines=engines,
        doors=doors,
        at_hand=sandboxes.keeper.at_hand,
    )
    unhosted = WaitingStore(base.database, gateway=base.process_id, engine=sandboxes.engine_id)
    servers = McpServers(tool_calls, McpPinStore(base.database), doors)
    tool_calls.server_tools = servers
    stack.push_async_callback(servers.close)
    waiting = WaitingRuns(unhosted, asked, base.tenants, takes_over=True)
    stores = SnapshotStore(base.database), RestoreStore(base.database), base.store, ThreadStore(base.database)
    snapshots = Snapshots(sandboxes.snapshots, sandboxes.engine, engines, *stores, copies=sandboxes.copies)
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
            server_tools=servers.of_run,
        )
    )
    lease.lost = runs.abandon_all
    requested = RequestedCalls(tool_calls, base.store, lingering=ADMISSION.lingering)
    stack.push_async_callback(requested.close)
    approvals = Approvals(asked, tool_calls.prepare, lambda _: waiting.look(), base.heavy_work.of)
    return Work(quotas, tool_calls, requested, runs, approvals, snapshots)


@dataclass(frozen=True)
class Services:
    """The services on a server, their health, and the parts behind them that have work of their own or streams."""

    healthy: BoundedHealth
    authenticate: Authentication
    audit: Audit
    usage: SandboxUsage
    transitions: HistoryReader
    forwarding: PortForwarding
    forks: Forks
    admin: SandboxAdmin
    threads: Threads


async def add_services(
    servers: Sequence[Any], server: PrefetchingServer, base: Foundation, sandboxes: Sandboxes, work: Work
) -> Services:
    """Add all services to each of `servers`, and reflection and the health service to `server`."""
    database, engine, keeper, tool_calls = base.database, sandboxes.engine, sandboxes.keeper, work.tool_calls
    authenticate = authentication(base.config.identity, base.config.path, database, base.tenants)
    listed = ThreadStore(database)
    audit, usage = Audit(AuditReader(database), base.config.tenants), SandboxUsage(engine, keeper)
    transitions = HistoryReader(TransitionStore(database), listed)
    forks = Forks(engine, work.snapshots, ForkStore(database), quotas=work.quotas)
    erasure = Erasure(database, ErasureStore(database), TenantFiles(engine, work.snapshots))
    tenants = TenantAdmin(base.config, base.policies, database, erasure)
    pins = PinAdmin(base.config, McpPinStore(database))
    admin = SandboxAdmin(engine, keeper, tool_calls, listed)
    forwarding = PortForwarding(sandboxes.leases, admin, tool_calls)
    threads = Threads(base.store, listed, erasure, tool_calls.forget_thread, work.quotas, base.heavy_work.of)
    for servicer in (
        AdminService(tenants, KeyStore(database), PolicyAdmin(base.config, base.policies), pins, authenticate),
        ApprovalService(work.approvals, authenticate),
        AuditService(audit, authenticate),
        ProcessService(tool_calls, authenticate, RequestedPrograms(base.store, tool_calls.late)),
        RunService(work.runs, authenticate, listed, UsageStore(database)),
        SandboxService(engine, keeper, admin, usage, work.snapshots, forks, transitions, forwarding, authenticate),
        ThreadService(threads, authenticate),
        ToolService(tool_calls, authenticate, work.requested_calls),
        UsageService(UsageStore(database), base.config.tenants, authenticate),
        WorkspaceService(tool_calls, authenticate),
    ):
        generated = type(servicer).__mro__[1]
        add = getattr(sys.modules[generated.__module__], f"add_{generated.__name__}_to_server")
        for one in servers:
            add(servicer, one)
    healthy = BoundedHealth()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", *SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(BoundedReflection(names), server)
    return Services(healthy, authenticate, audit, usage, transitions, forwarding, forks, admin, threads)


def make_anchoring(base: Foundation, settings: AnchorSettings) -> "Anchoring":
    """Return the configured anchoring; Misconfigured if the key is invalid."""
    # The signatures need cryptography, and most gateways have no anchor.
    from gateway.audit.anchoring import Anchoring, to_command, to_file  # noqa: PLC0415 - as above
    from gateway.audit_chain.anchor import private_key  # noqa: PLC0415 - as above

    key = private_key(base.config.path(settings.key_file))
    put = to_file(base.config.path(settings.file)) if settings.file is not None else to_command(settings.command or ())
    return Anchoring(AuditReader(base.database), key, put)
