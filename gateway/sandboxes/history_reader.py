"""HistoryReader: what became of a tenant's sandboxes, listed and followed. It is read from the database alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from gateway.errors import NotFound
from gateway.storage.thread_store import ThreadStore
from gateway.storage.transition_store import StoredTransition, TransitionStore

_PAGE = 200
# What another gateway did is seen so much later, at most.
_POLL_S = 0.5


class HistoryReader:
    """The history of every tenant's sandboxes, whichever gateway wrote it."""

    def __init__(self, store: TransitionStore, threads: ThreadStore, poll_s: float = _POLL_S) -> None:
        self._store = store
        self._threads = threads
        self._poll_s = poll_s
        self._closing = asyncio.Event()

    async def page(
        self, tenant: str, *, thread: str | None, before: int | None, limit: int
    ) -> Sequence[StoredTransition]:
        """Return a tenant's transitions, the newest first; of one thread, when it is given.

        NotFound where there is no such thread.
        """
        await self._refuse_unknown(tenant, thread)
        return await self._store.page(tenant, thread=thread, before=before, limit=limit)

    async def watch(
        self, tenant: str, *, thread: str | None, after: int | None
    ) -> AsyncIterator[StoredTransition | None]:
        """Yield None, then what came after an id, the oldest first; ends with the gateway.

        Without an id it is what comes from now on. NotFound where there is no such thread.
        """
        await self._refuse_unknown(tenant, thread)
        if after is None:
            newest = await self._store.page(tenant, thread=None, before=None, limit=1)
            after = newest[0].id if newest else 0
        yield None
        while not self._closing.is_set():
            found = await self._store.after(tenant, thread=thread, after=after, limit=_PAGE)
            for one in found:
                yield one
                after = one.id
            if not found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await self._closing.wait()

    def close(self) -> None:
        """End those who watch."""
        self._closing.set()

    async def _refuse_unknown(self, tenant: str, thread: str | None) -> None:
        if thread is not None and await self._threads.get(tenant, thread) is None:
            raise NotFound(f"thread {thread[:64]!r} not found: `airlock thread list` lists the threads")
