"""Calls to this process' own services without a socket, for the HTTP listener (gateway/http).

A call passes the interceptors and the edge of the grpc server, with the metadata, the address and the certificate of
the HTTP request that it is made for: the same authentication, scopes, admission, checks, telemetry and errors.

`InProcessServices` takes the services like a grpc server. `call()` makes one RPC with bytes at both ends; `channel()`
returns as much of a grpc.aio channel as gateway.client needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from grpc.aio import EOF  # type: ignore[attr-defined]  # grpc-stubs do not know it

from gateway.support.current_tenant import CURRENT_TENANT

log = structlog.get_logger(__name__)
Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Origin:
    """Where a call comes from: the peer's address as grpc writes it, and its certificate as `auth_context` has it."""

    peer: str
    certificate: Mapping[str, Sequence[bytes]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Method:
    """What interceptors read of a call before it is served."""

    method: str
    invocation_metadata: Metadata


class _Pipe:
    """Carries messages one at a time: `put` waits until the one before was read."""

    def __init__(self) -> None:
        self._message: Any = EOF
        self._closed = False
        self._reading = False
        self._changed = asyncio.Event()

    async def put(self, message: Any) -> None:
        """Raise asyncio.InvalidStateError once the pipe is closed."""
        while self._message is not EOF and not self._closed:
            await self._change()
        if self._closed:
            raise asyncio.InvalidStateError("the call has ended")
        self._message = message
        self._changed.set()

    async def get(self) -> Any:
        """Return the next message, EOF after the last one of a closed pipe."""
        self._reading = True
        self._changed.set()
        while self._message is EOF and not self._closed:
            await self._change()
        message, self._message = self._message, EOF
        self._reading = False
        self._changed.set()
        return message

    async def wanted(self) -> None:
        """Wait until the reader is done with the message before and wants the next one, or the pipe is closed."""
        while (self._message is not EOF or not self._reading) and not self._closed:
            await self._change()

    def close(self, *, drop: bool = False) -> None:
        self._closed = True
        if drop:
            self._message = EOF
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class InProcessServices:
    """The services of this process, with the interceptors of its grpc server."""

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Do nothing: every method is registered too."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        self._handlers |= {f"/{service_name}/{name}": handler for name, handler in method_handlers.items()}

    async def handler(self, method: str, metadata: Metadata) -> Any:
        """Return the handler of a method with the interceptors around it; None if there is no such method."""

        async def found(details: Any) -> Any:
            return self._handlers.get(details.method)

        continuation: Callable[[Any], Any] = found
        for interceptor in reversed(self._interceptors):
            continuation = partial(interceptor.intercept_service, continuation)
        return await continuation(_Method(method, metadata))

    def call(
        self,
        method: str,
        origin: Origin,
        metadata: Metadata = (),
        requests: AsyncIterator[bytes] | None = None,
        timeout_s: float | None = None,
    ) -> Call:
        """Begin an RPC, by its full name such as /package.Service/Method.

        `requests` is read when the service wants the next request, and so not before the caller is authenticated;
        without it they are sent by `Call.send`.
        """
        return Call(_Exchange(self, method, origin, metadata, requests, timeout_s))

    def channel(self, origin: Origin) -> Channel:
        """Return a channel for calls that come from `origin`."""
        return Channel(self, origin)


class _Exchange:
    """One RPC between its two ends. It is served in a task and a context of its own, as by grpc."""

    def __init__(
        self,
        services: InProcessServices,
        method: str,
        origin: Origin,
        metadata: Metadata,
        requests: AsyncIterator[bytes] | None,
        timeout_s: float | None,
    ) -> None:
        self.method = method
        self.origin = origin
        self.metadata = tuple(metadata)
        self.sent = _Pipe()
        self.answers = _Pipe()
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: tuple[tuple[str, str | bytes], ...] = ()
        self._services = services
        self._requests = requests
        self.context = contextvars.Context()
        loop = asyncio.get_running_loop()
        self._until_s = None if timeout_s is None else loop.time() + timeout_s
        self._timer = None if timeout_s is None else loop.call_later(timeout_s, self._expire)
        self._task = loop.create_task(self._serve(), name=f"rpc {method}", context=self.context)

    # What a handler needs of its context.

    async def read(self) -> Any:
        """Return the next request as bytes, EOF after the last one."""
        if self._requests is not None:
            return await anext(self._requests, EOF)
        return await self.sent.get()

    def peer(self) -> str:
        return self.origin.peer

    def invocation_metadata(self) -> Metadata:
        return self.metadata

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self.origin.certificate

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        return None if self._until_s is None else max(0.0, self._until_s - asyncio.get_running_loop().time())

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        self.end(status.code, status.details, status.trailing_metadata)
        raise grpc.aio.AbortError

    # What the caller's end needs.

    def end(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        """Set the status, unless there is one."""
        if self.code is None:
            self.code, self.details, self.trailing = code, details, tuple(trailing or ())

    def cancel(self) -> None:
        if not self._task.done() and not self._task.get_loop().is_closed():
            self.end(grpc.StatusCode.CANCELLED, "the call was cancelled")
            self._task.cancel()

    def _expire(self) -> None:
        if not self._task.done():
            self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._task.cancel()

    async def _serve(self) -> None:
        try:
            await self._answer()
            self.end(grpc.StatusCode.OK)
        except grpc.aio.AbortError:
            pass  # abort_with_status has set the status
        except asyncio.CancelledError:
            # By the caller's end, which has set the status; or by the edge, when the answer is not read in time.
            self.end(grpc.StatusCode.CANCELLED, "the gateway ended the call")
        except Exception as error:
            self.end(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}")
            log.exception("fault in a call", method=self.method)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.sent.close(drop=True)
            # As by grpc, an answer that was not read is dropped when the call fails.
            self.answers.close(drop=self.code is not grpc.StatusCode.OK)

    async def _answer(self) -> None:
        handler = await self._services.handler(self.method, self.metadata)
        if handler is None:
            self.end(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {self.method}")
        elif handler.response_streaming:
            async with contextlib.aclosing(handler.stream_stream(None, self)) as answers:
                async for answer in answers:
                    await self._send(answer)
        else:
            await self._send(await handler.stream_unary(None, self))

    async def _send(self, answer: bytes) -> None:
        """Send an answer; it counts as unread until its reader wants the next one, or the end of the call."""
        await self.answers.put(answer)
        await self.answers.wanted()


class Call:
    """The caller's end of an RPC: what gateway.client uses of grpc.aio's calls. A dropped one is cancelled."""

    def __init__(
        self,
        exchange: _Exchange,
        encode: Callable[[Any], bytes] = bytes,
        decode: Callable[[bytes], Any] = bytes,
    ) -> None:
        self._exchange = exchange
        self._encode = encode
        self._decode = decode
        self._cancelled = False

    def __del__(self) -> None:
        self._exchange.cancel()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        """Return the next answer; raises grpc.aio.AioRpcError at the end of a call that failed."""
        answer = await self.read()
        if answer is EOF:
            raise StopAsyncIteration
        return answer

    def __await__(self) -> Generator[Any, None, Any]:
        return self._only_answer().__await__()

    async def _only_answer(self) -> Any:
        answer = await self.read()
        if answer is EOF:
            raise self._error(grpc.StatusCode.INTERNAL, "the call ended without an answer")
        await self.read()
        return answer

    @property
    def tenant(self) -> str:
        """The tenant of the caller, "" until it is known."""
        return self._exchange.context.get(CURRENT_TENANT) or ""

    async def read(self) -> Any:
        """Return the next answer, EOF after the last one. The one before counts as unread until then."""
        exchange = self._exchange
        try:
            answer = await exchange.answers.get()
        except asyncio.CancelledError:
            exchange.cancel()
            raise
        if answer is not EOF:
            return self._decode(answer)
        if self._cancelled and exchange.code is grpc.StatusCode.CANCELLED:
            raise asyncio.CancelledError  # as by grpc, for the end that cancelled it
        if exchange.code is not grpc.StatusCode.OK:
            raise self._error(exchange.code or grpc.StatusCode.UNKNOWN, exchange.details)
        return EOF

    def _error(self, code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
        trailing = grpc.aio.Metadata(*self._exchange.trailing)
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details, None)

    async def wait_for_connection(self) -> None:
        """Do nothing: there is no connection."""

    async def write(self, request: Any) -> None:
        """Send a request; asyncio.InvalidStateError if the call has ended."""
        await self._exchange.sent.put(self._encode(request))

    async def done_writing(self) -> None:
        self._exchange.sent.close()

    def cancel(self) -> None:
        self._cancelled = True
        self._exchange.cancel()


class Channel:
    """As much of a grpc.aio channel as gateway.client needs."""

    def __init__(self, services: InProcessServices, origin: Origin) -> None:
        self._services = services
        self._origin = origin

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any) -> Callable[..., Call]:
        """Return a function that begins calls of a method."""

        def begin(request: Any = None, *, metadata: Metadata = (), timeout: float | None = None) -> Call:
            requests = None if request is None else _one(request_serializer(request))
            exchange = _Exchange(self._services, method, self._origin, metadata, requests, timeout)
            return Call(exchange, request_serializer, response_deserializer)

        return begin

    unary_stream = stream_unary = stream_stream = unary_unary

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: the services are this process' own."""


async def _one(request: bytes) -> AsyncIterator[bytes]:
    yield request
