"""The wire under the Python client: one channel, the key on every call, and statuses turned back into errors."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Self

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gateway.client.connection import CLOSED, Connection
from gateway.client.messages import message
from gateway.client.retry import DEFAULT_RETRY, Attempts, Retry, RetryBudget
from gateway.client.tls import AMBIENT, Tls
from gateway.errors import (
    AirlockError,
    ClientClosed,
    DeadlineExceeded,
    InProgress,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    TooLarge,
    Unauthenticated,
    Unavailable,
    all_errors,
)
from gateway.telemetry.client_span import calling, with_trace

_PAGE_LIMIT = 200
_ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
# A gateway that is back is found within seconds; grpc itself would come to wait for two minutes.
_RECONNECT_LIMIT_MS = 5000
_OPTIONS = (
    ("grpc.max_receive_message_length", _ANSWER_LIMIT_BYTES),
    # Else all clients of a process would share one connection, and wait for each other's turn at its other end.
    ("grpc.use_local_subchannel_pool", 1),
    # Else a gateway that was gone for a while is looked for a second later than the first attempts (retry.py).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_LIMIT_MS),
    # A peer that is gone without a word is found in a call. The gateway lets clients ping so often (listening.py).
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_ERRORS = all_errors()
# For a status that grpc itself made and that therefore carries no reason; other codes stand for several classes.
_BY_CODE: Mapping[grpc.StatusCode, type[AirlockError]] = {
    kind.code: kind
    for kind in (
        Unauthenticated,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
    )
} | {
    # A client that cancels a call gets no status, so this one is from the gateway's grpc, which stops or is overloaded.
    grpc.StatusCode.CANCELLED: Unavailable
}

# What grpc.aio makes of a call that ended while it was writing; RequestStream avoids it unless there are interceptors.
_LOST_STATUS = "Internal error from Core"
# As grpc writes them: "Received message larger than max (5000064 vs. 4194304)".
_SIZES = re.compile(r"\((\d+) vs\. (\d+)\)")
_TIMEOUT_LIMIT_S = 366 * 86_400.0

Secret = str | Callable[[], str]
"""An API key or a token; or what returns one that is good now, and does not wait."""


OnOutput = Callable[[str, bytes], Awaitable[None] | None]
"""Gets "stdout" or "stderr", and bytes in order of arrival; a program waits until it returns, a tool call does not."""


class OfCaller(Exception):
    """Carries what the caller's own `on_output` raised past the handlers of the client's own errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def give(on_output: OnOutput, stream: str, data: bytes) -> None:
    """Call a function, or a coroutine function, with output. Raises OfCaller."""
    try:
        if inspect.isawaitable(taken := on_output(stream, data)):
            await taken
    except Exception as error:
        raise OfCaller(error) from error


class Wire:
    """A connection to a gateway; an async context manager."""

    def __init__(
        self, address: str, api_key: Secret = "", *, tls: Tls | None = None, retry: Retry | None = DEFAULT_RETRY
    ) -> None:
        """Take where the gateway is and who calls; `retry` says how what is safe is tried again, None never."""
        self._retry = retry
        self._budget = RetryBudget()
        self._secret = api_key
        if isinstance(api_key, str):
            _check_secret(api_key)
        tls = tls or AMBIENT.get()
        if tls is None:
            self._connection = Connection(address, None, _OPTIONS)
        else:
            self._connection = Connection(address, tls.credentials(), (*_OPTIONS, *tls.options()))
        self._stubs: dict[Callable[[Any], Any], Any] = {}

    @property
    def _channel(self) -> Any:
        return self._connection.channel()

    def _stub(self, kind: Callable[[Any], Any]) -> Any:
        channel = self._channel  # raises where it cannot be used, also where the stub is there
        if kind not in self._stubs:
            self._stubs[kind] = kind(channel)
        return self._stubs[kind]

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call: a key, a token of now, or nothing where a certificate says who calls."""
        secret = self._secret if isinstance(self._secret, str) else _check_secret(self._secret())
        return (("authorization", f"Bearer {secret}"),) if secret else ()

    async def __aenter__(self) -> Self:
        """Bind the client to this event loop; it connects on the first call. Raises ClientClosed, WrongEventLoop."""
        self._connection.channel()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the connection."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; calls under way end with ClientClosed. Closing again does nothing."""
        await self._connection.aclose()

    async def _unary(self, method: Any, request: Any, timeout_s: float | None = None, *, safe: bool = False) -> Any:
        """Return the answer of a call. One that is `safe` is tried again; `timeout_s` is for all attempts together."""
        _check_timeout(timeout_s)
        attempts = Attempts(self._retry if safe else None, budget=self._budget)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            try:
                return await self._once(method, request, left_s)
            except (Unavailable, Overloaded, InProgress) as error:
                await pause(attempts.pause_s(error), deadline_s, error)

    async def _ask(self, method: Any, kind: Callable[..., Any], /, **fields: Any) -> Any:
        """Return the answer of a call that is safe to repeat; `kind` and `fields` are its request."""
        return await self._unary(method, message(kind, **fields), safe=True)

    async def _listed(
        self,
        method: Any,
        kind: Callable[..., Any],
        items: str,
        /,
        *,
        limit: int | None = None,
        page_limit: int = _PAGE_LIMIT,
        **fields: Any,
    ) -> AsyncIterator[Any]:
        """Yield what a list's pages have in the field `items`, at most `limit`; a page is fetched when needed."""
        token, left = "", limit
        while left is None or left > 0:
            size = page_limit if left is None else min(page_limit, left)
            page = await self._ask(method, kind, page_size=size, page_token=token, **fields)
            found = getattr(page, items)
            for one in found:
                yield one
            token, left = page.next_page_token, None if left is None else left - len(found)
            if not token:
                return

    def _attempts(self) -> Attempts:
        return Attempts(self._retry, budget=self._budget)

    async def _once(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        with self._translated(), calling(method, self._metadata) as metadata:
            answer = await method(request, metadata=metadata, timeout=timeout_s)
        self._budget.succeeded()
        return answer

    async def _stream(
        self,
        method: Any,
        request: Any,
        timeout_s: float | None = None,
        *,
        safe: bool = False,
    ) -> AsyncIterator[Any]:
        """Yield the answers of a call. One that is `safe` is tried again until its first answer has come."""
        _check_timeout(timeout_s)
        attempts = Attempts(self._retry if safe else None, budget=self._budget)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        begun = False
        while True:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            try:
                with self._translated():
                    async for answer in method(request, metadata=with_trace(self._metadata), timeout=left_s):
                        begun = True
                        yield answer
            except AirlockError as error:
                if begun:
                    raise
                await pause(attempts.pause_s(error), deadline_s, error)
            else:
                return

    async def _resumed(
        self, method: Any, request_now: Callable[[], Any], *, patient: bool = True
    ) -> AsyncIterator[Any]:
        """Yield the answers of a stream that is begun again where it broke: `request_now` says where that is.

        Unless `patient`, until its first answer it is tried again no longer than a call.
        """
        attempts = Attempts(self._retry, budget=self._budget)
        begun = patient
        while True:
            try:
                async for answer in self._stream(method, request_now()):
                    attempts.progressed()
                    begun = True
                    yield answer
            except (Unavailable, Overloaded) as error:
                pause_s = attempts.resume_pause_s(error) if begun else attempts.pause_s(error)
                await pause(pause_s, None, error)
            else:
                return

    def _open(self, method: Any) -> Any:
        """Return a call whose messages are sent one by one."""
        return method(metadata=with_trace(self._metadata))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the errors of gateway.errors for those of grpc."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise_error(error)
        except grpc.aio.UsageError as error:  # the channel is closed
            raise ClientClosed(CLOSED) from error
        except asyncio.CancelledError as error:
            # Closing the channel cancels its calls, and that is no cancellation of the task that waits for one.
            task = asyncio.current_task()
            if not self._connection.closed or (task is not None and task.cancelling()):
                raise
            raise ClientClosed("this client was closed while the call was under way") from error


def _check_secret(secret: str) -> str:
    if not (secret.isascii() and secret.isprintable()):
        raise Unauthenticated("the key holds characters that no key has: is there a line end in it?")
    return secret


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not 0 <= timeout_s <= _TIMEOUT_LIMIT_S:  # NaN too
        raise InvalidArgument(f"timeout_s {timeout_s!r}: 0 to {_TIMEOUT_LIMIT_S:.0f} s; leave it out for none")


def raise_error(error: grpc.aio.AioRpcError) -> NoReturn:
    """Raise the class of gateway.errors that a status stands for."""
    raise error_of(error) from error


def error_of(error: grpc.aio.AioRpcError) -> AirlockError:
    """Return the error of gateway.errors that a status stands for."""
    said = error.details() or error.code().name
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    details = status.details if status else ()
    for detail in details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.reason in _ERRORS:
            kind = _ERRORS[info.reason]
            if issubclass(kind, Overloaded | InProgress):
                return kind(said, _retry_after_s(details), **dict(info.metadata))
            made = kind(said, **dict(info.metadata))
            return made.of_fields(_violations(details)) if isinstance(made, InvalidArgument) else made
    if error.code() is grpc.StatusCode.INTERNAL and said == _LOST_STATUS:
        return Unavailable("the call ended while a message was being sent, and grpc lost its status; try again")
    kind = _BY_CODE.get(error.code(), AirlockError)
    if kind is Overloaded and (too_large := _too_large(said)):
        return too_large
    return kind(f"{error.code().name}: {said}")


def _too_large(said: str) -> TooLarge | None:
    """Return the error of a message that either side did not take, by what grpc says of it; None for anything else."""
    if "larger than max" not in said:
        return None
    sizes = _SIZES.search(said)
    if sizes is None:
        return TooLarge(said)
    size_bytes, limit_bytes = (int(size) for size in sizes.groups())
    # Grpc says CLIENT of what came here, an answer.
    what = "the answer" if "CLIENT" in said else "the request"
    text = f"{what} has {size_bytes:,} bytes, and a message {limit_bytes:,} at most; files of any size go by themselves"
    return TooLarge(text, size_bytes=str(size_bytes), limit_bytes=str(limit_bytes))


def _violations(details: Iterable[Packed]) -> dict[str, str]:
    request = error_details_pb2.BadRequest()
    found = any(detail.Unpack(request) for detail in details)
    return {one.field: one.description for one in request.field_violations} if found else {}


async def pause(pause_s: float | None, deadline_s: float | None, error: AirlockError) -> None:
    """Wait before the next attempt; raise the error where there is none, or no time for it."""
    if (
        isinstance(error, ClientClosed)
        or pause_s is None
        or (deadline_s is not None and time.monotonic() + pause_s >= deadline_s)
    ):
        raise error
    await asyncio.sleep(pause_s)


def _retry_after_s(details: Iterable[Packed]) -> float | None:
    retry = error_details_pb2.RetryInfo()
    found = any(detail.Unpack(retry) for detail in details)
    return retry.retry_delay.ToMicroseconds() / 1_000_000 if found else None
