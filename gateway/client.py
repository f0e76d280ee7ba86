"""The Python client.

    async with Client("127.0.0.1:7443", api_key) as airlock:
        result = await airlock.call_tool("execute", {"command": "true", "timeout_s": 5}, thread="t1")
        await airlock.write_file("t1", "/workspace/a.bin", data)
        result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
        async for event in airlock.run("fix the tests", thread="t1"):
            ...

Every failure is a class of gateway.errors: NotFound, PermissionDenied, IsADirectory, InvalidPath, Unauthenticated, ...
A tool call that was refused or failed is a result, not an exception.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import grpc.aio

from gateway.client_approvals import Approval, ApprovalCalls, Grant
from gateway.client_processes import Process, ProcessCalls, Processes, ProcessOutput, ProgramResult
from gateway.client_wire import Input, check_input, message, pieces, raise_error
from gateway.errors import (
    AirlockError,
    AlreadyResolved,
    ApprovalPending,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    EditRefused,
    Exhausted,
    InputNotTaken,
    Internal,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProcessEnded,
    QuotaExceeded,
    ScopeMissing,
    StartFailed,
    ThreadBusy,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from gateway.v1 import (
    run_service_pb2,
    run_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
    workspace_service_pb2,
    workspace_service_pb2_grpc,
)

__all__ = [
    "AirlockError",
    "AlreadyResolved",
    "Approval",
    "ApprovalPending",
    "Cancelled",
    "Client",
    "Conflict",
    "DeadlineExceeded",
    "EditRefused",
    "Event",
    "Evicted",
    "Exhausted",
    "Grant",
    "Input",
    "InputNotTaken",
    "Internal",
    "InvalidArgument",
    "InvalidPath",
    "IsADirectory",
    "NoSpace",
    "NotADirectory",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "Process",
    "ProcessEnded",
    "ProcessOutput",
    "Processes",
    "ProgramResult",
    "QuotaExceeded",
    "Run",
    "ScopeMissing",
    "StartFailed",
    "ThreadBusy",
    "TooLarge",
    "ToolResult",
    "Unauthenticated",
    "Unavailable",
]

OnOutput = Callable[[str, bytes], None]
PolicyMode = Literal["pin", "follow"]
_POLICY_MODES = {"pin": run_service_pb2.POLICY_MODE_PIN, "follow": run_service_pb2.POLICY_MODE_FOLLOW}


@dataclass(frozen=True)
class Evicted:
    """Where a result that was too large is, in the sandbox."""

    path: str
    size_bytes: int
    lines: int
    sha256: str
    incomplete: bool


@dataclass(frozen=True)
class ToolResult:
    """A tool call's result. `content` is text (bytes that are not UTF-8 are replaced); `content_bytes` is exact.

    `note` is what a model is told besides: how a page goes on, a bad exit code, a timeout. With the verdict ask and the
    outcome waiting the call did not run: make it again once the approval `approval_id` is given. Where the approver
    changed the arguments, the call is refused and `edited_arguments` are those to make it with, once.
    """

    call_id: str
    thread: str
    verdict: str
    rule: str
    reason: str
    outcome: str
    exit_code: int | None
    content_bytes: bytes
    is_error: bool
    evicted: Evicted | None
    duration_ms: float
    stdout_bytes: bytes
    stderr_bytes: bytes
    note: str = ""
    approval_id: str = ""
    policy_version: str = ""
    edited_arguments: Mapping[str, Any] | None = None

    @property
    def content(self) -> str:
        """What the tool gave, as text."""
        return self.content_bytes.decode("utf-8", "replace")

    @property
    def stdout(self) -> str:
        """Standard output of execute, as text."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error of execute, as text."""
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(frozen=True)
class Event:
    """One event of a run; agent/events.py lists the types and their payloads."""

    sequence: int
    type: str
    payload: Mapping[str, Any]
    at: datetime


@dataclass(frozen=True)
class Run:
    """A run. `stop` is empty until it has finished, then {hook, rule, reason}."""

    id: str
    thread: str
    agent: str
    status: str
    stop: Mapping[str, str]
    last_sequence: int
    task: str
    started_at: datetime
    finished_at: datetime | None
    policy_mode: str = "pin"
    policy_version: str = ""


@dataclass(frozen=True)
class Tool:
    """A tool and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Client(ProcessCalls, ApprovalCalls):
    """A connection to a gateway; use it as an async context manager."""

    def __init__(self, address: str, api_key: str) -> None:
        super().__init__(address, api_key)
        self._runs: Any = run_service_pb2_grpc.RunServiceStub(self._channel)
        self._tools: Any = tool_service_pb2_grpc.ToolServiceStub(self._channel)
        self._workspaces: Any = workspace_service_pb2_grpc.WorkspaceServiceStub(self._channel)

    # --- tools ---

    async def list_tools(self) -> Sequence[Tool]:
        """Return the tools and their schemas."""
        response = await self._unary(self._tools.ListTools, tool_service_pb2.ListToolsRequest())
        return [Tool(tool.name, tool.description, json.loads(tool.parameters_json)) for tool in response.tools]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        thread: str = "default",
        on_output: OnOutput | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        """Run one tool call; cancelling the await kills what it started.

        `on_output` gets (stream, bytes) as output arrives.
        """
        request = message(
            tool_service_pb2.CallToolRequest, thread=thread, name=name, arguments_json=_as_json(arguments)
        )
        if on_output is None:
            response = await self._unary(self._tools.CallTool, request, timeout_s)
            return _result(response.result)
        streamed = tool_service_pb2.StreamToolCallRequest(call=request)
        async for said in self._stream(self._tools.StreamToolCall, streamed, timeout_s):
            if said.WhichOneof("event") == "result":
                return _result(said.result)
            on_output("stderr" if said.output.stderr else "stdout", said.output.data)
        raise Internal("the stream ended without a result")

    # --- files ---

    async def write_file(self, thread: str, path: str, data: Input) -> int:
        """Replace a file atomically and return its size in bytes; a source that raises leaves the old file."""
        check_input(data)
        opening = message(workspace_service_pb2.WriteFileRequest, thread=thread, path=path)
        call = self._open(self._workspaces.WriteFile)
        try:
            try:
                await call.write(opening)
                async for piece in pieces(data):
                    await call.write(workspace_service_pb2.WriteFileRequest(data=piece))
                await call.write(workspace_service_pb2.WriteFileRequest(end=True))
                await call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call is over, and what it says of that here is not why; its status does
            return int((await call).size_bytes)
        except grpc.aio.AioRpcError as error:
            raise_error(error)
        finally:
            call.cancel()  # one that is over does not mind

    async def read_file(self, thread: str, path: str) -> bytes:
        """Return a file's bytes."""
        return b"".join([chunk async for chunk in self.stream_file(thread, path)])

    async def stream_file(self, thread: str, path: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes in pieces; a slow reader slows the sandbox and costs the gateway nothing."""
        request = message(workspace_service_pb2.ReadFileRequest, thread=thread, path=path)
        async for piece in self._stream(self._workspaces.ReadFile, request):
            yield piece.data

    # --- runs ---

    async def start_run(self, task: str, *, thread: str = "", agent: str = "", policy_mode: PolicyMode = "pin") -> Run:
        """Start a run; an empty thread means a new one. `follow`: a policy applied meanwhile judges its next calls."""
        mode = _POLICY_MODES.get(policy_mode)
        if mode is None:
            raise InvalidArgument(f"policy_mode: {policy_mode!r} is not one of {', '.join(_POLICY_MODES)}")
        request = message(run_service_pb2.StartRunRequest, task=task, thread=thread, agent=agent, policy_mode=mode)
        return _run((await self._unary(self._runs.StartRun, request)).run)

    async def watch_run(self, run_id: str, from_sequence: int = 1) -> AsyncIterator[Event]:
        """Yield a run's events from a sequence number on, until it has finished."""
        request = message(run_service_pb2.WatchRunRequest, run_id=run_id, from_sequence=from_sequence)
        async for said in self._stream(self._runs.WatchRun, request):
            event = said.event
            yield Event(event.sequence, event.type, json.loads(event.payload_json), event.at.ToDatetime(UTC))

    async def run(
        self, task: str, *, thread: str = "", agent: str = "", policy_mode: PolicyMode = "pin"
    ) -> AsyncIterator[Event]:
        """Start a run and yield its events; the last one is run_finished. `policy_mode` is as for start_run."""
        started = await self.start_run(task, thread=thread, agent=agent, policy_mode=policy_mode)
        async for event in self.watch_run(started.id):
            yield event

    async def get_run(self, run_id: str) -> Run:
        """Return a run."""
        request = message(run_service_pb2.GetRunRequest, run_id=run_id)
        return _run((await self._unary(self._runs.GetRun, request)).run)

    async def cancel_run(self, run_id: str) -> Run:
        """Stop a run, down to its processes."""
        request = message(run_service_pb2.CancelRunRequest, run_id=run_id)
        return _run((await self._unary(self._runs.CancelRun, request)).run)


def _as_json(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"arguments: they cannot be written as JSON: {error}") from error


def _result(result: tool_service_pb2.ToolResult) -> ToolResult:
    evicted = result.evicted
    return ToolResult(
        call_id=result.call_id,
        thread=result.thread,
        verdict=_word(tool_service_pb2.Verdict.Name(result.verdict)),
        rule=result.rule,
        reason=result.reason,
        outcome=result.outcome,
        exit_code=result.exit_code if result.HasField("exit_code") else None,
        content_bytes=result.content,
        is_error=result.is_error,
        evicted=Evicted(evicted.path, evicted.size_bytes, evicted.lines, evicted.sha256, evicted.incomplete)
        if result.HasField("evicted")
        else None,
        duration_ms=result.duration_ms,
        stdout_bytes=result.stdout,
        stderr_bytes=result.stderr,
        note=result.note,
        approval_id=result.approval_id,
        policy_version=result.policy_version,
        edited_arguments=json.loads(result.edited_arguments_json) if result.edited_arguments_json else None,
    )


def _run(run: run_service_pb2.Run) -> Run:
    stop = {"hook": run.stop.hook, "rule": run.stop.rule, "reason": run.stop.reason} if run.HasField("stop") else {}
    status = _word(run_service_pb2.RunStatus.Name(run.status))
    finished_at = run.finished_at.ToDatetime(UTC) if run.HasField("finished_at") else None
    started_at = run.started_at.ToDatetime(UTC)
    mode = _word(run_service_pb2.PolicyMode.Name(run.policy_mode))
    return Run(
        id=run.id,
        thread=run.thread,
        agent=run.agent,
        status=status,
        stop=stop,
        last_sequence=run.last_sequence,
        task=run.task,
        started_at=started_at,
        finished_at=finished_at,
        policy_mode=mode,
        policy_version=run.policy_version,
    )


def _word(enum_name: str) -> str:
    """Return the last word of an enum value's name in lower case: VERDICT_DENY is deny."""
    return enum_name.rpartition("_")[2].lower()
