"""HistoryReader: the state transitions of a tenant's sandboxes, listed and watched, from the database alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from gateway.errors import NotFound
from gateway.storage.thread_store import ThreadStore
from gateway.storage.transition_store import StoredTransition, TransitionStore
from gateway.support.background import pause

_PAGE = 200
# The longest delay until another gateway's transitions are seen.
_POLL_S = 0.5


class HistoryReader:
    """The history of every tenant's sandboxes, on all gateways."""

    def __init__(self, store: TransitionStore, threads: ThreadStore, poll_s: float = _POLL_S) -> None:
        self._store = store
        self._threads = threads
        self._poll_s = poll_s
        self._closing = asyncio.Event()

    async def page(
        self, tenant: str, *, thread: str | None, before: int | None, limit: int
    ) -> Sequence[StoredTransition]:
        """Return a tenant's transitions, or those of one thread, newest first; NotFound for an unknown thread."""
        await self._refuse_unknown(tenant, thread)
        return await self._store.page(tenant, thread=thread, before=before, limit=limit)

    async def watch(
        self, tenant: str, *, thread: str | None, after: int | None
    ) -> AsyncIterator[StoredTransition | None]:
        """Yield None, then the transitions after an id, by default from now on, oldest first; ends with the gateway.

        NotFound for an unknown thread.
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
                await pause(self._closing, self._poll_s)

    def close(self) -> None:
        """End all watches."""
        self._closing.set()

    async def _refuse_unknown(self, tenant: str, thread: str | None) -> None:
        if thread is not None and await self._threads.get(tenant, thread) is None:
            raise NotFound(f"thread {thread[:64]!r} not found: `airlock thread list` lists the threads")
