"""The messages of ProcessService."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from agent.filesystem import OutputStream
from gateway.errors import Internal, PermissionDenied, Unavailable
from gateway.services.messages import message
from gateway.tool_calls.program_calls import EndedProgram
from gateway.tool_calls.tool_calls import FinishedToolCall
from gateway.v1 import process_service_pb2 as pb
from sandbox.process import Process, ProcessOutput

_NO_STREAM = ProcessOutput(size_bytes=0, ring_offset=0, path="", path_bytes=0, closed=True)


def output_message(stream: OutputStream, data: bytes) -> pb.RunProgramResponse:
    """Return a piece of output."""
    return pb.RunProgramResponse(stderr=data) if stream == "stderr" else pb.RunProgramResponse(stdout=data)


def ended_message(ended: EndedProgram, *, repeated: bool = False) -> pb.RunProgramResponse:
    """Return the last message of a program; `repeated`: it ran for an earlier request."""
    result = ended.result
    duration_ms = result.duration_us / 1000
    end = message(pb.ProgramEnd, result, call_id=ended.call_id, duration_ms=duration_ms, repeated=repeated)
    return pb.RunProgramResponse(end=end)


def process_message(process: Process) -> pb.Process:
    """Return a background process."""
    stdout, stderr = process.stdout, process.stderr or _NO_STREAM
    return message(
        pb.Process,
        process,
        argv=[word.decode("utf-8", "replace") for word in process.argv],
        started_at=Timestamp(seconds=process.started_ns // 1_000_000_000, nanos=process.started_ns % 1_000_000_000),
        duration_ms=process.duration_us / 1000,
        size=pb.WindowSize(rows=process.rows, columns=process.columns) if process.terminal else None,
        stdout_size_bytes=stdout.size_bytes,
        stderr_size_bytes=stderr.size_bytes,
        stdout_path=stdout.path,
        stderr_path=stderr.path,
        stdout_path_bytes=stdout.path_bytes,
        stderr_path_bytes=stderr.path_bytes,
        stdout_closed=stdout.closed,
        stderr_closed=stderr.closed,
    )


def failure(finished: FinishedToolCall, error: Exception | None) -> Exception:
    """Return why a call that started nothing failed."""
    finished.raise_waiting()
    verdict = finished.execution.verdict
    if finished.execution.blocked and verdict is not None:
        return PermissionDenied(f"{verdict.reason} (rule {verdict.rule})", rule=verdict.rule)
    if error is not None:
        return error
    if finished.result.is_error:
        return Unavailable(finished.result.text())
    return Internal("a hook took the call over; nothing ran")
