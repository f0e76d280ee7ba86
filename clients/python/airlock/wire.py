"""What all calls of the Python client share: one channel, the credential, retries, and errors made of statuses."""

import asyncio
import contextlib
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf import message_factory

from airlock.client_span import calling, with_trace
from airlock.connection import CLOSED, Connection, Tls
from airlock.errors import (
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
from airlock.messages import Fields, message
from airlock.retry import DEFAULT_RETRY, Attempts, Retry, RetryBudget

# A gateway that is back is found within seconds; grpc itself would come to wait for two minutes.
_RECONNECT_LIMIT_MS = 5000
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
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
# For a status that grpc itself made, which has no reason; other codes stand for several classes.
_OF_A_CODE = (Unauthenticated, InvalidArgument, NotFound, PermissionDenied, Overloaded, Unavailable, DeadlineExceeded)
_BY_CODE: Mapping[str, type[AirlockError]] = {kind.code.name: kind for kind in _OF_A_CODE} | {
    # A client that cancels a call gets no status, so this one is from the gateway's grpc, which stops or is overloaded.
    "CANCELLED": Unavailable
}

# What grpc.aio makes of a call that ended while it was writing; RequestStream avoids it unless there are interceptors.
_LOST_STATUS = "Internal error from Core"
# As grpc writes them: "Received message larger than max (5000064 vs. 4194304)".
_SIZES = re.compile(r"\((\d+) vs\. (\d+)\)")
_TIMEOUT_LIMIT_S = 366 * 86_400.0

Secret = str | Callable[[], str]
"""An API key or a token, or a function that returns a current one without waiting."""

OnOutput = Callable[[str, bytes], Awaitable[None] | None]
"""Gets "stdout" or "stderr", and bytes in order of arrival; a program waits until it returns, a tool call does not."""

T = TypeVar("T")


class OfCaller(Exception):
    """Carries what the caller's own `on_output` raised past the handlers of the client's own errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def give(on_output: OnOutput, stream: str, data: bytes) -> None:
    """Call a function or coroutine function with output. Raises OfCaller."""
    try:
        if inspect.isawaitable(taken := on_output(stream, data)):
            await taken
    except Exception as error:
        raise OfCaller(error) from error


class Wire(Connection):
    """A connection to a gateway; an async context manager."""

    def __init__(
        self, address: str, api_key: Secret = "", *, tls: Tls | None = None, retry: Retry | None = DEFAULT_RETRY
    ) -> None:
        """Take the gateway's address and the caller's credential; without `retry` nothing is tried again."""
        super().__init__(address, tls, _OPTIONS)
        self._retry = retry
        self._budget = RetryBudget()
        self._secret = api_key
        if isinstance(api_key, str):
            _check_secret(api_key)
        self._methods: dict[type, Any] = {}

    def _method(self, kind: type) -> Any:
        """Return the method whose requests are messages of a type."""
        channel = self._open_channel()  # raises if it cannot be used, also for a known method
        if kind not in self._methods:
            descriptor: Any = kind.DESCRIPTOR  # type: ignore[attr-defined]
            name = descriptor.name.removesuffix("Request")
            services = descriptor.file.services_by_name.values()
            service = next(one for one in services if name in one.methods_by_name)
            method = service.methods_by_name[name]
            sides = ("stream" if one else "unary" for one in (method.client_streaming, method.server_streaming))
            self._methods[kind] = getattr(channel, "_".join(sides))(
                f"/{service.full_name}/{name}",
                request_serializer=kind.SerializeToString,  # type: ignore[attr-defined]
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
            )
        return self._methods[kind]

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """The credential that goes with each call: a key, a current token, or none with a client certificate."""
        secret = self._secret if isinstance(self._secret, str) else _check_secret(self._secret())
        return (("authorization", f"Bearer {secret}"),) if secret else ()

    async def _again(
        self,
        attempt: Callable[[float | None], Awaitable[T]],
        timeout_s: float | None = None,
        *,
        safe: bool = True,
        patient: bool = False,
    ) -> T:
        """Return the result of `attempt`, which gets the seconds that are left of `timeout_s`.

        A `safe` one is repeated after failures: as often as a call, or if `patient` for as long as a stream is resumed.
        """
        _check_timeout(timeout_s)
        attempts = Attempts(self._retry if safe else None, budget=self._budget)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                return await attempt(None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0))
            except (Unavailable, Overloaded, InProgress) as error:
                pause_s = attempts.resume_pause_s(error) if patient else attempts.pause_s(error)
                await pause(pause_s, deadline_s, error)

    async def _unary(self, method: Any, request: Any, timeout_s: float | None = None, *, safe: bool = False) -> Any:
        """Return the answer of a call; a `safe` one is retried. `timeout_s` covers all attempts together."""

        async def once(left_s: float | None) -> Any:
            with self._translated(), calling(method, self._metadata) as metadata:
                answer = await method(request, metadata=metadata, timeout=left_s)
            self._budget.succeeded()
            return answer

        return await self._again(once, timeout_s, safe=safe)

    async def _ask(self, kind: type, /, *, timeout_s: float | None = None, safe: bool = True, **fields: Any) -> Any:
        """Return the answer to a request of a type with these fields."""
        return await self._unary(self._method(kind), message(kind, **fields), timeout_s, safe=safe)

    async def _listed(
        self,
        made: Callable[[Any], T],
        kind: type,
        items: str,
        /,
        *,
        limit: int | None = None,
        page_limit: int = 200,
        **fields: Any,
    ) -> AsyncIterator[T]:
        """Yield what `made` makes of the field `items` of a list's pages, at most `limit`; pages come when needed."""
        token, left = "", limit
        while left is None or left > 0:
            size = page_limit if left is None else min(page_limit, left)
            page = await self._ask(kind, page_size=size, page_token=token, **fields)
            found = getattr(page, items)
            for one in found:
                yield made(one)
            token, left = page.next_page_token, None if left is None else left - len(found)
            if not token:
                return

    async def _stream(self, method: Any, request: Any, timeout_s: float | None = None) -> AsyncIterator[Any]:
        _check_timeout(timeout_s)
        with self._translated():
            call = method(request, metadata=with_trace(self._metadata), timeout=timeout_s)
            try:
                async for answer in call:
                    yield answer
            finally:
                call.cancel()  # if the caller leaves early; does nothing to a call that has ended

    async def _resumed(
        self,
        kind: type,
        fields: Fields,
        *,
        patient: bool = True,
        resume: bool = True,
        begin: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Any]:
        """Yield the answers of a stream; where it breaks, go on with those to a request with `fields` as they are then.

        The caller updates the fields as answers come; `begin` is called before each request. Before the first answer it
        is tried again as often as a call unless `patient`. Without `resume` it is not tried again after that.
        """
        attempts = Attempts(self._retry, budget=self._budget)
        begun = False
        while True:
            begin()
            request: Any = message(kind, **fields)
            try:
                async for answer in self._stream(self._method(kind), request):
                    attempts.progressed()
                    begun = True
                    yield answer
            except (Unavailable, Overloaded) as error:
                if begun and not resume:
                    raise
                pause_s = attempts.resume_pause_s(error) if begun or patient else attempts.pause_s(error)
                await pause(pause_s, None, error)
            else:
                return

    def _open(self, method: Any) -> Any:
        """Return a call whose messages are sent one by one."""
        return method(metadata=with_trace(self._metadata))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except grpc.aio.UsageError as error:  # the channel is closed
            raise ClientClosed(CLOSED) from error
        except asyncio.CancelledError as error:
            # Closing the channel cancels its calls, and that is no cancellation of the task that waits for one.
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise ClientClosed("this client was closed while the call was under way") from error


def _check_secret(secret: str) -> str:
    if not (secret.isascii() and secret.isprintable()):
        raise Unauthenticated("the key holds characters that no key has: is there a line end in it?")
    return secret


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not 0 <= timeout_s <= _TIMEOUT_LIMIT_S:  # NaN too
        raise InvalidArgument(f"timeout_s {timeout_s!r}: 0 to {_TIMEOUT_LIMIT_S:.0f} s; leave it out for none")


def error_of(error: grpc.aio.AioRpcError) -> AirlockError:
    """Return the error of airlock.errors that a status stands for."""
    # Most processes of the command line end without an error.
    from airlock.status import details_of  # noqa: PLC0415 - as above

    said = error.details() or error.code().name
    details = details_of(error)
    if details.reason in _ERRORS:
        kind = _ERRORS[details.reason]
        if issubclass(kind, Overloaded | InProgress):
            return kind(said, details.retry_after_s, **details.metadata)
        made = kind(said, **details.metadata)
        return made.of_fields(details.violations) if isinstance(made, InvalidArgument) else made
    if error.code() is grpc.StatusCode.INTERNAL and said == _LOST_STATUS:
        return Unavailable("the call ended while a message was being sent, and grpc lost its status; try again")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in said:
        return _too_large(said)
    return _BY_CODE.get(error.code().name, AirlockError)(f"{error.code().name}: {said}")


def _too_large(said: str) -> TooLarge:
    """Return the error of a message that either side refused, from grpc's text."""
    sizes = _SIZES.search(said)
    if sizes is None:
        return TooLarge(said)
    size_bytes, limit_bytes = (int(size) for size in sizes.groups())
    # Grpc says CLIENT of what came here, an answer.
    what = "the answer" if "CLIENT" in said else "the request"
    text = f"{what} has {size_bytes:,} bytes, and a message {limit_bytes:,} at most; files of any size go by themselves"
    return TooLarge(text, size_bytes=str(size_bytes), limit_bytes=str(limit_bytes))


async def pause(pause_s: float | None, deadline_s: float | None, error: AirlockError) -> None:
    """Wait before the next attempt; raise the error if there is none, or no time for it."""
    late = pause_s is not None and deadline_s is not None and time.monotonic() + pause_s >= deadline_s
    if pause_s is None or late or isinstance(error, ClientClosed):
        raise error
    await asyncio.sleep(pause_s)
