"""Creates the services and adds them to a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gateway.audit.audit import Audit
from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.composition.snapshot_wiring import TenantFiles, make_forks
from gateway.composition.work import Work
from gateway.data_lifecycle.erasure import Erasure
from gateway.identity.auth import authentication
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.runs.requested_runs import RequestedRuns
from gateway.runs.threads import Threads
from gateway.sandboxes.history_reader import HistoryReader
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.sandboxes.sandbox_usage import SandboxUsage
from gateway.services.admin_service import Administration, AdminService
from gateway.services.approval_service import ApprovalService
from gateway.services.audit_service import AuditService
from gateway.services.process_service import ProcessService
from gateway.services.run_service import RunService
from gateway.services.sandbox_service import SandboxParts, SandboxService
from gateway.services.thread_service import ThreadService
from gateway.services.tool_service import ToolService
from gateway.services.workspace_service import WorkspaceService
from gateway.serving.anonymous_calls import BoundedHealth, BoundedReflection
from gateway.serving.edge import Authenticator
from gateway.serving.prefetching_server import PrefetchingServer
from gateway.snapshots.forks import Forks
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.audit_reader import AuditReader
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.key_store import KeyStore
from gateway.storage.thread_store import ThreadStore
from gateway.storage.transition_store import TransitionStore
from gateway.tenancy.tenant_admin import TenantAdmin
from gateway.tool_calls.requested_programs import RequestedPrograms
from gateway.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    approval_service_pb2,
    approval_service_pb2_grpc,
    audit_service_pb2,
    audit_service_pb2_grpc,
    process_service_pb2,
    process_service_pb2_grpc,
    run_service_pb2,
    run_service_pb2_grpc,
    sandbox_service_pb2,
    sandbox_service_pb2_grpc,
    thread_service_pb2,
    thread_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
    workspace_service_pb2,
    workspace_service_pb2_grpc,
)


@dataclass(frozen=True)
class Parts:
    """What the services need."""

    base: Foundation
    sandboxes: Sandboxes
    work: Work
    erasure: Erasure
    listed: ThreadStore
    audit: Audit
    authenticate: Authenticator
    usage: SandboxUsage
    transitions: HistoryReader
    snapshots: Snapshots
    forks: Forks


def _servicers(parts: Parts) -> list[tuple[Callable[[Any, PrefetchingServer], None], object]]:
    """Return each servicer with the function that adds it to a server."""
    base, work, authenticate = parts.base, parts.work, parts.authenticate
    tool_calls, engine, keeper = work.tool_calls, parts.sandboxes.engine, parts.sandboxes.keeper
    tenants = TenantAdmin(base.config, base.policies, base.database, parts.erasure)
    administration = Administration(tenants, KeyStore(base.database), PolicyAdmin(base.config, base.policies))
    programs = RequestedPrograms(work.requests, tool_calls.late)
    runs = RunService(work.runs, authenticate, requested=RequestedRuns(work.runs, work.requests), listed=parts.listed)
    admin = SandboxAdmin(engine, keeper, tool_calls, parts.listed)
    made = SandboxParts(engine, keeper, admin, parts.usage, parts.snapshots, parts.forks, parts.transitions)
    threads = Threads(base.store, parts.listed, parts.erasure, tool_calls.forget_thread, work.quotas)
    tools = ToolService(tool_calls, authenticate, work.requested_calls)
    return [
        (admin_service_pb2_grpc.add_AdminServiceServicer_to_server, AdminService(administration, authenticate)),
        (
            approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server,
            ApprovalService(work.approvals, authenticate),
        ),
        (audit_service_pb2_grpc.add_AuditServiceServicer_to_server, AuditService(parts.audit, authenticate)),
        (
            process_service_pb2_grpc.add_ProcessServiceServicer_to_server,
            ProcessService(tool_calls, authenticate, programs),
        ),
        (run_service_pb2_grpc.add_RunServiceServicer_to_server, runs),
        (sandbox_service_pb2_grpc.add_SandboxServiceServicer_to_server, SandboxService(made, authenticate)),
        (thread_service_pb2_grpc.add_ThreadServiceServicer_to_server, ThreadService(threads, authenticate)),
        (tool_service_pb2_grpc.add_ToolServiceServicer_to_server, tools),
        (workspace_service_pb2_grpc.add_WorkspaceServiceServicer_to_server, WorkspaceService(tool_calls, authenticate)),
    ]


_CONTRACTS = (
    admin_service_pb2,
    approval_service_pb2,
    audit_service_pb2,
    process_service_pb2,
    run_service_pb2,
    sandbox_service_pb2,
    thread_service_pb2,
    tool_service_pb2,
    workspace_service_pb2,
)
SERVICES = tuple(
    service.full_name for contract in _CONTRACTS for service in contract.DESCRIPTOR.services_by_name.values()
)
"""The full names of Airlock's own services."""


def make_parts(base: Foundation, sandboxes: Sandboxes, work: Work) -> Parts:
    """Create what only services need."""
    engine = sandboxes.engine
    listed = ThreadStore(base.database)
    snapshots = work.snapshots
    erasure = Erasure(base.database, ErasureStore(base.database), TenantFiles(engine, snapshots))
    return Parts(
        base,
        sandboxes,
        work,
        erasure,
        listed,
        Audit(AuditReader(base.database), base.config.tenants),
        authentication(base.config.identity, base.config.path, base.database, base.tenants),
        SandboxUsage(engine, sandboxes.keeper),
        HistoryReader(TransitionStore(base.database), listed),
        snapshots,
        make_forks(base, sandboxes, snapshots, work.quotas),
    )


async def add_services(server: PrefetchingServer, parts: Parts) -> BoundedHealth:
    """Add all services, reflection and the health service, which is returned, to a server."""
    for add, servicer in _servicers(parts):
        add(servicer, server)
    healthy = BoundedHealth()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", *SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(BoundedReflection(names), server)
    return healthy
