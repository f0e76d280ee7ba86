"""Reads the audit for those who answer for what happened: pages, a live tail, and verification."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

from airlock.audit_chain import AuditRecord, ChainReport, Known
from gateway.errors import NotFound
from gateway.storage.audit_reader import SLICE, AuditFilter, AuditReader
from gateway.support.background import pause
from gateway.support.paging import page_size, paged, place_of

_PAGE, _PAGE_LIMIT = 100, 1000
_POLL_S = 0.3


class Audit:
    """The audit of every tenant; the service decides whose records are read."""

    def __init__(self, reader: AuditReader, configured: Collection[str], poll_s: float = _POLL_S) -> None:
        """`configured` are the tenants of the configuration; a deleted tenant may still have a chain."""
        self._reader = reader
        self._configured = configured
        self._poll_s = poll_s
        self._closing = asyncio.Event()

    async def check_known(self, tenant: str) -> None:
        """Raise NotFound for a tenant that is neither configured nor has a chain; "" stands for the operators."""
        if tenant and tenant not in self._configured and await self._reader.head(tenant) is None:
            raise NotFound(f"tenant {tenant[:64]!r} is not configured and has no audit records: check the name")

    async def page(
        self, tenant: str, wanted: AuditFilter, *, size: int, token: str
    ) -> tuple[Sequence[AuditRecord], str]:
        """Return records, newest first, and the token of the next page, empty at the end."""
        size = page_size(size, usual=_PAGE, limit=_PAGE_LIMIT)
        place = place_of(token, "audit", tenant, wanted)
        found = await self._reader.before(tenant, wanted, sequence=place[0] if place else None, limit=size + 1)
        return paged(found, size, lambda record: (record.sequence, ""), "audit", tenant, wanted)

    async def tail(
        self, tenant: str, wanted: AuditFilter, *, from_sequence: int, follow: bool
    ) -> AsyncIterator[AuditRecord]:
        """Yield records, 500 in memory, from a sequence number or the end on; with `follow` until the gateway stops."""
        head = await self._reader.head(tenant)
        sequence = from_sequence - 1 if from_sequence else (head.sequence if head is not None else 0)
        while True:
            end = head.sequence if head is not None else 0
            while sequence < end:
                found = await self._reader.after(tenant, wanted, sequence=sequence, until=end)
                for record in found:
                    yield record
                # Records that do not match are not read again.
                sequence = found[-1].sequence if len(found) == SLICE else end
            if not follow or self._closing.is_set():
                return
            await pause(self._closing, self._poll_s)
            head = await self._reader.head(tenant)

    async def verified(self, tenant: str, known: Known) -> ChainReport:
        return await self._reader.verified(tenant, known)

    def close(self) -> None:
        self._closing.set()
