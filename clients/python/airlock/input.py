"""What a client sends in streams: the input that a caller gives, and requests beside the answers that come in."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, cast, runtime_checkable

import grpc.aio

from airlock.errors import InvalidArgument

_CHUNK_BYTES = 512 * 1024


@runtime_checkable
class BinaryFile(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end of the file."""


Input = bytes | bytearray | memoryview | os.PathLike[str] | BinaryFile | AsyncIterable[bytes] | Iterator[bytes]
"""What a stream can be fed with. A file and an iterator are read in a thread, from where they are to their end."""


class Source:
    """Input that is sent in pieces, once or, where `repeatable`, again from its beginning."""

    def __init__(self, data: Input) -> None:
        """Raise InvalidArgument for anything that is not Input."""
        if isinstance(data, io.TextIOBase):
            raise InvalidArgument("input: the file is open in text mode; open it in binary mode ('rb')")
        if isinstance(data, str) or not isinstance(data, _BYTES | os.PathLike | AsyncIterable | BinaryFile | Iterator):
            raise InvalidArgument(
                "input: bytes, a pathlib.Path, a file open for reading in binary mode or an iterator of bytes is "
                f"expected, not {type(data).__name__}; encode text, and wrap a file name in Path"
            )
        self._data = data
        self._start = None if isinstance(data, AsyncIterable) else _position(data)
        self.repeatable = isinstance(data, _BYTES | os.PathLike) or self._start is not None

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the input at its beginning; yield its pieces, each small enough for one message. Raises OSError."""
        async with contextlib.AsyncExitStack() as stack:
            yield await stack.enter_async_context(contextlib.aclosing(await self._opened(stack)))

    async def _opened(self, stack: contextlib.AsyncExitStack) -> AsyncGenerator[bytes]:
        """Return the pieces; the stack closes what is of no use afterwards."""
        data = self._data
        if isinstance(data, _BYTES):
            return _of_bytes(data)
        if isinstance(data, os.PathLike):
            return _of_file(stack.enter_context(await asyncio.to_thread(Path(data).open, "rb")))
        if isinstance(data, AsyncIterable):
            if isinstance(data, AsyncGenerator):
                stack.push_async_callback(data.aclose)
            return _of_iterator(data)
        if not isinstance(data, BinaryFile):
            return _of_iterator(_in_thread(data))
        if self._start is not None:
            cast(BinaryIO, data).seek(self._start)
        return _of_file(data)


_BYTES = bytes | bytearray | memoryview


def _position(data: object) -> int | None:
    """Return the position of an open file, to which it can seek back; None for anything else."""
    if not hasattr(data, "seekable"):
        return None
    file = cast(BinaryIO, data)
    return file.tell() if file.seekable() else None


async def _of_bytes(data: object) -> AsyncGenerator[bytes]:
    if not isinstance(data, _BYTES):
        raise InvalidArgument(f"input: bytes are expected, and a {type(data).__name__} came")
    whole = bytes(data)
    for at in range(0, len(whole), _CHUNK_BYTES):
        yield whole[at : at + _CHUNK_BYTES]


async def _of_iterator(data: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    async for chunk in data:
        async for piece in _of_bytes(chunk):
            yield piece


async def _in_thread(data: Iterator[bytes]) -> AsyncGenerator[bytes]:
    while (piece := await asyncio.to_thread(next, data, None)) is not None:
        yield piece


async def _of_file(file: BinaryFile) -> AsyncGenerator[bytes]:
    # read() of a pipe waits for as many bytes as were asked for; read1() returns those that are there.
    read = getattr(file, "read1", file.read)
    while True:
        chunk = await asyncio.to_thread(read, _CHUNK_BYTES)
        if chunk is None:
            raise InvalidArgument("input: the file is in non-blocking mode and has no bytes now; use a blocking one")
        if not chunk:
            return
        async for piece in _of_bytes(chunk):
            yield piece


class RequestStream:
    """Sends the requests of a call while the block reads its answers; the call ends with the block.

    A call that ends early stops the requests. If the requests raise, the call is cancelled and the block raises the
    same.

    The status of the call is always the server's. write() of grpc.aio would replace it by INTERNAL "Internal error from
    Core" if a message cannot be sent because the call has ended, so messages go to the call below it.
    """

    def __init__(self, call: Any, requests: AsyncGenerator[Any]) -> None:
        self._call = call
        self._requests = requests
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the call, and the requests with it."""
        self._call.cancel()  # does nothing to a call that has ended
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        if self._failure is not None and isinstance(error, asyncio.CancelledError):
            raise self._failure from None

    async def _send(self) -> None:
        async with contextlib.aclosing(self._requests):
            try:
                async for request in self._requests:
                    await send(self._call, request)
                await self._call.done_writing()
            except CALL_ENDED:
                return  # the call has ended; its status, which the block reads, says why
            except Exception as error:  # of the caller's own input
                self._failure = error
                self._call.cancel()


async def send(call: Any, request: Any) -> None:
    """Send one request of a call; what grpc raises if the call has ended is one of CALL_ENDED."""
    await call.wait_for_connection()
    core = getattr(call, "_cython_call", None)
    if core is None:  # a call with interceptors, which instrumentation of the caller's process may add
        await call.write(request)
    else:
        await core.send_serialized_message(request.SerializeToString())


CALL_ENDED = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What send() raises if the call has ended, whose status says why."""
