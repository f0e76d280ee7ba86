"""Finds unhosted runs that can continue, on any gateway.

Those are the runs whose approvals are answered, and the runs whose gateway is lost or handed them over when it stopped.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import structlog

from gateway.errors import AirlockError, Unauthenticated
from gateway.runs.live_run import cancelled
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.waiting_store import WaitingRun, WaitingStore
from gateway.support.background import Periodic, pause
from gateway.tenancy.tenants import Tenant, Tenants

_POLL_S = 0.5
# A run's sandbox is at the gateway that hosted it: another one takes the run only if that one does not.
_OTHERS_AFTER_S = 3.0
# How soon an expired approval is in the audit when no caller asks for it before.
_EXPIRE_EVERY_S = 10.0
log = structlog.get_logger(__name__)


@dataclass
class WaitingRuns:
    """Looks for runs that can continue, and passes them to the host.

    With `takes_over`, which needs a lease of this process, it also looks for runs of lost gateways.
    """

    store: WaitingStore
    approvals: ApprovalStore
    tenants: Tenants
    _: KW_ONLY
    poll_s: float = _POLL_S
    others_after_s: float = _OTHERS_AFTER_S
    takes_over: bool = False
    _soon: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _seen_s: Mapping[str, float] = field(init=False, default_factory=dict)
    _expired_s: float = field(init=False, default=float("-inf"))
    _reported: frozenset[str] = field(init=False, default_factory=frozenset)

    async def tenant(self, name: str, policy: str = "") -> Tenant:
        """Return a tenant, with the policy of the given reference if there is one."""
        return await (self.tenants.at(name, policy) if policy else self.tenants.named(name))

    async def end(self, run_id: str) -> bool:
        """Cancel a run while it waits, and its approvals; return whether it was waiting."""
        if not await self.store.end(run_id, cancelled()):
            return False
        await self.approvals.cancel_open(run_id)
        log.info("run finished", run_id=run_id, status="cancelled")
        return True

    def look(self) -> None:
        """Look at once: an approval was answered."""
        self._soon.set()

    async def follow(self, resume: Callable[[WaitingRun], Awaitable[None]]) -> None:
        look = Periodic(partial(self._look, resume), self.poll_s, "waiting runs are not looked at", (AirlockError,))
        while True:
            self._soon.clear()
            await look.once()
            await pause(self._soon, self.poll_s)

    async def _look(self, resume: Callable[[WaitingRun], Awaitable[None]]) -> None:
        now_s = time.monotonic()
        abandoned = await self.store.abandoned() if self.takes_over else ()
        queued = [run for run in abandoned if run.because == "queued"]
        lost = [run for run in abandoned if run.because != "queued"]
        # In an order of its own: gateways that try the same runs at the same time claim most of them in vain.
        random.shuffle(lost)
        found = [*await self.store.ready(), *queued, *lost]
        self._seen_s = {run.id: self._seen_s.get(run.id, now_s) for run in found}
        self._reported &= self._seen_s.keys()
        for run in found:
            if run.cancelled and run.because == "approval":
                await self.end(run.id)  # it has no calls, so the first gateway to see it can end it
                continue
            mine = run.gateway is None or run.gateway == self.store.gateway
            if not mine and now_s - self._seen_s[run.id] < self.others_after_s:
                continue
            try:
                await resume(run)
            except Unauthenticated:
                continue  # the tenant is not configured here
            except AirlockError as error:  # such as a quota: it is retried, and logged once
                if run.id not in self._reported:
                    log.warning("a run does not go on yet", run_id=run.id, because=run.because, error=str(error))
                self._reported |= {run.id}
        # Expired approvals are marked even when no caller looks at them.
        if now_s - self._expired_s >= _EXPIRE_EVERY_S:
            await self.approvals.expire()
            self._expired_s = now_s
