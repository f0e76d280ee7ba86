"""What ProcessService answers, made from what the sandbox says."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from agent.filesystem import OutputStream
from gateway.errors import Internal, PermissionDenied, Unavailable
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
    end = pb.ProgramEnd(
        call_id=ended.call_id,
        outcome=result.outcome,
        exit_code=result.exit_code,
        signal=result.signal,
        errno=result.errno or 0,
        message=result.message,
        output_bytes=result.output_bytes,
        duration_ms=result.duration_us / 1000,
        repeated=repeated,
    )
    return pb.RunProgramResponse(end=end)


def process_message(process: Process) -> pb.Process:
    """Return a background process."""
    stderr = process.stderr if process.stderr is not None else _NO_STREAM
    started_at = Timestamp()
    started_at.FromNanoseconds(process.started_ns)
    return pb.Process(
        id=process.id,
        argv=[word.decode("utf-8", "replace") for word in process.argv],
        running=process.running,
        outcome=process.outcome or "",
        exit_code=process.exit_code,
        signal=process.signal,
        started_at=started_at,
        duration_ms=process.duration_us / 1000,
        terminal=process.terminal,
        size=pb.WindowSize(rows=process.rows, columns=process.columns) if process.terminal else None,
        stdin_open=process.stdin_open,
        stdout_size_bytes=process.stdout.size_bytes,
        stderr_size_bytes=stderr.size_bytes,
        stdout_path=process.stdout.path,
        stderr_path=stderr.path,
        tree=process.tree,
        stdout_path_bytes=process.stdout.path_bytes,
        stderr_path_bytes=stderr.path_bytes,
        stdout_closed=process.stdout.closed,
        stderr_closed=stderr.closed,
        stdin_taken_bytes=process.stdin_taken_bytes,
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
