"""The one place where the client writes to a stream: requests go out beside the answers that come in.

The status of the call is the server's, however the call ends. write() of grpc.aio does not keep it: a message that
cannot be sent, because the call has ended, replaces the status by INTERNAL "Internal error from Core", also one that
the server has sent already. So messages are handed to the call below it, which leaves the status alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

import grpc.aio


class RequestStream:
    """Sends the requests of a call while the block reads its answers; the call ends with the block.

    A call that ends early stops the requests. Where the requests raise, the call is cancelled and the block raises
    what they raised.
    """

    def __init__(self, call: Any, requests: AsyncGenerator[Any]) -> None:
        self._call = call
        self._requests = requests
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        """Begin to send."""
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
                    await self._write(request)
                await self._call.done_writing()
            except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
                return  # the call has ended; its status, which the block reads, says why
            except Exception as error:  # of the caller's own input
                self._failure = error
                self._call.cancel()

    async def _write(self, request: Any) -> None:
        await self._call.wait_for_connection()
        core = getattr(self._call, "_cython_call", None)
        if core is None:  # a call with interceptors, which instrumentation of the caller's process may add
            await self._call.write(request)
        else:
            await core.send_serialized_message(request.SerializeToString())
