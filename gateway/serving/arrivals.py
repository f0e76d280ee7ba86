"""Calls whose request has not come yet: nobody has looked at them, and they hold a place of the server's all the same.

Who sends the beginning of calls and never a request needs no credential for it. So a request must come within a while,
and sooner when there are many: then the oldest go, for an honest one comes with the call's beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc.aio import EOF  # type: ignore[attr-defined]  # grpc-stubs do not know it
from grpc_status import rpc_status

from gateway.errors import AirlockError, DeadlineExceeded, InvalidArgument
from gateway.identity.presented import Context
from gateway.serving.edge import not_decoded, status_of

PATIENCE_S = 20.0
MANY = 256
# With this many that are honest, a loop that is late finds their requests when it gets to them.
_PATIENCE_WITH_MANY_S = 1.0


class Arrivals(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Ends calls whose request does not come. A handler is wrapped once; each call has a task of its own."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        # When each began, as loop.time(), the oldest first.
        self._waiting: dict[asyncio.Task[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a method, wrapped; None where there is no such method."""
        method: str = handler_call_details.method
        handler = self._wrapped.get(method)
        if handler is None:
            found = await continuation(handler_call_details)
            # A stream of requests is its servicer's from the start, who asks for a credential before it reads.
            if found is None or found.request_streaming:
                return found
            handler = self._wrapped[method] = self._around(found)
        return handler

    def _around(self, handler: Any) -> Any:
        """Return a handler that reads the request itself: grpc.aio would wait for it where nothing can end that."""
        inner = handler.unary_stream or handler.unary_unary

        async def answer(_requests: object, context: Context) -> Any:
            return await inner(await self._request(context), context)

        async def answers(_requests: object, context: Context) -> AsyncIterator[Any]:
            async with contextlib.aclosing(inner(await self._request(context), context)) as messages:
                async for message in messages:
                    yield message

        async def writes(_requests: object, context: Context) -> None:
            await inner(await self._request(context), context)

        if not handler.response_streaming:
            make: Any = grpc.stream_unary_rpc_method_handler
            made: Any = answer
        else:
            make = grpc.stream_stream_rpc_method_handler
            made = answers if inspect.isasyncgenfunction(inner) else writes
        return make(
            made,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _request(self, context: Context) -> Any:
        """Return the request of a call, in its task, once it is there."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is served in a task")
        self._expect(task)
        try:
            request: Any = await context.read()
        except asyncio.CancelledError:
            # Where the peer went away too, it is gone, and nothing is left to tell it.
            if task in self._waiting or task.uncancel():
                raise
            await _refuse(context, DeadlineExceeded("the call's request did not come"))
        except DecodeError as error:
            await _refuse(context, not_decoded(error))
        finally:
            self._waiting.pop(task, None)
        if request is EOF:
            await _refuse(context, InvalidArgument("the call has no request"))
        return request

    def _expect(self, task: asyncio.Task[Any]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if len(self._waiting) >= MANY:
            self._end_older(now - _PATIENCE_WITH_MANY_S)
        self._waiting[task] = now
        if self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._end_older(loop.time() - self._patience_s)
        oldest = next(iter(self._waiting.values()), None)
        self._timer = None if oldest is None else loop.call_at(oldest + self._patience_s, self._look)

    def _end_older(self, than: float) -> None:
        """End what began before, or at, a moment."""
        while self._waiting:
            task, began = next(iter(self._waiting.items()))
            if began > than:
                return
            del self._waiting[task]
            task.cancel()


async def _refuse(context: Context, error: AirlockError) -> NoReturn:
    # grpc-stubs do not know this method, nor that it never returns.
    abort: Callable[[grpc.Status], Awaitable[NoReturn]] = context.abort_with_status  # type: ignore[attr-defined]
    await abort(rpc_status.to_status(status_of(error)))
