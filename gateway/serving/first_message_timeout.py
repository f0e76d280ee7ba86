"""Time limits around each RPC: for its first message, and for its answer to be read.

Nothing of a call is read before its caller is known; then gateway/serving/edge.py asks for the request. For health and
reflection, which need no credential, few requests are read at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_status import rpc_status

from gateway.errors import AirlockError
from gateway.identity.call_credentials import Context
from gateway.serving.edge import status_of
from gateway.serving.incoming import TIMEOUT_S, Incoming, Reads, SendTimeouts, read_request
from gateway.serving.limits import AnonymousConnections, host_of

_OURS = "/gateway.v1."
# A request has at most 4 MiB: 64 MiB of a tenant and of all unknown callers, 512 MiB in all.
_READS_OF_A_TENANT, _READS = 16, 128
UNIDENTIFIED = 768
"""Calls whose credential is being checked."""
ANONYMOUS = 256
"""Calls of health in progress."""
_ANONYMOUS_SEND_S = 5.0
_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS = 4, 16


class FirstMessageTimeout(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Wraps the handler of each method, once; each call has a task of its own."""

    def __init__(self, timeout_s: float = TIMEOUT_S, sending: SendTimeouts | None = None) -> None:
        self._reads = Reads(_READS_OF_A_TENANT, _READS, timeout_s)
        self._anonymous_reads = Reads(_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS, timeout_s)
        self._unidentified = AnonymousConnections(of_connection=256, of_host=384, in_all=UNIDENTIFIED)
        self._anonymous = AnonymousConnections(of_connection=16, of_host=64, in_all=ANONYMOUS)
        self._sending = sending or SendTimeouts()
        self._anonymous_sending = SendTimeouts(min(_ANONYMOUS_SEND_S, self._sending.send_s))
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the wrapped handler of a method; None if there is no such method."""
        method: str = handler_call_details.method
        handler = self._wrapped.get(method)
        if handler is None:
            found = await continuation(handler_call_details)
            if found is None:
                return None
            handler = self._wrapped[method] = (self._ours if method.startswith(_OURS) else self._others)(found)
        return handler

    def _ours(self, handler: Any) -> Any:
        """Return the handler of a method whose edge asks for the caller and then for the request."""
        inner, encode = _function_of(handler), handler.response_serializer

        def begin(context: Context) -> Incoming:
            end = self._unidentified.begin(context.peer())
            incoming = Incoming(
                context, handler.request_deserializer, self._reads, end, streams=handler.request_streaming
            )
            _task().add_done_callback(incoming.close)
            return incoming

        async def answer(_requests: object, context: Context) -> Any:
            incoming = await _or_refused(context, begin)
            raw: bytes = encode(await inner(incoming, context))
            incoming.count_answer(len(raw))
            self._sending.begin(_task(), len(raw))
            return raw

        async def answers(_requests: object, context: Context) -> AsyncIterator[Any]:
            incoming = await _or_refused(context, begin)
            async with contextlib.aclosing(inner(incoming, context)) as messages:
                async for message in messages:
                    raw: bytes = encode(message)
                    incoming.count_answer(len(raw))
                    yield raw

        return _raw_handler(answers if handler.response_streaming else answer, streams=handler.response_streaming)

    def _others(self, handler: Any) -> Any:
        """Return the handler of a method without credentials; its servicer limits a stream of requests."""
        if handler.request_streaming:
            return handler
        inner, encode = _function_of(handler), handler.response_serializer

        async def arrived(context: Context) -> Any:
            host = host_of(context.peer())
            return await read_request(self._anonymous_reads, host, context, handler.request_deserializer)

        async def answer(_requests: object, context: Context) -> Any:
            end = await _or_refused(context, lambda context: self._anonymous.begin(context.peer()))
            _task().add_done_callback(lambda _: end())
            raw: bytes = encode(await inner(await _or_refused(context, arrived), context))
            self._anonymous_sending.begin(_task(), len(raw))
            return raw

        async def writes(_requests: object, context: Context) -> None:
            await inner(await _or_refused(context, arrived), context)

        if not handler.response_streaming:
            return _raw_handler(answer, streams=False)
        if inspect.isasyncgenfunction(inner):
            raise TypeError("a method without credentials must write its answers, so that each has a time limit")
        return grpc.stream_stream_rpc_method_handler(writes, response_serializer=encode)


def _function_of(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _raw_handler(function: Any, *, streams: bool) -> Any:
    """Return a handler that reads its requests itself and returns bytes."""
    make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make(function)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call is served in a task")
    return task


async def _or_refused(context: Context, what: Callable[[Context], Any]) -> Any:
    """Return the result of a function, awaited if necessary; abort the call with the error that it raises."""
    try:
        found = what(context)
        return await found if inspect.isawaitable(found) else found
    except AirlockError as error:
        # grpc-stubs do not know this method, nor that it never returns.
        abort: Callable[[grpc.Status], Awaitable[NoReturn]] = context.abort_with_status  # type: ignore[attr-defined]
        await abort(rpc_status.to_status(status_of(error)))
