"""The composition: every part of a gateway, put together in one place and taken apart in the reverse order."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from gateway.approvals import Approvals
from gateway.auth import KeyAuthenticator
from gateway.clock import make_id
from gateway.config import Config
from gateway.errors import Misconfigured
from gateway.policies import Policies
from gateway.policy_files import PolicyFiles
from gateway.quotas import Quotas
from gateway.runs import Runs
from gateway.services.approval_service import ApprovalService
from gateway.services.process_service import ProcessService
from gateway.services.run_service import RunService
from gateway.services.tool_service import ToolService
from gateway.services.workspace_service import WorkspaceService
from gateway.state_lock import locked_state
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore
from gateway.storage.policy_store import PolicyStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import Store
from gateway.storage.waiting_store import WaitingStore
from gateway.tenants import Tenants
from gateway.tool_calls import ToolCalls
from gateway.v1 import (
    approval_service_pb2,
    approval_service_pb2_grpc,
    process_service_pb2,
    process_service_pb2_grpc,
    run_service_pb2,
    run_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
    workspace_service_pb2,
    workspace_service_pb2_grpc,
)
from gateway.waiting_runs import WaitingRuns
from sandbox.docker_engine import DockerEngine
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.sandbox_keeper import SandboxKeeper

log = structlog.get_logger(__name__)
SERVICES = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in (
        (approval_service_pb2, "ApprovalService"),
        (process_service_pb2, "ProcessService"),
        (run_service_pb2, "RunService"),
        (tool_service_pb2, "ToolService"),
        (workspace_service_pb2, "WorkspaceService"),
    )
)
# What is parsed at once on the one event loop that all tenants share; larger files go through WorkspaceService.
_REQUEST_LIMIT_BYTES = 4 * 1024 * 1024
# A policy may let large results through.
_ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
_CONCURRENT_RPCS = 2048
_DRAIN_S = 5.0
_LAST_PORT = 65_535
_OPTIONS = (
    ("grpc.max_receive_message_length", _REQUEST_LIMIT_BYTES),
    ("grpc.max_send_message_length", _ANSWER_LIMIT_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
)


@dataclass(frozen=True)
class Gateway:
    """A gateway that answers at `address`."""

    address: str
    store: Store
    tenants: Tenants
    policies: Policies


@contextlib.asynccontextmanager
async def running_gateway(config: Config, listen: str) -> AsyncIterator[Gateway]:
    """Run a gateway until the block ends; then runs are cancelled, sandboxes removed, events stored."""
    state_dir = config.path(config.state_dir)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(locked_state(state_dir))
        database = await Database.open(config.resolved_database_url())
        stack.push_async_callback(database.close)
        instance = _instance(state_dir)
        policies = await stack.enter_async_context(_policies(config, database))
        tenants = Tenants(config, policies)
        store = Store(database, gateway=instance)
        interrupted = await store.end_interrupted()
        if interrupted:
            log.warning("ended runs that an earlier process left", runs=interrupted)
        engine: Engine = DockerEngine(
            instance=instance,
            channel_root=config.resolved_channel_dir(),
            runtime_image=config.sandbox.runtime_image,
            base_url=config.sandbox.engine_url,
        )
        keeps = config.sandbox.on_stop == "keep"
        stack.push_async_callback(engine.close, keep_sandboxes=keeps)
        left = await engine.reconcile()
        keeper = SandboxKeeper(
            engine,
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
        quotas = Quotas(QuotaStore(database, instance))
        await quotas.open()
        tool_calls = ToolCalls(store, keeper, approvals=asked, quotas=quotas)
        waiting = WaitingRuns(WaitingStore(database, gateway=instance), asked, tenants)
        runs = Runs(store, tool_calls, waiting=waiting, quotas=quotas)
        approvals = Approvals(asked, tool_calls.normalised, lambda _: waiting.look())
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_CONCURRENT_RPCS)
        healthy = await _add_services(
            server, runs, tool_calls, approvals, KeyAuthenticator(KeyStore(database), tenants)
        )
        address = _bind(server, listen)
        await server.start()
        # Watchers end when their run does, so runs are closed first and the server is given time to drain.
        stack.push_async_callback(server.stop, _DRAIN_S)
        stack.push_async_callback(runs.close)
        stack.callback(approvals.close)
        stack.push_async_callback(healthy.enter_graceful_shutdown)
        # What is there now stays: without this the collector looks at all of it again and again, in the midst of calls.
        gc.freeze()
        yield Gateway(address, store, tenants, policies)


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


async def _say_what_sandboxes_lack(engine: Engine) -> None:
    """Log at the start what would fail the first call. It can be mended while the gateway runs."""
    try:
        await engine.prepare()
    except SandboxError as error:
        log.warning("no sandbox can be made", error=str(error))


async def _add_services(
    server: grpc.aio.Server, runs: Runs, tool_calls: ToolCalls, approvals: Approvals, authenticate: KeyAuthenticator
) -> HealthServicer:
    run_service_pb2_grpc.add_RunServiceServicer_to_server(RunService(runs, authenticate), server)
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(ToolService(tool_calls, authenticate), server)
    workspace_service_pb2_grpc.add_WorkspaceServiceServicer_to_server(
        WorkspaceService(tool_calls, authenticate), server
    )
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(ProcessService(tool_calls, authenticate), server)
    approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server(ApprovalService(approvals, authenticate), server)
    healthy = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", *SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return healthy


def _bind(server: grpc.aio.Server, listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > _LAST_PORT:
        raise Misconfigured(f"--listen {listen!r}: HOST:PORT is expected, such as 127.0.0.1:7443")
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise Misconfigured(f"--listen {listen}: in use, or not an address of this machine") from error
    return f"{host}:{bound}"


def _instance(state_dir: Path) -> str:
    """Return the id that labels this gateway's containers, the same after a restart."""
    path = state_dir / "instance"
    try:
        if not path.exists():
            temporary = path.with_suffix(".new")
            temporary.write_text(make_id("gw"), encoding="ascii")
            temporary.replace(path)
        instance = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: {error}") from error
    if not re.fullmatch(r"gw_[0-9a-f]{24}", instance):
        raise Misconfigured(
            f"{path} is damaged: it names this gateway's containers and workspaces. Restore it from the label "
            "airlock.instance of one of them (`docker volume inspect`); without it their files are not found again"
        )
    return instance
