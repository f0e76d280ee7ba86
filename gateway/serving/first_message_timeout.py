"""What holds for each RPC before anything is known of it, and after it was answered.

Nothing of a call is read before its caller is known; gateway/serving/edge.py asks for the request then. Calls of health
and reflection take no credential: what they send is read a few at a time. An answer must be taken within a while.
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
from gateway.serving.anonymous_connections import AnonymousConnections, host_of
from gateway.serving.edge import status_of
from gateway.serving.incoming import Incoming, Sending, read_request
from gateway.serving.reads import PATIENCE_S, Reads

_OURS = "/gateway.v1."
# A request has 4 MiB at most: this is 64 MiB of a tenant and of all callers that are not known, and 512 MiB of all.
_READS_OF_A_TENANT, _READS = 16, 128
UNIDENTIFIED = 768
"""Calls whose credential is being looked up."""
ANONYMOUS = 256
"""Calls of health under way."""
_ANONYMOUS_SEND_S = 5.0
_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS = 4, 16


class FirstMessageTimeout(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Wraps the handler of each method, once; each call has a task of its own."""

    def __init__(self, patience_s: float = PATIENCE_S, sending: Sending | None = None) -> None:
        self._reads = Reads(_READS_OF_A_TENANT, _READS, patience_s)
        self._anonymous_reads = Reads(_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS, patience_s)
        self._unidentified = AnonymousConnections(of_connection=256, of_host=384, in_all=UNIDENTIFIED)
        self._anonymous = AnonymousConnections(of_connection=16, of_host=64, in_all=ANONYMOUS)
        self._sending = sending or Sending()
        self._anonymous_sending = Sending(min(_ANONYMOUS_SEND_S, self._sending.send_s))
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
            if found is None:
                return None
            handler = self._wrapped[method] = (self._ours if method.startswith(_OURS) else self._others)(found)
        return handler

    def _ours(self, handler: Any) -> Any:
        """Return the handler of a method whose edge asks for the caller, and then for the request."""
        inner, encode = _function_of(handler), handler.response_serializer

        def begin(context: Context) -> Incoming:
            end = self._unidentified.begin(context.peer())
            incoming = Incoming(
                context, handler.request_deserializer, self._reads, end, streams=handler.request_streaming
            )
            _task().add_done_callback(incoming.over)
            return incoming

        async def answer(_requests: object, context: Context) -> Any:
            incoming = await _or_refused(context, begin)
            raw: bytes = encode(await inner(incoming, context))
            incoming.answers(len(raw))
            self._sending.begin(_task(), len(raw))
            return raw

        async def answers(_requests: object, context: Context) -> AsyncIterator[Any]:
            incoming = await _or_refused(context, begin)
            async with contextlib.aclosing(inner(incoming, context)) as messages:
                async for message in messages:
                    raw: bytes = encode(message)
                    incoming.answers(len(raw))
                    yield raw

        return _raw_handler(answers if handler.response_streaming else answer, streams=handler.response_streaming)

    def _others(self, handler: Any) -> Any:
        """Return the handler of a method that takes no credential; a stream of requests is its servicer's to bound."""
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
            raise TypeError("a method that takes no credential writes its answers: each has a time to be taken")
        return grpc.stream_stream_rpc_method_handler(writes, response_serializer=encode)


def _function_of(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _raw_handler(function: Any, *, streams: bool) -> Any:
    """Return a handler that reads for itself and whose answers are bytes."""
    make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make(function)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call is served in a task")
    return task


async def _or_refused(context: Context, what: Callable[[Context], Any]) -> Any:
    """Return what a function returns, or an awaitable of it; end the call with its error where it raises one."""
    try:
        found = what(context)
        return await found if inspect.isawaitable(found) else found
    except AirlockError as error:
        # grpc-stubs do not know this method, nor that it never returns.
        abort: Callable[[grpc.Status], Awaitable[NoReturn]] = context.abort_with_status  # type: ignore[attr-defined]
        await abort(rpc_status.to_status(status_of(error)))
