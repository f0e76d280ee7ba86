"""The client: tools, and what its other rooms have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.client.admin import AdminCalls
from gateway.client.approvals import ApprovalCalls
from gateway.client.audit import AuditCalls
from gateway.client.files import FileCalls
from gateway.client.messages import enum_name, message, record
from gateway.client.processes import ProcessCalls
from gateway.client.programs import ProgramCalls
from gateway.client.runs import RunCalls
from gateway.client.sandboxes import SandboxCalls
from gateway.client.snapshots import SnapshotCalls
from gateway.client.threads import ThreadCalls
from gateway.client.wire import OfCaller, OnOutput, give, pause
from gateway.errors import (
    AirlockError,
    InProgress,
    Internal,
    InvalidArgument,
    Overloaded,
    Unavailable,
)
from gateway.v1 import tool_service_pb2, tool_service_pb2_grpc

_CANCEL_S = 2.0


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

    `note` is additional text for a model: how a page goes on, a bad exit code, a timeout. With the verdict ask and the
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
class Tool:
    """A tool and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Client(
    RunCalls,
    ThreadCalls,
    FileCalls,
    ProgramCalls,
    ProcessCalls,
    ApprovalCalls,
    AuditCalls,
    SandboxCalls,
    SnapshotCalls,
    AdminCalls,
):
    """A connection to a gateway; use it as an async context manager, or `aclose()` it.

    It can be made anywhere, and belongs to the event loop that enters or first uses it: WrongEventLoop in another.
    `api_key` is a key, or a function that returns a token that is good now; empty where a certificate says who calls.
    What is safe is tried again, and streams of runs are resumed, as `retry` says; None means never.
    """

    @property
    def _tools(self) -> Any:
        return self._stub(tool_service_pb2_grpc.ToolServiceStub)

    async def list_tools(self) -> Sequence[Tool]:
        """Return the tools and their schemas."""
        response = await self._ask(self._tools.ListTools, tool_service_pb2.ListToolsRequest)
        return [Tool(tool.name, tool.description, json.loads(tool.parameters_json)) for tool in response.tools]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        thread: str = "default",
        on_output: OnOutput | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> ToolResult:
        """Run one tool call; cancelling the await kills what it started.

        `on_output`, a function or a coroutine function, gets (stream, bytes) as output arrives; what it raises ends the
        call. `timeout_s` is for all attempts together: the call runs
        once, however often a broken connection makes the client ask. With a `request_id` of your own you may ask again
        yourself, and get the same result; one whose gateway was lost meanwhile has the outcome interrupted. Raises
        InvalidArgument, RequestIdReused, QuotaExceeded, Overloaded, DeadlineExceeded, Unavailable.
        """
        id_ = request_id or str(uuid.uuid4())
        request = message(
            tool_service_pb2.CallToolRequest,
            thread=thread,
            name=name,
            arguments_json=_as_json(arguments),
            request_id=id_,
        )
        try:
            if on_output is None:
                response = await self._unary(self._tools.CallTool, request, timeout_s, safe=True)
                return _result(response.result)
            return await self._streamed_call(request, on_output, timeout_s)
        except AirlockError:
            raise
        except OfCaller as caller:
            await self._cancel_call(id_)
            raise caller.error from None
        except BaseException:  # a cancelled await, or an exit that `on_output` raised
            await self._cancel_call(id_)
            raise

    async def _streamed_call(
        self, request: tool_service_pb2.CallToolRequest, on_output: OnOutput, timeout_s: float | None
    ) -> ToolResult:
        """Make a call with its output as it arrives. Where it broke off, the result has the rest."""
        streamed = tool_service_pb2.StreamToolCallRequest(call=request)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        attempts = self._attempts()
        given = {"stdout": 0, "stderr": 0}
        broken = False
        while True:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            try:
                answers = self._stream(self._tools.StreamToolCall, streamed, left_s)
                async for said in answers:
                    if said.WhichOneof("event") == "result":
                        result = _result(said.result)
                        if broken:
                            await _give_rest(result, given, on_output)
                        return result
                    stream = "stderr" if said.output.stderr else "stdout"
                    given[stream] += len(said.output.data)
                    await give(on_output, stream, said.output.data)
            except (Unavailable, Overloaded, InProgress) as error:
                await pause(attempts.pause_s(error), deadline_s, error)
                broken = True
            else:
                raise Internal("the stream ended without a result")

    async def _cancel_call(self, request_id: str) -> None:
        """End a call whose caller does not wait any more: by its connection alone it would end a little later."""
        request = tool_service_pb2.CancelToolCallRequest(request_id=request_id)
        with contextlib.suppress(AirlockError, asyncio.CancelledError):
            await asyncio.shield(self._unary(self._tools.CancelToolCall, request, _CANCEL_S))


async def _give_rest(result: ToolResult, given: Mapping[str, int], on_output: OnOutput) -> None:
    """Give what the stream that broke did not; of an evicted result the file has it."""
    if result.evicted is not None:
        return
    for stream, whole in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
        if len(whole) > given[stream]:
            await give(on_output, stream, whole[given[stream] :])


def _as_json(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"arguments: they cannot be written as JSON: {error}") from error


def _result(result: tool_service_pb2.ToolResult) -> ToolResult:
    return record(
        ToolResult,
        result,
        verdict=enum_name(tool_service_pb2.Verdict, result.verdict),
        content_bytes=result.content,
        evicted=record(Evicted, result.evicted) if result.HasField("evicted") else None,
        stdout_bytes=result.stdout,
        stderr_bytes=result.stderr,
        edited_arguments=json.loads(result.edited_arguments_json) if result.edited_arguments_json else None,
    )
