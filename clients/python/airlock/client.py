"""The client: tool calls, and the calls of the other modules."""

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from airlock.admin import AdminCalls
from airlock.approvals import ApprovalCalls
from airlock.audit import AuditCalls
from airlock.errors import (
    AirlockError,
    ApprovalPending,
    InProgress,
    Internal,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    TooLarge,
    Unavailable,
)
from airlock.input import RequestStream
from airlock.messages import Fields, message, record
from airlock.ports import PortCalls
from airlock.processes import OutputText, ProcessCalls, call_failed
from airlock.runs import RunCalls
from airlock.sandboxes import SandboxCalls
from airlock.threads import ThreadCalls
from airlock.transfers import TransferCalls
from airlock.usage import UsageCalls
from airlock.v1 import tool_service_pb2 as pb
from airlock.wire import OfCaller, OnOutput, give

_CALLER_RESULT_LIMIT_BYTES = 2 * 1024 * 1024
_ERROR_LIMIT_CHARS = 64 * 1024

RunTool = Callable[[Mapping[str, Any]], Awaitable[str | bytes] | str | bytes]
"""A tool of the caller's own, given its arguments; returns what a model would read."""


@dataclass(frozen=True)
class Evicted:
    """The file in the sandbox that has a result that was too large."""

    path: str
    size_bytes: int
    lines: int
    sha256: str
    incomplete: bool


@dataclass(frozen=True)
class ResultFile:
    """A file of the workspace that belongs to a result; read it with `read_file`."""

    path: str
    media_type: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ToolResult(OutputText):
    """A tool call's result. `content` is text (bytes that are not UTF-8 are replaced); `content_bytes` is exact.

    `note` is additional text for a model: how to get the next page, a bad exit code, a timeout. With the verdict ask
    and the outcome waiting the call did not run: repeat it once the approval `approval_id` is given. If the approver
    changed the arguments, the call is refused, and may be made once with `edited_arguments`. `attachments` are files of
    the workspace that belong to the result, such as images; `structured` has parts of it apart, None if content is all.
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
    attachments: tuple[ResultFile, ...] = ()
    structured: Any = None

    @property
    def content(self) -> str:
        return self.content_bytes.decode("utf-8", "replace")

    def raise_for_status(self) -> Self:
        """Return this result of a call that was allowed and succeeded; a command has exited 0.

        Raises PermissionDenied with the `rule`, ApprovalPending with the `approval_id`, and CallFailed.
        """
        if self.outcome == "waiting":
            raise ApprovalPending(self.reason or self.content, approval_id=self.approval_id)
        if self.outcome == "blocked":
            raise PermissionDenied(self.reason or self.content, rule=self.rule)
        if self.is_error or self.exit_code:
            raise call_failed(self.outcome, self.exit_code, self.stderr or self.content)
        return self


@dataclass(frozen=True)
class Tool:
    """A tool and the JSON Schema of its arguments. A call of one that is `read_only` changes nothing."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool = False


class Client(
    RunCalls,
    ThreadCalls,
    TransferCalls,
    ProcessCalls,
    ApprovalCalls,
    AuditCalls,
    UsageCalls,
    SandboxCalls,
    PortCalls,
    AdminCalls,
):
    """A connection to a gateway; use it as an async context manager, or `aclose()` it.

    It can be created anywhere, and belongs to the event loop that enters or first uses it: WrongEventLoop in another.
    `api_key` is a key, or a function that returns a current token; empty with a client certificate.

    As `retry` says (None: never), safe calls are repeated, and streams continue after their last item if the connection
    breaks or the gateway restarts; Unavailable if it stays away. What takes a `request_id` happens once, even if the
    client repeats the request; with an id of your own you may repeat it yourself, also from another process, and get
    the same answer. RequestIdReused means that the id belongs to another request. Lists are fetched in pages.
    """

    async def list_tools(self) -> Sequence[Tool]:
        """Return the tools and their schemas."""
        return [record(Tool, one) for one in (await self._ask(pb.ListToolsRequest)).tools]

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

        `on_output`, a function or coroutine function, gets (stream, bytes) as output arrives; an error that it raises
        ends the call. `timeout_s` covers all attempts together. If you repeat a call whose gateway was lost meanwhile,
        the outcome is interrupted. Raises InvalidArgument, RequestIdReused, QuotaExceeded, Overloaded,
        DeadlineExceeded, Unavailable.
        """
        asked: Fields = {"arguments_json": _json_of(arguments), "request_id": request_id}
        request = message(pb.CallToolRequest, thread=thread, name=name, **asked)
        try:
            if on_output is not None:
                return await self._streamed_call(request, on_output, timeout_s)
            response = await self._unary(self._method(pb.CallToolRequest), request, timeout_s, safe=True)
            return _result(response.result)
        except AirlockError:
            raise
        except OfCaller as caller:
            await self._cancel_call(request.request_id)
            raise caller.error from None
        except BaseException:  # a cancelled await, or an exit that `on_output` raised
            await self._cancel_call(request.request_id)
            raise

    async def run_caller_tool(
        self, name: str, arguments: Mapping[str, Any], run: RunTool, *, thread: str = "default"
    ) -> ToolResult:
        """Run a tool of your own under the tenant's policy, which judges it as `caller/NAME`.

        If it may run, `run`, a function or coroutine function, gets the arguments and returns the text or bytes, at
        most 2 MiB, that a model would read. The result has them as a model may see them: redacted, withheld by a rule,
        or evicted. What `run` raises makes a failed result. Cancelling the await, a lost connection and the policy's
        limits.timeout_s cancel `run`; what it did by then stays done. Raises as call_tool does.
        """
        asked: Fields = {"thread": thread, "name": name, "arguments_json": _json_of(arguments)}
        opening = message(pb.RunCallerToolRequest, call=message(pb.CallerToolCall, **asked))
        judged: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

        async def requests() -> AsyncGenerator[pb.RunCallerToolRequest]:
            yield opening
            yield pb.RunCallerToolRequest(result=await _came_of(run, await judged))

        with self._translated():
            call = self._open(self._method(pb.RunCallerToolRequest))
            async with RequestStream(call, requests()):
                async for said in call:
                    if said.WhichOneof("response") == "result":
                        return _result(said.result)
                    judged.set_result(json.loads(said.start.arguments_json))
        raise Internal("the stream ended without a result")

    async def _streamed_call(
        self, request: pb.CallToolRequest, on_output: OnOutput, timeout_s: float | None
    ) -> ToolResult:
        """Make a call and pass its output on as it arrives; after a broken connection, the rest from the result."""
        given = {"stdout": 0, "stderr": 0}
        broken = False

        async def once(left_s: float | None) -> ToolResult:
            nonlocal broken
            method = self._method(pb.StreamToolCallRequest)
            try:
                async for said in self._stream(method, pb.StreamToolCallRequest(call=request), left_s):
                    if said.WhichOneof("event") == "result":
                        result = _result(said.result)
                        if broken:
                            await _give_rest(result, given, on_output)
                        return result
                    stream = "stderr" if said.output.stderr else "stdout"
                    given[stream] += len(said.output.data)
                    await give(on_output, stream, said.output.data)
            except (Unavailable, Overloaded, InProgress):
                broken = True
                raise
            raise Internal("the stream ended without a result")

        return await self._again(once, timeout_s)

    async def _cancel_call(self, request_id: str) -> None:
        """End a call that its caller does not wait for; the broken connection alone would end it a little later."""
        with contextlib.suppress(AirlockError, asyncio.CancelledError):
            cancel = self._ask(pb.CancelToolCallRequest, safe=False, timeout_s=2.0, request_id=request_id)
            await asyncio.shield(cancel)


async def _came_of(run: RunTool, arguments: Mapping[str, Any]) -> pb.CallerToolResult:
    """Run a tool of the caller's and return what came of it."""
    try:
        said = run(arguments)
        said = await said if inspect.isawaitable(said) else said
        content = said.encode("utf-8", "replace") if isinstance(said, str) else bytes(said)
        if len(content) > _CALLER_RESULT_LIMIT_BYTES:
            raise TooLarge(f"the result has {len(content):,} bytes, and {_CALLER_RESULT_LIMIT_BYTES:,} are the limit")
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:_ERROR_LIMIT_CHARS]
        return pb.CallerToolResult(content=said.encode("utf-8", "replace"), is_error=True)
    return pb.CallerToolResult(content=content)


def _json_of(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"arguments: they cannot be written as JSON: {error}") from error


async def _give_rest(result: ToolResult, given: Mapping[str, int], on_output: OnOutput) -> None:
    """Pass on the output that a broken stream did not; that of an evicted result is in its file."""
    if result.evicted is not None:
        return
    for stream, whole in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
        if len(whole) > given[stream]:
            await give(on_output, stream, whole[given[stream] :])


def _result(one: pb.ToolResult) -> ToolResult:
    return record(ToolResult, one, content_bytes=one.content, stdout_bytes=one.stdout, stderr_bytes=one.stderr)
