"""The composition: a gateway is put together here, in the order of its parts, and taken apart in the reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.composition.audit_anchor import make_anchoring
from gateway.composition.foundation import Foundation, open_foundation
from gateway.composition.sandboxes import open_sandboxes
from gateway.composition.services import SERVICES, Parts, add_services, make_parts
from gateway.composition.work import make_lease, start_work
from gateway.config.config import Config
from gateway.data_lifecycle.retention import Retention
from gateway.data_lifecycle.trusted_time import TrustedTime
from gateway.policy_versions.policies import Policies
from gateway.serving.anonymous_calls import BoundedHealth
from gateway.serving.edge import ADMISSION
from gateway.serving.fair_loop import make_fair
from gateway.serving.first_message_timeout import FirstMessageTimeout
from gateway.serving.grpc_wakeups import take_wakeups_as_they_come
from gateway.serving.health import Health, needs_of
from gateway.serving.listening import bind, make_server
from gateway.serving.rpc_tasks import follow_rpcs
from gateway.serving.startup_checks import refuse_unconfined
from gateway.serving.state_lock import held_slot, locked_state
from gateway.serving.taking_server import TakingServer
from gateway.serving.worker import Worker
from gateway.snapshots.tidying import tidying
from gateway.storage.retention_store import RetentionStore
from gateway.storage.store import Store
from gateway.support.clock import now_us
from gateway.telemetry.admission import observe_admission
from gateway.telemetry.rpc import RpcInterceptor
from gateway.tenancy.tenants import Tenants

_ALONE = Worker()
_SWITCH_INTERVAL_S = 0.001


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
    """Run a gateway until the block ends; then its runs end or go on elsewhere, and so do its sandboxes, as configured.

    `runs.on_stop` and `sandbox.on_stop` say which. All events are stored by then.
    A supervised worker shares `listen` with others, and its parent holds the state directory.
    """
    # Here too, for who starts a gateway without the command line: what it would let in can do anything.
    refuse_unconfined(config, listen, workers=2 if worker.supervised else 1)
    take_wakeups_as_they_come(asyncio.get_running_loop())
    make_fair(asyncio.get_running_loop())
    follow_rpcs(asyncio.get_running_loop())
    state_dir = config.path(config.state_dir)
    async with AsyncExitStack() as stack:
        if not worker.supervised:
            stack.enter_context(locked_state(state_dir))
        slot = stack.enter_context(held_slot(state_dir, worker))
        base = await open_foundation(stack, config, worker)
        sandboxes = await open_sandboxes(stack, base)
        lease = make_lease(base, sandboxes, listen)
        await stack.enter_async_context(lease.held(slot.predecessors))
        slot.record(base.process_id)
        work = start_work(stack, base, sandboxes, lease)
        server = await _server(stack, base, worker)
        parts = make_parts(base, sandboxes, work)
        healthy = await add_services(server, parts)
        address = bind(server, listen, config)
        trusted = TrustedTime(base.database, now_us)
        retention = Retention(RetentionStore(base.database), config.retention, trusted)
        await stack.enter_async_context(retention.following())
        if config.audit.anchor is not None and not worker.index:  # one process of the gateway anchors for all
            anchoring = make_anchoring(base, config.audit.anchor)
            await stack.enter_async_context(anchoring.following(config.audit.anchor.every_s))
        await stack.enter_async_context(tidying(parts.snapshots.sweep, "snapshots"))
        await stack.enter_async_context(tidying(parts.forks.remove_half_made, "forks"))
        needs = needs_of(SERVICES, base.database, sandboxes.ping)
        await stack.enter_async_context(Health(healthy, needs).following())
        await server.start()
        _stop_in_turn(stack, server, healthy, parts)
        # What is there now stays: without this the collector looks at all of it again and again, in the midst of calls.
        gc.freeze()
        # Where a thread is at heavy work, the event loop waits this long for its next step, not Python's usual 5 ms.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        yield Gateway(address, base.telemetry.metrics_address, base.store, base.tenants, base.policies)


async def _server(stack: AsyncExitStack, base: Foundation, worker: Worker) -> TakingServer:
    """Return the server, which serves nothing yet, behind the bounds of what it takes at once."""
    ADMISSION.configure(base.config.admission)
    await stack.enter_async_context(ADMISSION.heeding_load())
    observe_admission(base.telemetry, ADMISSION)
    return make_server(
        FirstMessageTimeout(),
        *((RpcInterceptor(base.telemetry),) if base.telemetry.on else ()),
        shared=worker.supervised,
    )


def _stop_in_turn(stack: AsyncExitStack, server: TakingServer, healthy: BoundedHealth, parts: Parts) -> None:
    """Have the stack stop what a gateway does, the last named first.

    From the first on no call is taken; those that are under way have `drain_s`, and watchers end with their run.
    """
    stopping: list[asyncio.Task[None]] = []
    stack.push_async_callback(parts.work.tool_calls.close)
    stack.push_async_callback(lambda: asyncio.wait(stopping))
    stack.push_async_callback(parts.work.runs.close)
    stack.callback(parts.work.approvals.close)
    stack.callback(parts.audit.close)
    stack.callback(parts.usage.close)
    stack.callback(parts.transitions.close)
    stack.callback(lambda: stopping.append(asyncio.create_task(server.stop(parts.base.config.drain_s))))
    stack.push_async_callback(healthy.enter_graceful_shutdown)
