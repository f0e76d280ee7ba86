"""The lease of this process: while it is valid, no other gateway takes over the runs hosted here.

A process that cannot renew it in time, because the database is unreachable or the process was stopped, ends its runs
without writing anything: another gateway may have them. It takes a new lease as soon as it can.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import structlog

from gateway.errors import AirlockError
from gateway.storage.waiting_store import LeaseStore
from gateway.support.background import in_background

_RENEWALS = 5
_US_PER_S = 1_000_000
# A database may be unreachable for hours.
_LOG_AGAIN_S = 30.0
log = structlog.get_logger(__name__)


@dataclass
class Lease:
    """The lease of the process `id`; `lost` is called when it has expired.

    `engine` and `channels` are where the process has its sandboxes, `address` where it listens.
    """

    store: LeaseStore
    id: str
    _: KW_ONLY
    lease_s: float = 5.0
    engine: str = ""
    channels: str = ""
    address: str = ""
    clock: Callable[[], float] = time.monotonic
    lost: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._renewed_s = self.clock()
        self._started_us = self.store.clock()

    @contextlib.asynccontextmanager
    async def hold(self, predecessors: Sequence[str] = ()) -> AsyncIterator[None]:
        """Hold the lease until the block ends. Leases of `predecessors`, which this process replaces, end now."""
        await self.store.end(predecessors)
        await self.renew()
        await self.store.reap(all_=True)
        try:
            async with in_background(self._keep(), "lease"):
                yield
        finally:
            with contextlib.suppress(AirlockError):
                await self.store.end((self.id,))

    async def renew(self) -> None:
        """Extend the lease to its full length from now."""
        asked_s = self.clock()
        whose = {"engine": self.engine, "channels": self.channels, "address": self.address}
        await self.store.take(self.id, round(self.lease_s * _US_PER_S), started_us=self._started_us, **whose)
        self._renewed_s = asked_s

    def over(self) -> bool:
        """Return whether the lease expired before it was renewed; the runs hosted here have then ended.

        The first caller that finds out ends them: a renewal that comes right after must not hide it, or a call that was
        refused meanwhile would be reported as failed.
        """
        if self.clock() - self._renewed_s <= self.lease_s:
            return False
        log.error("the lease was lost: its runs end here, and another gateway may continue them", gateway=self.id)
        self._renewed_s = self.clock()
        self.lost()
        return True

    async def _keep(self) -> None:
        logged_s = -_LOG_AGAIN_S
        while True:
            await asyncio.sleep(self.lease_s / _RENEWALS)
            # Checked before the renewal: a process that was stopped for long has lost its lease in any case.
            self.over()
            try:
                async with asyncio.timeout(self.lease_s / 2):
                    await self.renew()
                    await self.store.reap()
            except (AirlockError, TimeoutError) as error:
                if self.clock() - logged_s >= _LOG_AGAIN_S:
                    log.warning("the lease is not renewed", error=str(error) or type(error).__name__)
                    logged_s = self.clock()
            except Exception:
                log.exception("the lease is not renewed")
            self.over()
