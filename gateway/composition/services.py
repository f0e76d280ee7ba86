"""Creates the services and adds them to a server."""

import sys
from dataclasses import dataclass

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gateway.audit.anchoring import Anchoring, to_command, to_file
from gateway.audit.audit import Audit
from gateway.audit_chain.anchor import private_key
from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import Sandboxes
from gateway.composition.work import TenantFiles, Work
from gateway.config.operation_settings import AnchorSettings
from gateway.data_lifecycle.erasure import Erasure
from gateway.data_lifecycle.tenant_admin import TenantAdmin
from gateway.identity.auth import authentication
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.runs.requested_runs import RequestedRuns
from gateway.runs.threads import Threads
from gateway.sandboxes.history import HistoryReader
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
from gateway.services.workspace_service import WorkspaceService
from gateway.serving.health import BoundedHealth, BoundedReflection
from gateway.serving.prefetching_server import PrefetchingServer
from gateway.snapshots.forks import Forks
from gateway.storage.audit_reader import AuditReader
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.key_store import KeyStore
from gateway.storage.restore_store import ForkStore
from gateway.storage.thread_store import ThreadStore
from gateway.storage.transition_store import TransitionStore
from gateway.support.clock import make_id
from gateway.tool_calls.requested_programs import RequestedPrograms

_SERVICERS = (
    *(AdminService, ApprovalService, AuditService, ProcessService, RunService),
    *(SandboxService, ThreadService, ToolService, WorkspaceService),
)
SERVICES = tuple(f"gateway.v1.{servicer.__name__}" for servicer in _SERVICERS)
"""The full names of Airlock's own services."""


@dataclass(frozen=True)
class Services:
    """The services on a server, their health, and the parts behind them that have work of their own or streams."""

    healthy: BoundedHealth
    audit: Audit
    usage: SandboxUsage
    transitions: HistoryReader
    forks: Forks


async def add_services(server: PrefetchingServer, base: Foundation, sandboxes: Sandboxes, work: Work) -> Services:
    """Add all services, reflection and the health service to a server."""
    database, engine, keeper, tool_calls = base.database, sandboxes.engine, sandboxes.keeper, work.tool_calls
    authenticate = authentication(base.config.identity, base.config.path, database, base.tenants)
    listed = ThreadStore(database)
    audit, usage = Audit(AuditReader(database), base.config.tenants), SandboxUsage(engine, keeper)
    transitions = HistoryReader(TransitionStore(database), listed)
    forks = Forks(engine, work.snapshots, ForkStore(database), quotas=work.quotas, ids=make_id)
    erasure = Erasure(database, ErasureStore(database), TenantFiles(engine, work.snapshots))
    tenants = TenantAdmin(base.config, base.policies, database, erasure)
    admin = SandboxAdmin(engine, keeper, tool_calls, listed)
    threads = Threads(base.store, listed, erasure, tool_calls.forget_thread, work.quotas)
    for servicer in (
        AdminService(tenants, KeyStore(database), PolicyAdmin(base.config, base.policies), authenticate),
        ApprovalService(work.approvals, authenticate),
        AuditService(audit, authenticate),
        ProcessService(tool_calls, authenticate, RequestedPrograms(work.requests, tool_calls.late)),
        RunService(work.runs, authenticate, RequestedRuns(work.runs, work.requests), listed),
        SandboxService(engine, keeper, admin, usage, work.snapshots, forks, transitions, authenticate),
        ThreadService(threads, authenticate),
        ToolService(tool_calls, authenticate, work.requested_calls),
        WorkspaceService(tool_calls, authenticate),
    ):
        generated = type(servicer).__mro__[1]
        getattr(sys.modules[generated.__module__], f"add_{generated.__name__}_to_server")(servicer, server)
    healthy = BoundedHealth()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", *SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(BoundedReflection(names), server)
    return Services(healthy, audit, usage, transitions, forks)


def make_anchoring(base: Foundation, settings: AnchorSettings) -> Anchoring:
    """Return the configured anchoring; Misconfigured if the key is invalid."""
    key = private_key(base.config.path(settings.key_file))
    put = to_file(base.config.path(settings.file)) if settings.file is not None else to_command(settings.command or ())
    return Anchoring(AuditReader(base.database), key, put)
