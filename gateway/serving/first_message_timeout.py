"""Time limits around each RPC: for its first message, and for its answer to be read.

Nothing of a call is read before its caller is known; then gateway/serving/edge.py asks for the request. For health and
reflection, which need no credential, few requests are read at a time.
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from gateway.errors import AirlockError
from gateway.identity.call_credentials import Context
from gateway.serving.edge import abort_with
from gateway.serving.incoming import TIMEOUT_S, Incoming, Reads, SendTimeouts, call_task, read_request
from gateway.serving.limits import AnonymousConnections, host_of
from gateway.telemetry.rpc import OURS, WrappingInterceptor

# A request has at most 4 MiB: 64 MiB of a tenant and of all unknown callers, 512 MiB in all.
_READS_OF_A_TENANT, _READS = 16, 128
UNIDENTIFIED = 768
"""Calls whose credential is being checked."""
ANONYMOUS = 256
"""Calls of health in progress."""
_ANONYMOUS_SEND_S = 5.0
_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS = 4, 16


class FirstMessageTimeout(WrappingInterceptor):
    """Wraps the handler of each method; each call has a task of its own."""

    def __init__(self, timeout_s: float = TIMEOUT_S, sending: SendTimeouts | None = None) -> None:
        super().__init__(lambda name, handler: (self._ours if name.startswith(OURS) else self._others)(handler))
        self._reads = Reads(_READS_OF_A_TENANT, _READS, timeout_s)
        self._anonymous_reads = Reads(_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS, timeout_s)
        self._unidentified = AnonymousConnections(of_connection=256, of_host=384, in_all=UNIDENTIFIED)
        self._anonymous = AnonymousConnections(of_connection=16, of_host=64, in_all=ANONYMOUS)
        self._sending = sending or SendTimeouts()
        self._anonymous_sending = SendTimeouts(min(_ANONYMOUS_SEND_S, self._sending.send_s))

    def _ours(self, handler: Any) -> Any:
        """Return the handler of a method whose edge asks for the caller and then for the request."""
        inner, encode = _function_of(handler), handler.response_serializer

        def begin(context: Context) -> Incoming:
            end = self._unidentified.one(context.peer()).close
            decode, streams = handler.request_deserializer, handler.request_streaming
            incoming = Incoming(context, decode, self._reads, end, streams=streams)
            call_task().add_done_callback(incoming.close)
            return incoming

        async def answer(_requests: object, context: Context) -> Any:
            incoming = await _or_refused(context, begin)
            raw: bytes = encode(await inner(incoming, context))
            incoming.count_answer(len(raw))
            self._sending.begin(call_task(), len(raw))
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
            counted = await _or_refused(context, lambda context: self._anonymous.one(context.peer()))
            call_task().add_done_callback(lambda _: counted.close())
            raw: bytes = encode(await inner(await _or_refused(context, arrived), context))
            self._anonymous_sending.begin(call_task(), len(raw))
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


async def _or_refused(context: Context, what: Callable[[Context], Any]) -> Any:
    """Return the result of a function, awaited if necessary; abort the call with the error that it raises."""
    try:
        found = what(context)
        return await found if inspect.isawaitable(found) else found
    except AirlockError as error:
        await abort_with(context, error)
