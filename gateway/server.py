"""Runs a gateway: builds its parts in order (gateway/composition) and closes them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.composition.foundation import Foundation, open_foundation
from gateway.composition.network import make_doors
from gateway.composition.sandboxes import open_sandboxes
from gateway.config.config import Config
from gateway.data_lifecycle.retention import Retention, TrustedTime
from gateway.errors import AirlockError
from gateway.serving.directory_locks import locked_slot, locked_state
from gateway.serving.edge import ADMISSION, FirstMessageTimeout
from gateway.serving.fair_loop import make_fair
from gateway.serving.health import Health, needs_of
from gateway.serving.listening import bind, make_server, refuse_unconfined
from gateway.serving.prefetching_server import PrefetchingServer, follow_rpcs
from gateway.serving.workers import Worker
from gateway.storage.retention_store import RetentionStore
from gateway.support.background import Periodic, in_background
from gateway.support.clock import now_us
from gateway.telemetry.rpc import RpcInterceptor

if TYPE_CHECKING:
    from gateway.composition.http import Http
    from gateway.composition.services import Services, Work

_ALONE = Worker()


@dataclass(frozen=True)
class Gateway:
    """A running gateway that serves at `address`, HTTP at `http` and its metrics at `metrics`."""

    address: str
    http: str | None
    metrics: str | None


@contextlib.asynccontextmanager
async def running_gateway(config: Config, listen: str, worker: Worker = _ALONE) -> AsyncIterator[Gateway]:
    """Run a gateway until the block ends. All events are stored by then.

    `runs.on_stop` and `sandbox.on_stop` decide whether its runs and sandboxes end or continue elsewhere.
    A supervised worker shares `listen` with others, and its parent locks the state directory.
    """
    # The command line checks it too; this is for other callers.
    for address in (listen, *((config.http.listen,) if config.http.listen else ())):
        refuse_unconfined(config, address, workers=2 if worker.supervised else 1)
    for improve in (make_fair, follow_rpcs):
        improve(asyncio.get_running_loop())
    state_dir = config.path(config.state_dir)
    async with AsyncExitStack() as stack:
        if not worker.supervised:
            stack.enter_context(locked_state(state_dir))
        slot = stack.enter_context(locked_slot(state_dir, worker))
        base = await open_foundation(stack, config, worker)
        doors = await make_doors(base)
        sandboxes = await open_sandboxes(stack, base)
        await _load("services")
        from gateway.composition import services as of  # noqa: PLC0415 - see _load

        lease = of.make_lease(base, sandboxes, listen)
        await stack.enter_async_context(lease.hold(slot.predecessors))
        slot.record(base.process_id)
        work = of.start_work(stack, base, sandboxes, lease, doors)
        interceptors = await _interceptors(stack, base)
        server = make_server(*interceptors, shared=worker.supervised)
        http = None
        if config.http.listen is not None:
            await _load("http")
            from gateway.composition.http import open_http  # noqa: PLC0415 - as above

            http = open_http(config, config.http.listen, interceptors, shared=worker.supervised)
        served = (server,) if http is None else (server, http.services)
        services = await of.add_services(served, server, base, sandboxes, work)
        address = bind(server, listen, config)
        await sandboxes.prepared
        trusted = TrustedTime(base.database, now_us)
        retention = Retention(RetentionStore(base.database), config.retention, trusted)
        await stack.enter_async_context(retention.following())
        if config.audit.anchor is not None and not worker.index:  # the first worker anchors for all
            anchoring = of.make_anchoring(base, config.audit.anchor)
            await stack.enter_async_context(anchoring.following(config.audit.anchor.every_s))
        for remove, what in ((work.snapshots.sweep, "snapshots"), (services.forks.remove_half_made, "forks")):
            tidying = Periodic(remove, 0, f"unfinished {what} stay until the next start", (AirlockError,))
            await stack.enter_async_context(in_background(tidying.once(), f"tidying: {what}"))
        needs = needs_of(of.SERVICES, base.database, sandboxes.ping)
        await stack.enter_async_context(Health(services.healthy, needs).following())
        await server.start()
        if http is not None:
            await stack.enter_async_context(http.serving(base, services))
        _stop_in_order(stack, [server] if http is None else [server, http], services, work, config.drain_s)
        # The objects that exist now are permanent: keep the garbage collector from scanning them during calls.
        gc.freeze()
        gc.enable()  # the command line starts a gateway without it
        # How long the event loop waits for a thread that does heavy work; the default is 5 ms.
        sys.setswitchinterval(0.001)
        at = None if http is None else http.address
        yield Gateway(address, at, base.telemetry.metrics_address)


async def _load(part: str) -> None:
    """Load a part in a thread, while the engine is prepared: either takes some tenths of a second."""
    await asyncio.to_thread(importlib.import_module, f"gateway.composition.{part}")


async def _interceptors(stack: AsyncExitStack, base: Foundation) -> tuple[Any, ...]:
    """Return what each RPC passes, with admission in place."""
    ADMISSION.configure(base.config.admission)
    await stack.enter_async_context(ADMISSION.heeding_load())
    for name in ("at_work", "limit", "waiting", "streams", "admitted", "refused", "waited"):
        read = partial(lambda name: getattr(ADMISSION.snapshot(), name), name)
        base.telemetry.instruments.read(f"airlock.admission.{name}", read)
    return (FirstMessageTimeout(), *((RpcInterceptor(base.telemetry),) if base.telemetry.on else ()))


def _stop_in_order(
    stack: AsyncExitStack,
    servers: Sequence[PrefetchingServer | Http],
    services: Services,
    work: Work,
    drain_s: float,
) -> None:
    """Register the steps of a stop, the last one first.

    From the first step on no call is accepted; calls in progress have `drain_s`, and watchers end with their run.
    """
    stopping: list[asyncio.Task[None]] = []
    stack.push_async_callback(work.tool_calls.close)
    stack.push_async_callback(services.forwarding.settled)
    stack.push_async_callback(lambda: asyncio.wait(stopping))
    stack.push_async_callback(work.runs.close)
    for streamed in (work.approvals, services.audit, services.usage, services.transitions, services.forwarding):
        stack.callback(streamed.close)
    stack.callback(lambda: stopping.extend(asyncio.create_task(server.stop(drain_s)) for server in servers))
    stack.push_async_callback(services.healthy.enter_graceful_shutdown)
