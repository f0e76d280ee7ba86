"""The services: each is listed once, with what makes it of the gateway's parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FileDescriptor
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
from gateway.serving.anonymous_calls import AnonymousStreams, BoundedHealth, BoundedReflection
from gateway.serving.edge import Authenticator
from gateway.serving.taking_server import TakingServer
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
    """What the services are made of."""

    on: Foundation
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


@dataclass(frozen=True)
class _Service:
    """A service: the file of its contract, what adds its servicer to a server, and what makes that."""

    contract: FileDescriptor
    add: Callable[[Any, Any], None]
    make: Callable[[Parts], object]


def _admin(parts: Parts) -> AdminService:
    on = parts.on
    tenants = TenantAdmin(on.config, on.policies, on.database, parts.erasure)
    administration = Administration(tenants, KeyStore(on.database), PolicyAdmin(on.config, on.policies))
    return AdminService(administration, parts.authenticate)


def _approval(parts: Parts) -> ApprovalService:
    return ApprovalService(parts.work.approvals, parts.authenticate)


def _audit(parts: Parts) -> AuditService:
    return AuditService(parts.audit, parts.authenticate)


def _process(parts: Parts) -> ProcessService:
    work = parts.work
    return ProcessService(work.tool_calls, parts.authenticate, RequestedPrograms(work.requests, work.tool_calls.late))


def _run(parts: Parts) -> RunService:
    requested = RequestedRuns(parts.work.runs, parts.work.requests)
    return RunService(parts.work.runs, parts.authenticate, requested=requested, listed=parts.listed)


def _sandbox(parts: Parts) -> SandboxService:
    engine, keeper = parts.sandboxes.engine, parts.sandboxes.keeper
    admin = SandboxAdmin(engine, keeper, parts.work.tool_calls, parts.listed)
    made = SandboxParts(engine, keeper, admin, parts.usage, parts.snapshots, parts.forks, parts.transitions)
    return SandboxService(made, parts.authenticate)


def _thread(parts: Parts) -> ThreadService:
    work = parts.work
    threads = Threads(parts.on.store, parts.listed, parts.erasure, work.tool_calls.forget_thread, work.quotas)
    return ThreadService(threads, parts.authenticate)


def _tool(parts: Parts) -> ToolService:
    return ToolService(parts.work.tool_calls, parts.authenticate, parts.work.requested_calls)


def _workspace(parts: Parts) -> WorkspaceService:
    return WorkspaceService(parts.work.tool_calls, parts.authenticate)


_SERVICES = (
    _Service(admin_service_pb2.DESCRIPTOR, admin_service_pb2_grpc.add_AdminServiceServicer_to_server, _admin),
    _Service(
        approval_service_pb2.DESCRIPTOR, approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server, _approval
    ),
    _Service(audit_service_pb2.DESCRIPTOR, audit_service_pb2_grpc.add_AuditServiceServicer_to_server, _audit),
    _Service(process_service_pb2.DESCRIPTOR, process_service_pb2_grpc.add_ProcessServiceServicer_to_server, _process),
    _Service(run_service_pb2.DESCRIPTOR, run_service_pb2_grpc.add_RunServiceServicer_to_server, _run),
    _Service(sandbox_service_pb2.DESCRIPTOR, sandbox_service_pb2_grpc.add_SandboxServiceServicer_to_server, _sandbox),
    _Service(thread_service_pb2.DESCRIPTOR, thread_service_pb2_grpc.add_ThreadServiceServicer_to_server, _thread),
    _Service(tool_service_pb2.DESCRIPTOR, tool_service_pb2_grpc.add_ToolServiceServicer_to_server, _tool),
    _Service(
        workspace_service_pb2.DESCRIPTOR, workspace_service_pb2_grpc.add_WorkspaceServiceServicer_to_server, _workspace
    ),
)
SERVICES = tuple(found.full_name for one in _SERVICES for found in one.contract.services_by_name.values())
"""The full names of Airlock's own services."""


def make_parts(on: Foundation, sandboxes: Sandboxes, work: Work) -> Parts:
    """Make what only services need."""
    engine = sandboxes.engine
    listed = ThreadStore(on.database)
    snapshots = work.snapshots
    erasure = Erasure(on.database, ErasureStore(on.database), TenantFiles(engine, snapshots))
    return Parts(
        on,
        sandboxes,
        work,
        erasure,
        listed,
        Audit(AuditReader(on.database), on.config.tenants),
        authentication(on.config.identity, on.config.path, on.database, on.tenants),
        SandboxUsage(engine, sandboxes.keeper),
        HistoryReader(TransitionStore(on.database), listed),
        snapshots,
        make_forks(on, sandboxes, snapshots, work.quotas),
    )


async def add_services(server: TakingServer, parts: Parts) -> BoundedHealth:
    """Have a server serve them all, with reflection, and with the service of health, which is returned."""
    for one in _SERVICES:
        one.add(one.make(parts), server)
    healthy = BoundedHealth(AnonymousStreams())
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", *SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(BoundedReflection(names), server)
    return healthy
