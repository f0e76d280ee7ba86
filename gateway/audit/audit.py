"""The audit as those who answer for what happened read it: pages, a tail that follows, and whether it is whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

from gateway.audit_chain.chain import ChainReport, Known
from gateway.audit_chain.record import AuditRecord
from gateway.errors import NotFound
from gateway.storage.audit_reader import SLICE, AuditFilter, AuditReader
from gateway.support.paging import page_size, paged, place_of

_PAGE, _PAGE_LIMIT = 100, 1000
_POLL_S = 0.3


class Audit:
    """The audit of every tenant; the service says whose is read."""

    def __init__(self, reader: AuditReader, configured: Collection[str], poll_s: float = _POLL_S) -> None:
        """`configured` are the tenants of the configuration; one that is deleted may still have a chain."""
        self._reader = reader
        self._configured = configured
        self._poll_s = poll_s
        self._closing = asyncio.Event()

    async def check_known(self, tenant: str) -> None:
        """Raise NotFound for a tenant that is neither configured nor has a chain; "" are the operators."""
        if tenant and tenant not in self._configured and await self._reader.head(tenant) is None:
            raise NotFound(f"no tenant {tenant[:64]!r}: it is not configured and has no audit; check the name")

    async def page(
        self, tenant: str, wanted: AuditFilter, *, size: int, token: str
    ) -> tuple[Sequence[AuditRecord], str]:
        """Return records, the newest first, and the token of the next page, empty at the end."""
        size = page_size(size, usual=_PAGE, limit=_PAGE_LIMIT)
        place = place_of(token, "audit", tenant, wanted)
        found = await self._reader.before(tenant, wanted, sequence=place[0] if place else None, limit=size + 1)
        return paged(found, size, lambda record: (record.sequence, ""), "audit", tenant, wanted)

    async def tail(
        self, tenant: str, wanted: AuditFilter, *, from_sequence: int, follow: bool
    ) -> AsyncIterator[AuditRecord]:
        """Yield records in their order, from a sequence number on, 0 for what is new; with `follow` until the end.

        A slice is held at a time, and the next is read when that one has been taken.
        """
        head = await self._reader.head(tenant)
        sequence = from_sequence - 1 if from_sequence else (head.sequence if head is not None else 0)
        while True:
            end = head.sequence if head is not None else 0
            while sequence < end:
                found = await self._reader.after(tenant, wanted, sequence=sequence, until=end)
                for record in found:
                    yield record
                # What does not match is not looked at again.
                sequence = found[-1].sequence if len(found) == SLICE else end
            if not follow or self._closing.is_set():
                return
            await self._pause()
            head = await self._reader.head(tenant)

    async def verified(self, tenant: str, known: Known) -> ChainReport:
        """Compute a chain again."""
        return await self._reader.verified(tenant, known)

    def close(self) -> None:
        """End those who follow."""
        self._closing.set()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await self._closing.wait()
