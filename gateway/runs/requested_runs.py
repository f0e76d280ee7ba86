"""Starting a run once, however often it is asked for with the same request id.

The unique constraint on runs.request_id is what holds between gateways; on one of them, whoever comes while the first
is being stored waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass

from gateway.errors import AirlockError, InProgress, RequestIdReused
from gateway.runs.runs import PolicyMode, Runs
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import Run
from gateway.storage.request_store import RequestStore
from gateway.tenancy.tenants import Tenant


@dataclass(frozen=True)
class _Starting:
    digest: str
    task: asyncio.Task[Run]


class RequestedRuns:
    """Starts runs that have request ids."""

    def __init__(self, runs: Runs, store: RequestStore) -> None:
        self._runs = runs
        self._store = store
        self._starting: dict[tuple[str, str], _Starting] = {}

    async def start(
        self, tenant: Tenant, task: str, thread: str, agent: str, policy_mode: PolicyMode, request_id: str
    ) -> Run:
        """Start a run, or return the one that the same request started. Raises RequestIdReused, and as Runs.start."""
        if not request_id:
            return await self._runs.start(tenant, task, thread, agent, policy_mode)
        told = json.dumps([task, thread, agent or "default", policy_mode])
        digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
        key = (tenant.name, request_id)
        if key not in self._starting:
            stored = await self._stored(tenant, request_id, digest)
            if stored is not None:
                return stored
        # Nothing is awaited from here to the task: of two that come at once the second finds the first's.
        known = self._starting.get(key)
        if known is None:
            work = self._started(tenant, task, thread, agent, policy_mode, request_id, digest)
            known = _Starting(digest, asyncio.create_task(work, name=f"start of a run {request_id}"))
            self._starting[key] = known
            known.task.add_done_callback(lambda done: self._over(key, done))
        if known.digest != digest:
            raise _reused(request_id)
        return await asyncio.shield(known.task)

    def _over(self, key: tuple[str, str], task: asyncio.Task[Run]) -> None:
        self._starting.pop(key, None)
        if not task.cancelled():
            task.exception()  # where nobody waits any more, nobody is told

    async def _started(
        self, tenant: Tenant, task: str, thread: str, agent: str, mode: PolicyMode, request_id: str, digest: str
    ) -> Run:
        try:
            return await self._runs.start(tenant, task, thread, agent, mode, request=(request_id, digest))
        except (AirlockError, ConstraintViolated) as error:
            # Another gateway was first: its run is what keeps this one from starting.
            stored = await self._stored(tenant, request_id, digest)
            if stored is not None:
                return stored
            if isinstance(error, ConstraintViolated):
                raise InProgress(f"the request {request_id!r} is under way: make it again in a moment") from error
            raise

    async def _stored(self, tenant: Tenant, request_id: str, digest: str) -> Run | None:
        found = await self._store.run_of(tenant.name, request_id)
        if found is None:
            return None
        run_id, stored_digest = found
        if stored_digest != digest:
            raise _reused(request_id)
        return await self._runs.get(tenant, run_id)


def _reused(request_id: str) -> RequestIdReused:
    return RequestIdReused(f"request_id: {request_id!r} was given to another run; take a new one for each run")
