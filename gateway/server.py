"""The composition: every part of a gateway, put together in one place and taken apart in the reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gateway.approvals import Approvals
from gateway.audit.audit import Audit
from gateway.calls.requested_calls import RequestedCalls
from gateway.calls.thread_engines import ThreadEngines
from gateway.calls.tool_calls import ToolCalls
from gateway.clock import make_id
from gateway.config import Config
from gateway.erasure import Erasure, remove_files_of
from gateway.identity.auth import authentication
from gateway.policies import Policies
from gateway.policy_admin import PolicyAdmin
from gateway.policy_files import PolicyFiles
from gateway.quotas import Quotas
from gateway.retention import Retention
from gateway.runs.lease import Lease
from gateway.runs.requested_runs import RequestedRuns
from gateway.runs.runs import Runs
from gateway.runs.waiting_runs import WaitingRuns
from gateway.services.admin_service import Administration, AdminService
from gateway.services.approval_service import ApprovalService
from gateway.services.audit_service import AuditService
from gateway.services.process_service import ProcessService
from gateway.services.run_service import RunService
from gateway.services.sandbox_service import SandboxService
from gateway.services.thread_service import ThreadService
from gateway.services.tool_service import ToolService
from gateway.services.workspace_service import WorkspaceService
from gateway.serving.anonymous_calls import AnonymousStreams, BoundedHealth, BoundedReflection
from gateway.serving.arrivals import Arrivals
from gateway.serving.cautions import refuse_known_keys
from gateway.serving.edge import ADMISSION, Authenticator
from gateway.serving.health import Health, needs_of
from gateway.serving.instance import shared_instance
from gateway.serving.listening import CONCURRENT_RPCS, bind, server_options, without_registered_methods
from gateway.serving.state_lock import held_slot, locked_state
from gateway.serving.worker import Worker
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.audit_reader import AuditReader
from gateway.storage.database import Database
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.key_store import KeyStore
from gateway.storage.lease_store import LeaseStore
from gateway.storage.policy_store import PolicyStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.request_store import RequestStore
from gateway.storage.retention_store import RetentionStore
from gateway.storage.store import Store
from gateway.storage.thread_store import ThreadStore
from gateway.storage.waiting_store import WaitingStore
from gateway.telemetry.admission import observe_admission
from gateway.telemetry.observed_sandboxes import observed_engine, observed_keeper
from gateway.telemetry.opening import opened
from gateway.telemetry.rpc import RpcInterceptor
from gateway.telemetry.waiting import counted
from gateway.tenant_admin import TenantAdmin
from gateway.tenants import Tenants
from gateway.threads import Threads
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
from sandbox.docker_engine import DockerEngine
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.sandbox_keeper import SandboxKeeper

log = structlog.get_logger(__name__)
_ALONE = Worker()
SERVICES = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in (
        (admin_service_pb2, "AdminService"),
        (approval_service_pb2, "ApprovalService"),
        (audit_service_pb2, "AuditService"),
        (process_service_pb2, "ProcessService"),
        (run_service_pb2, "RunService"),
        (sandbox_service_pb2, "SandboxService"),
        (thread_service_pb2, "ThreadService"),
        (tool_service_pb2, "ToolService"),
        (workspace_service_pb2, "WorkspaceService"),
    )
)


@dataclass(frozen=True)
class Gateway:
    """A gateway that answers at `address`, and is scraped at `metrics`."""

    address: str
    metrics: str | None
    store: Store
    tenants: Tenants
    policies: Policies


@contextlib.asynccontextmanager
async def running_gateway(config: Config, listen: str, worker: Worker = _ALONE) -> AsyncIterator[Gateway]:
    """Run a gateway until the block ends; then runs are cancelled, sandboxes removed, events stored.

    A supervised worker shares `listen` with others, and its parent holds the state directory.
    """
    state_dir = config.path(config.state_dir)
    async with contextlib.AsyncExitStack() as stack:
        if not worker.supervised:
            stack.enter_context(locked_state(state_dir))
        slot = stack.enter_context(held_slot(state_dir, worker))
        process_id = make_id("gw")
        database = await Database.open(config.resolved_database_url())
        stack.push_async_callback(database.close)
        telemetry = await stack.enter_async_context(opened(config.telemetry, process=process_id, worker=worker.index))
        await stack.enter_async_context(counted(telemetry, database))
        await refuse_known_keys(database)
        instance = await shared_instance(database, state_dir)
        policies = await stack.enter_async_context(_policies(config, database))
        tenants = Tenants(config, policies)
        store = Store(database, gateway=process_id)
        docker = DockerEngine(
            instance=instance,
            channel_root=config.resolved_channel_dir(),
            runtime_image=config.sandbox.runtime_image,
            base_url=config.sandbox.engine_url,
        )
        engine: Engine = docker
        keeps = config.sandbox.on_stop == "keep"
        stack.push_async_callback(engine.close, keep_sandboxes=keeps)
        left = await engine.reconcile()
        keeper = SandboxKeeper(
            observed_engine(engine, telemetry),
            idle_timeout_s=config.sandbox.idle_timeout_s,
            max_live=config.sandbox.max_live,
            max_live_per_tenant=config.sandbox.max_live_per_tenant,
        )
        stack.push_async_callback(
            keeper.close, keep_sandboxes=keeps, remove_workspaces=not config.sandbox.keep_workspaces
        )
        await keeper.adopt(left)
        await _say_what_sandboxes_lack(engine)
        asked = ApprovalStore(database)
        engine_id = await _engine_id(engine)
        lease = Lease(
            LeaseStore(database),
            process_id,
            lease_s=config.recovery.lease_s,
            engine=engine_id or "",
            channels=str(config.resolved_channel_dir()),
            address=listen,
        )
        await stack.enter_async_context(lease.held(slot.predecessors))
        slot.record(process_id)
        quotas = Quotas(QuotaStore(database, process_id))
        keeper = observed_keeper(keeper, telemetry)
        engines = ThreadEngines(database, engine)
        tool_calls = ToolCalls(store, keeper, approvals=asked, quotas=quotas, telemetry=telemetry, engines=engines)
        unhosted = WaitingStore(database, gateway=process_id, engine=engine_id)
        waiting = WaitingRuns(unhosted, asked, tenants, takes_over=True)
        runs = Runs(
            store,
            tool_calls,
            waiting=waiting,
            quotas=quotas,
            telemetry=telemetry,
            on_stop=config.runs.on_stop,
            end_calls=engine.end_calls,
            lease_over=lease.over,
        )
        lease.lost = runs.abandon_all
        requests = RequestStore(database)
        requested = RequestedCalls(tool_calls, requests, lingering=ADMISSION.lingering)
        listed = ThreadStore(database)
        stack.push_async_callback(requested.close)
        approvals = Approvals(asked, tool_calls.normalised, lambda _: waiting.look())
        ADMISSION.configure(config.admission)
        await stack.enter_async_context(ADMISSION.heeding_load())
        observe_admission(telemetry, ADMISSION)
        server = grpc.aio.server(
            interceptors=(Arrivals(), *((RpcInterceptor(telemetry),) if telemetry.on else ())),
            options=server_options(shared=worker.supervised),
            maximum_concurrent_rpcs=CONCURRENT_RPCS,
        )
        without_registered_methods(server)
        erasure = Erasure(database, ErasureStore(database), remove_files_of(engine), engine.id, left_of=engine.left_of)
        authenticate = authentication(config, database, tenants)
        healthy = await _add_services(
            server,
            runs,
            tool_calls,
            approvals,
            authenticate,
            requested_runs=RequestedRuns(runs, requests),
            requested_calls=requested,
            listed=listed,
            threads=Threads(store, listed, erasure, tool_calls.forget_thread),
        )
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminService(
                Administration(
                    TenantAdmin(config, policies, database, erasure), KeyStore(database), PolicyAdmin(config, policies)
                ),
                authenticate,
            ),
            server,
        )
        audit = Audit(AuditReader(database))
        audit_service_pb2_grpc.add_AuditServiceServicer_to_server(AuditService(audit, authenticate), server)
        sandbox_service_pb2_grpc.add_SandboxServiceServicer_to_server(
            SandboxService(engine, keeper, store.audit, authenticate), server
        )
        address = bind(server, listen, config)
        await stack.enter_async_context(Retention(RetentionStore(database), config.retention).following())
        await stack.enter_async_context(Health(healthy, needs_of(SERVICES, database, docker.ping)).following())
        await server.start()
        # From the first on no call is taken; those that are under way have `drain_s`, and watchers end with their run.
        stopping: list[asyncio.Task[None]] = []
        stack.push_async_callback(tool_calls.close)
        stack.push_async_callback(lambda: asyncio.wait(stopping))
        stack.push_async_callback(runs.close)
        stack.callback(approvals.close)
        stack.callback(audit.close)
        stack.callback(lambda: stopping.append(asyncio.create_task(server.stop(config.drain_s))))
        stack.push_async_callback(healthy.enter_graceful_shutdown)
        # What is there now stays: without this the collector looks at all of it again and again, in the midst of calls.
        gc.freeze()
        yield Gateway(address, telemetry.metrics_address, store, tenants, policies)


@contextlib.asynccontextmanager
async def _policies(config: Config, database: Database) -> AsyncIterator[Policies]:
    """Have the policies in force, and follow their files and the database, until the block ends."""
    policies = Policies(PolicyStore(database))
    files = PolicyFiles(config, policies)
    try:
        await policies.open()
        await files.open()
        async with policies.following(), files.watching():
            yield policies
    finally:
        files.close()
        policies.close()


async def _engine_id(engine: Engine) -> str | None:
    """Return which engine it is; None where it does not answer, and any run may be one of its."""
    try:
        return await engine.id()
    except SandboxError:
        return None


async def _say_what_sandboxes_lack(engine: Engine) -> None:
    """Log at the start what would fail the first call. It can be mended while the gateway runs."""
    try:
        await engine.prepare()
    except SandboxError as error:
        log.warning("no sandbox can be made", error=str(error))


async def _add_services(
    server: grpc.aio.Server,
    runs: Runs,
    tool_calls: ToolCalls,
    approvals: Approvals,
    authenticate: Authenticator,
    *,
    requested_runs: RequestedRuns,
    requested_calls: RequestedCalls,
    listed: ThreadStore,
    threads: Threads,
) -> BoundedHealth:
    run_service = RunService(runs, authenticate, requested=requested_runs, listed=listed)
    run_service_pb2_grpc.add_RunServiceServicer_to_server(run_service, server)
    tool_service = ToolService(tool_calls, authenticate, requested_calls)
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(tool_service, server)
    thread_service_pb2_grpc.add_ThreadServiceServicer_to_server(ThreadService(threads, authenticate), server)
    workspace_service_pb2_grpc.add_WorkspaceServiceServicer_to_server(
        WorkspaceService(tool_calls, authenticate), server
    )
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(ProcessService(tool_calls, authenticate), server)
    approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server(ApprovalService(approvals, authenticate), server)
    anonymous = AnonymousStreams()
    healthy = BoundedHealth(anonymous)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", *SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(BoundedReflection(names, anonymous), server)
    return healthy
