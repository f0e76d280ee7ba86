"""Messages: made from the objects that the services return, awaited from clients, and queued to them."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from airlock.v1 import process_service_pb2 as pb
from gateway.errors import DeadlineExceeded, Internal, InvalidArgument, PermissionDenied, Unavailable
from gateway.tool_calls.program_calls import EndedProgram
from gateway.tool_calls.tool_calls import FinishedToolCall
from sandbox.protocols import Process, ProcessOutput

M = TypeVar("M", bound=Message)
STALL_LIMIT_S = 60.0
T = TypeVar("T")
_NO_STREAM = ProcessOutput(size_bytes=0, ring_offset=0, path="", path_bytes=0, closed=True)
_STREAM_PARTS = ("size_bytes", "path", "path_bytes", "closed")


def timestamp(at_ns: int) -> Timestamp:
    """Return nanoseconds since 1970 as a message."""
    return Timestamp(seconds=at_ns // 1_000_000_000, nanos=at_ns % 1_000_000_000)


def microseconds(request: Message, name: str) -> int | None:
    """Return a request's time in microseconds since 1970, None if it is not set.

    Raises InvalidArgument for a time that does not exist.
    """
    if not request.HasField(name):
        return None
    try:
        return int(getattr(request, name).ToMicroseconds())
    except ValueError:
        raise InvalidArgument(f"{name}: a time from year 1 to year 9999") from None


def message(kind: type[M], source: object, /, **given: Any) -> M:
    """Return a message with the attributes of `source` that have a field's name, and the `given` fields.

    A field `x_at` or `at` takes its time from `x_us` or `at_us`, an enum is given by `name_of` its value. What is None
    stays unset.
    """
    for name, attribute, enum in _fields(kind.DESCRIPTOR):
        if name in given:
            value = given[name]
        elif attribute == name:
            value = getattr(source, name, None)
        else:
            at_us = getattr(source, attribute)
            value = None if at_us is None else timestamp(at_us * 1000)
        given[name] = _numbers(enum)[value] if enum is not None and isinstance(value, str) else value
    return kind(**given)


@functools.cache
def _fields(descriptor: Descriptor) -> tuple[tuple[str, str, EnumDescriptor | None], ...]:
    """Return the fields of a message, each with the attribute that has its value, and its enum."""
    fields = []
    for field in descriptor.fields:
        name = attribute = str(field.name)
        if name == "at" or name.endswith("_at"):
            attribute = "at_us" if name == "at" else f"{name.removesuffix('_at')}_us"
        fields.append((name, attribute, field.enum_type))
    return tuple(fields)


def name_of(enum: EnumTypeWrapper, number: int) -> Any:
    """Return the name of an enum's value in lower case and without its prefix; empty for an unset or unknown one."""
    return next((name for name, known in _numbers(enum.DESCRIPTOR).items() if known == number), "")


def paging(request: Any) -> dict[str, Any]:
    """Return which page the request of a list asks for."""
    return {"size": request.page_size, "token": request.page_token}


@functools.cache
def _numbers(enum: EnumDescriptor) -> Mapping[str, int]:
    """Return the numbers of an enum's values by name; the first value, for an unset one, has none."""
    unset, *values = enum.values
    prefix = unset.name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in values}


async def in_time(awaited: Awaitable[T], problem: str = "nothing moved", advice: str = "start the transfer again") -> T:
    """Return what is awaited; DeadlineExceeded if the peer stalls, which must not occupy a sandbox forever."""
    try:
        async with asyncio.timeout(STALL_LIMIT_S):
            return await awaited
    except TimeoutError:
        raise DeadlineExceeded(f"{problem} for {STALL_LIMIT_S:g} s; {advice}") from None


@contextlib.asynccontextmanager
async def queued(queue: asyncio.Queue[T | None], *tasks: asyncio.Task[Any]) -> AsyncIterator[AsyncIterator[T]]:
    """Iterate over a queue, up to None, while tasks fill it; the block's end cancels the tasks."""

    async def items() -> AsyncIterator[T]:
        while (item := await queue.get()) is not None:
            yield item

    try:
        yield items()
    finally:
        for task in tasks:
            task.cancel()
        while not queue.empty():  # a task that waits for a free slot must see that it was cancelled
            queue.get_nowait()
        await asyncio.gather(*tasks, return_exceptions=True)


def ended_message(ended: EndedProgram, *, repeated: bool = False) -> pb.RunProgramResponse:
    """Return the last message of a program; `repeated`: it ran for an earlier request."""
    result = ended.result
    duration_ms = result.duration_us / 1000
    end = message(pb.ProgramEnd, result, call_id=ended.call_id, duration_ms=duration_ms, repeated=repeated)
    return pb.RunProgramResponse(end=end)


def process_message(process: Process) -> pb.Process:
    """Return a background process."""
    streams = {"stdout": process.stdout, "stderr": process.stderr or _NO_STREAM}
    return message(
        pb.Process,
        process,
        argv=[word.decode("utf-8", "replace") for word in process.argv],
        started_at=timestamp(process.started_ns),
        duration_ms=process.duration_us / 1000,
        size=pb.WindowSize(rows=process.rows, columns=process.columns) if process.terminal else None,
        **{f"{name}_{part}": getattr(stream, part) for name, stream in streams.items() for part in _STREAM_PARTS},
    )


def raise_refused(finished: FinishedToolCall) -> None:
    """Raise ApprovalPending for a call that waits, PermissionDenied for one that the policy denied."""
    finished.raise_waiting()
    verdict = finished.execution.verdict
    if finished.execution.blocked and verdict is not None:
        raise PermissionDenied(f"{verdict.reason} (rule {verdict.rule})", rule=verdict.rule)


def failure(finished: FinishedToolCall, error: Exception | None) -> Exception:
    """Return why a call started nothing, or raise why it was refused."""
    raise_refused(finished)
    if error is not None:
        return error
    if finished.result.is_error:
        return Unavailable(finished.result.text())
    return Internal("a hook took the call over; nothing ran")
