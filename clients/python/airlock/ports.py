r"""Connections to ports that programs in a sandbox listen on, in the Python client.

async with airlock.forward_port("t1", 8000) as connection:
    await connection.write(b"GET / HTTP/1.0\r\n\r\n")
    while data := await connection.read():
        ...
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import grpc.aio

from airlock.errors import Internal, Unavailable
from airlock.input import CALL_ENDED, send
from airlock.messages import message
from airlock.v1 import sandbox_service_pb2 as pb
from airlock.wire import Wire

_PIECE_BYTES = 256 * 1024


class PortConnection:
    """A connection: bytes both ways, each direction with an end of its own. A cancelled read or write ends it.

    One task may read while another one writes. What is not read holds up the program, and what the program does not
    read holds up write().
    """

    def __init__(self, call: Any, translated: Callable[[], AbstractContextManager[None]]) -> None:
        """Take a call, and the block in which statuses become errors."""
        self._call = call
        self._translated = translated
        self._rest = b""
        self._read_all = self._wrote_all = False

    async def read(self, limit_bytes: int = _PIECE_BYTES) -> bytes:
        """Return what has come, at most so many bytes; nothing when the program sends no more. Raises Unavailable."""
        while not self._rest and not self._read_all:
            said = await self._received()
            if said is None:
                raise Unavailable("the connection broke")
            self._rest, self._read_all = said.data, said.end
        data, self._rest = self._rest[:limit_bytes], self._rest[limit_bytes:]
        return data

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes. Raises Unavailable if the program takes no more, or the connection has ended."""
        whole = memoryview(data).cast("B")
        for at in range(0, len(whole), _PIECE_BYTES):
            await self._send(pb.ForwardPortRequest(data=bytes(whole[at : at + _PIECE_BYTES])))

    async def write_eof(self) -> None:
        """Send no more; reading goes on."""
        if not self._wrote_all:
            self._wrote_all = True
            await self._send(pb.ForwardPortRequest(end=True))

    async def open(self, where: pb.ForwardPort) -> None:
        """Connect."""
        await self._sent(pb.ForwardPortRequest(forward=where))  # if it ends the call, the status says why
        said = await self._received()
        if said is None or not said.opened:
            raise Internal("the stream did not begin with `opened`")

    async def finish(self) -> None:
        """Wait for the end of a connection both of whose directions have ended."""
        while self._read_all and self._wrote_all and await self._received() is not None:
            continue

    def close(self) -> None:
        """End both directions at once."""
        self._call.cancel()  # does nothing to a call that has ended

    async def _received(self) -> Any:
        """Return the next message; None when the call has ended well."""
        with self._translated():
            said = await self._call.read()
        return None if said is grpc.aio.EOF else said  # type: ignore[attr-defined]  # grpc-stubs do not know it

    async def _send(self, request: pb.ForwardPortRequest) -> None:
        if await self._sent(request):
            return
        if self._call.done():
            await self._received()  # raises the status of a call that has failed
        # Else the status is behind what was not read yet.
        raise Unavailable("the program takes no more; what it has sent can be read")

    async def _sent(self, request: pb.ForwardPortRequest) -> bool:
        """Send a request; return False if the call has ended."""
        with self._translated():
            try:
                await send(self._call, request)
            except CALL_ENDED:
                return False
            except asyncio.CancelledError:
                self.close()
                raise
        return True


class PortCalls(Wire):
    """ForwardPort of SandboxService."""

    @asynccontextmanager
    async def forward_port(self, thread: str, port: int) -> AsyncIterator[PortConnection]:
        """Connect to a port that a program in a thread's sandbox listens on; the block's end closes the connection.

        Raises NotFound if no sandbox of the thread is running, or if nothing listens; QuotaExceeded; and Unavailable
        when the connection breaks: it is not opened again.
        """
        where = message(pb.ForwardPort, thread=thread, port=port)
        connection = await self._again(lambda _: self._connected(where))
        try:
            yield connection
            await connection.finish()
        finally:
            connection.close()

    async def _connected(self, where: pb.ForwardPort) -> PortConnection:
        connection = PortConnection(self._open(self._method(pb.ForwardPortRequest)), self._translated)
        try:
            await connection.open(where)
        except BaseException:
            connection.close()
            raise
        return connection
