"""A TCP proxy that cuts connections at random points: what a network, a load balancer or a restart does to a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Self

_PIECE_BYTES = 65_536


class CuttingProxy:
    """Forwards to `target`. Each connection may move so many bytes, then it is reset, in the midst of a frame."""

    def __init__(self, target: str, seed: int, *, least_bytes: int = 600, most_bytes: int = 6_000) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._random = Random(seed)
        self._range = (least_bytes, most_bytes)
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        left = [self._random.randint(*self._range)]
        try:
            there, to_there = await asyncio.open_connection(self._host, int(self._port))
        except OSError:
            writer.transport.abort()
            return
        both = [
            asyncio.create_task(self._pump(reader, to_there, left)),
            asyncio.create_task(self._pump(there, writer, left)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return  # the server's own task: it would be reported as a fault
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.transport.abort()
            to_there.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                writer.write(data[: left[0]])
                await writer.drain()
                left[0] -= len(data)
                if left[0] <= 0:
                    self.cuts += 1
                    return


@contextlib.asynccontextmanager
async def cut(target: str, seed: int, **limits: int) -> AsyncIterator[CuttingProxy]:
    """Run a proxy until the block ends."""
    async with CuttingProxy(target, seed, **limits) as proxy:
        yield proxy
