"""Results of tool calls, and errors, as the protocol has them.

A call that was denied, failed or waits for an approval is a result with `isError`, which the model reads. What the
gateway refuses before there is a result, such as a call over a quota, is an error with the reason in its `data`.
"""

from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    ContentBlock,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)

from gateway.client import Evicted, ToolResult
from gateway.client import Tool as GatewayTool
from gateway.errors import AirlockError, InProgress, Internal, InvalidArgument, Overloaded
from gateway.mcp.uris import uri_of

REFUSED = -32010
"""The gateway refused a request; `data.reason` says why. Of the codes that the protocol leaves to implementations."""

_TEXT, _COUNT = {"type": "string"}, {"type": "integer"}
_EVICTED = {
    "type": "object",
    "description": "The file in the sandbox that contains a result which was too large",
    "properties": {
        "path": _TEXT,
        "size_bytes": _COUNT,
        "lines": _COUNT,
        "sha256": _TEXT,
        "incomplete": {"type": "boolean"},
    },
    "required": ["path", "size_bytes", "lines", "sha256", "incomplete"],
}
OUTPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "content": {**_TEXT, "description": "The result; of a program both streams in order of arrival"},
        "stdout": {**_TEXT, "description": "Of a program that wrote something"},
        "stderr": {**_TEXT, "description": "Of a program that wrote something"},
        "exit_code": {**_COUNT, "description": "Of a program that exited"},
        "outcome": {
            **_TEXT,
            "description": "How the call ended, such as completed, exited, timed_out, blocked, waiting",
        },
        "verdict": {"enum": ["allow", "ask", "deny"]},
        "rule": {**_TEXT, "description": "The policy rule that decided"},
        "reason": {**_TEXT, "description": "The reason that the rule gives"},
        "approval_id": {**_TEXT, "description": "The approval that the call waits for or ran by"},
        "approval_url": {**_TEXT, "description": "Where to read about that approval"},
        "edited_arguments": {"type": "object", "description": "Make the call with these: an approver changed them"},
        "evicted": _EVICTED,
        "note": {**_TEXT, "description": "How to go on, such as the call that reads the next page"},
        "call_id": _TEXT,
        "thread": _TEXT,
        "duration_ms": {"type": "number"},
    },
    "required": ["content", "outcome", "verdict", "rule", "call_id", "thread", "duration_ms"],
}
"""Of the structured content of all tools: what the gateway knows of a call beside its text."""


def tool_of(tool: GatewayTool) -> Tool:
    """Return a tool as the protocol describes it."""
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.parameters),
        output_schema=dict(OUTPUT_SCHEMA),
        annotations=ToolAnnotations(read_only_hint=tool.read_only),
    )


def result_of(result: ToolResult, approval_url: str = "") -> CallToolResult:
    """Return the result of a call; `approval_url` is where its approval is shown, if it waits for one."""
    failed = result.is_error or result.verdict == "deny" or result.outcome == "waiting"
    said = [result.content, result.note]
    if result.outcome == "waiting":
        said.append(f"Show the user where to answer: {approval_url}" if approval_url else "")
    text = "\n".join(part for part in said if part)
    content: list[ContentBlock] = [TextContent(text=text)] if text else []
    if result.evicted is not None:
        content.append(_link(result.evicted))
    for file in result.attachments:
        name = file.path.rpartition("/")[2]
        content.append(ResourceLink(uri=uri_of(file.path), name=name, mime_type=file.media_type, size=file.size_bytes))
    return CallToolResult(content=content, structured_content=_structured(result, approval_url), is_error=failed)


def _link(evicted: Evicted) -> ResourceLink:
    said = f"The complete result: {evicted.size_bytes:,} bytes, {evicted.lines:,} lines"
    return ResourceLink(
        uri=uri_of(evicted.path),
        name=evicted.path.rpartition("/")[2],
        description=f"{said}, cut off" if evicted.incomplete else said,
        size=evicted.size_bytes,
        mime_type="text/plain",
    )


def _structured(result: ToolResult, approval_url: str) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "content": result.content,
        "outcome": result.outcome,
        "verdict": result.verdict if result.verdict in {"ask", "deny"} else "allow",
        "rule": result.rule,
        "reason": result.reason,
        "exit_code": result.exit_code,
        "note": result.note,
        "approval_id": result.approval_id,
        "approval_url": approval_url,
        "edited_arguments": None if result.edited_arguments is None else dict(result.edited_arguments),
        "evicted": None if result.evicted is None else vars(result.evicted),
        "call_id": result.call_id,
        "thread": result.thread,
        "duration_ms": result.duration_ms,
    }
    if result.stdout_bytes or result.stderr_bytes:
        whole |= {"stdout": result.stdout, "stderr": result.stderr}
    required = OUTPUT_SCHEMA["required"]
    return {name: value for name, value in whole.items() if name in required or value not in (None, "")}


def error_of(error: AirlockError) -> MCPError:
    """Return the protocol's error for one of the gateway's."""
    code = REFUSED
    if isinstance(error, InvalidArgument):
        code = INVALID_PARAMS
    elif isinstance(error, Internal):
        code = INTERNAL_ERROR
    return MCPError(code, str(error), data_of(error))


def data_of(error: AirlockError) -> dict[str, Any]:
    """Return what a program may branch on: the reason, as docs/reference/errors.md lists it, and its details."""
    data: dict[str, Any] = {"reason": error.reason}
    if error.details:
        data["details"] = dict(error.details)
    if isinstance(error, Overloaded | InProgress) and error.retry_after_s is not None:
        data["retry_after_s"] = error.retry_after_s
    return data
