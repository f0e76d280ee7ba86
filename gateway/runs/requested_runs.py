"""Starts a run once, however often it is requested with the same request id.

Between gateways, the unique constraint on runs.request_id ensures that; within one gateway, later requests wait for the
first.
"""

import asyncio

from gateway.errors import AirlockError, InProgress, RequestIdReused
from gateway.runs.runs import RunRequest, Runs
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import Run
from gateway.storage.request_store import RequestStore
from gateway.tenancy.tenants import Tenant


class RequestedRuns:
    """Starts runs that have request ids."""

    def __init__(self, runs: Runs, store: RequestStore) -> None:
        self._runs = runs
        self._store = store
        self._starting: dict[tuple[str, str], tuple[RunRequest, asyncio.Task[Run]]] = {}

    async def start(self, tenant: Tenant, asked: RunRequest) -> Run:
        """Start a run, or return the one that the same request started.

        Raises RequestIdReused, and what Runs.start raises.
        """
        if not asked.id:
            return await self._runs.start(tenant, asked)
        key = (tenant.name, asked.id)
        if key not in self._starting and (stored := await self._stored(tenant, asked)) is not None:
            return stored
        # Nothing is awaited from here to the task: of two concurrent requests, the second finds the first's task.
        if key not in self._starting:
            task = asyncio.create_task(self._started(tenant, asked), name=f"start of a run {asked.id}")
            self._starting[key] = asked, task
            task.add_done_callback(lambda done: self._over(key, done))
        first, task = self._starting[key]
        if first != asked:
            raise _reused(asked)
        return await asyncio.shield(task)

    def _over(self, key: tuple[str, str], task: asyncio.Task[Run]) -> None:
        self._starting.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs it when no caller waits any more

    async def _started(self, tenant: Tenant, asked: RunRequest) -> Run:
        try:
            return await self._runs.start(tenant, asked)
        except (AirlockError, ConstraintViolated) as error:
            # Another gateway may have been first: then its run is what prevents this one.
            if (stored := await self._stored(tenant, asked)) is not None:
                return stored
            if isinstance(error, ConstraintViolated):
                raise InProgress(f"request {asked.id!r} is still running: repeat it in a moment") from error
            raise

    async def _stored(self, tenant: Tenant, asked: RunRequest) -> Run | None:
        found = await self._store.run_of(tenant.name, asked.id)
        if found is None:
            return None
        run_id, digest = found
        if digest != asked.digest:
            raise _reused(asked)
        return await self._runs.get(tenant, run_id)


def _reused(asked: RunRequest) -> RequestIdReused:
    return RequestIdReused(f"request_id: {asked.id!r} was already used for a different run; use a new one for each run")
