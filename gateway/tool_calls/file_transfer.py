"""Uploads and downloads: read_file and write_file for services, as streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from gateway.errors import DeadlineExceeded
from gateway.tool_calls.file_call import FileCall
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.filesystem import Entry

Piece = tuple[Entry, bytes]
"""A file and a piece of its content."""


class Upload(FileCall):
    """Writes what a client streams."""

    audit_kind = "file_write"

    def __init__(self, sandbox: ThreadSandbox, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(sandbox)
        self._chunks = chunks
        self.size_bytes = 0

    async def _work(self, path: str) -> str:
        await self._sandbox.write(path, self._counted())
        return f"{self.size_bytes} bytes written"

    async def _counted(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            self.size_bytes += len(chunk)
            self.moved_bytes = self.size_bytes
            yield chunk


class Download(FileCall):
    """Streams a file to a client, from `offset` and of `limit_bytes`, None for all.

    The queue `pieces` is short, so a slow client slows the sandbox, not the gateway. An empty file yields one piece.
    """

    audit_kind = "file_read"

    def __init__(
        self,
        sandbox: ThreadSandbox,
        pieces: asyncio.Queue[Piece | None],
        stall_limit_s: float,
        *,
        offset: int = 0,
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__(sandbox)
        self._pieces = pieces
        self._stall_limit_s = stall_limit_s
        self._offset = offset
        self._limit_bytes = limit_bytes

    async def _work(self, path: str) -> str:
        read = self._sandbox.read_known(path, offset=self._offset, length=self._limit_bytes)
        async with aclosing(read) as pieces:
            async for entry, chunk in pieces:
                self.moved_bytes += len(chunk)
                try:
                    async with asyncio.timeout(self._stall_limit_s):  # a stalled reader must not keep a sandbox leased
                        await self._pieces.put((entry, chunk))
                except TimeoutError:
                    stalled = f"nothing was read for {self._stall_limit_s:g} s; read on from where you are"
                    raise DeadlineExceeded(stalled) from None
        return f"{self.moved_bytes} bytes read"
