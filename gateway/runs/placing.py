"""Placing a run that was requested on a gateway of one engine while its thread's files are on another engine.

The run is recorded here and hosted there: a gateway of that engine finds it among the unhosted runs
(gateway/runs/waiting_runs.py). Any gateway can watch and cancel it.
"""

from __future__ import annotations

from gateway.errors import OtherEngine, Overloaded, Unavailable
from gateway.runs.hosting import LIVE_LIMIT, Hosting
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.tenancy.tenants import Tenant


class Placing:
    """Checks whether a run may be recorded for the gateways of another engine."""

    def __init__(self, store: Store, hosting: Hosting, waiting: WaitingRuns) -> None:
        self._store = store
        self._hosting = hosting
        self._waiting = waiting

    async def thread(self, tenant: Tenant, name: str, elsewhere: OtherEngine) -> Thread:
        """Return a thread whose files are elsewhere; OtherEngine if no gateway of that engine is serving."""
        if self._hosting.closing.is_set():
            raise Unavailable("the gateway is shutting down: try again when it is back")
        engine = elsewhere.details["engine"]
        if not await self._waiting.store.serves(engine):
            raise OtherEngine(f"{elsewhere}. No gateway is currently serving that engine", engine=engine)
        if await self._waiting.store.placed(tenant.name) >= LIVE_LIMIT:
            raise Overloaded(
                f"{LIVE_LIMIT} runs of this tenant wait for a gateway on another engine, which is the limit: wait "
                "for one or cancel one"
            )
        return await self._store.thread(tenant.name, name)
