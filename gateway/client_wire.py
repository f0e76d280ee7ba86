"""The wire under the Python client: one channel, the key on every call, and statuses turned back into errors."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, NoReturn, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gateway.errors import (
    AirlockError,
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
    Unauthenticated,
    Unavailable,
    all_errors,
)

_CHUNK_BYTES = 512 * 1024
_ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
# A gateway that is back is found within seconds; grpc itself would come to wait for two minutes.
_RECONNECT_LIMIT_MS = 5000
_OPTIONS = (
    ("grpc.max_receive_message_length", _ANSWER_LIMIT_BYTES),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_LIMIT_MS),
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
        Cancelled,
    )
}

_TIMEOUT_LIMIT_S = 366 * 86_400.0
_Message = TypeVar("_Message")

Input = bytes | bytearray | memoryview | AsyncIterable[bytes]
"""What a stream is fed with: all of it, or pieces of any size as they come."""


class Wire:
    """A connection to a gateway; an async context manager."""

    def __init__(self, address: str, api_key: str) -> None:
        if not (api_key.isascii() and api_key.isprintable()):
            raise Unauthenticated("the key holds characters that no key has: is there a line end in it?")
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    async def __aenter__(self) -> Self:
        """Return the client; it connects on the first call."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the connection."""
        await self._channel.close(None)

    async def _unary(self, method: Any, request: Any, timeout_s: float | None = None) -> Any:
        _check_timeout(timeout_s)
        try:
            return await method(request, metadata=self._metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise_error(error)
        except grpc.aio.UsageError as error:
            raise _closed(error) from error

    async def _stream(
        self,
        method: Any,
        request: Any,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Any]:
        _check_timeout(timeout_s)
        try:
            async for answer in method(request, metadata=self._metadata, timeout=timeout_s):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise_error(error)
        except grpc.aio.UsageError as error:
            raise _closed(error) from error

    def _open(self, method: Any) -> Any:
        """Return a call whose messages are sent one by one."""
        try:
            return method(metadata=self._metadata)
        except grpc.aio.UsageError as error:
            raise _closed(error) from error


def message(kind: Callable[..., _Message], **fields: Any) -> _Message:
    """Return a request; InvalidArgument where a field does not take its value."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"what was given is not what a field takes: {error}") from error


def check_input(data: object) -> None:
    """Raise InvalidArgument for what no stream can be fed with."""
    if not isinstance(data, bytes | bytearray | memoryview | AsyncIterable):
        raise InvalidArgument(
            f"input is bytes, or an asynchronous iterator of bytes, not {type(data).__name__}; encode a text first"
        )


async def pieces(data: Input) -> AsyncIterator[bytes]:
    """Yield input in pieces that a message takes."""
    check_input(data)
    if isinstance(data, AsyncIterable):
        async for chunk in data:
            async for piece in pieces(chunk):
                yield piece
        return
    whole = bytes(data)
    for at in range(0, len(whole), _CHUNK_BYTES):
        yield whole[at : at + _CHUNK_BYTES]


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not 0 <= timeout_s <= _TIMEOUT_LIMIT_S:  # NaN too
        raise InvalidArgument(f"timeout_s {timeout_s!r}: 0 to {_TIMEOUT_LIMIT_S:.0f} s; leave it out for none")


def _closed(error: Exception) -> Unavailable:
    return Unavailable(f"this client was closed; make another ({error})")


def raise_error(error: grpc.aio.AioRpcError) -> NoReturn:
    """Raise the class of gateway.errors that a status stands for."""
    said = error.details() or error.code().name
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    details = status.details if status else ()
    for detail in details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.reason in _ERRORS:
            kind = _ERRORS[info.reason]
            if issubclass(kind, QuotaExceeded):
                raise kind(said, _retry_after_s(details), **dict(info.metadata)) from error
            raise kind(said, **dict(info.metadata)) from error
    kind = _BY_CODE.get(error.code(), AirlockError)
    if kind is Overloaded and "larger than max" in said:
        kind = TooLarge
    raise kind(f"{error.code().name}: {said}") from error


def _retry_after_s(details: Iterable[Packed]) -> float | None:
    retry = error_details_pb2.RetryInfo()
    found = any(detail.Unpack(retry) for detail in details)
    return retry.retry_delay.ToMicroseconds() / 1_000_000 if found else None
