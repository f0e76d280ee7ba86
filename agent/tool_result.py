"""What a tool call gives back, and what a model sees of a tool."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from agent.messages import Value

_ERROR_LIMIT_CHARS = 8_000


class Evicted(Value):
    """A result that stayed in the sandbox: the file that holds it."""

    path: str
    size_bytes: int
    lines: int
    sha256: str
    incomplete: bool


@dataclass(frozen=True)
class ToolResult:
    """What a tool call gave.

    `content` is what the tool produced, as bytes; `outcome` is completed or failed for tools that run no program,
    blocked for refused calls, else a program's outcome (see ExecResult). `note` is said to the model after the content
    and is no part of it. `withheld_by` names the rule on results that this stands in for, `would_be_withheld_by` one in
    shadow.
    """

    content: bytes
    outcome: str = "completed"
    is_error: bool = False
    exit_code: int | None = None
    evicted: Evicted | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    note: str = ""
    withheld_by: str = ""
    would_be_withheld_by: str = ""

    @classmethod
    def error(cls, message: str, *, outcome: str = "failed") -> ToolResult:
        """Return a result that tells the model what is wrong and how to mend it; a long text is cut in the middle."""
        if len(message) > _ERROR_LIMIT_CHARS:
            half = _ERROR_LIMIT_CHARS // 2
            message = f"{message[:half]} [... {len(message) - 2 * half} characters ...] {message[-half:]}"
        return cls(content=message.encode("utf-8", "replace"), outcome=outcome, is_error=True)

    def text(self) -> str:
        """Return what the model is shown."""
        content = self.content.decode("utf-8", "replace")
        return f"{content}\n{self.note}" if self.note and content else content or self.note


@dataclass(frozen=True)
class ToolSpec:
    """What a model sees of a tool; `parameters` is a JSON Schema.

    What the model is not shown: `writes` says that a call changes the file at its `path` argument, so calls of one step
    that touch a path which one of them writes run one after the other. With `writes_anywhere` a call may change any
    file, as a command can: it and calls that write a file run one after the other. `own_state` says that the tool is
    about the state of the run it belongs to, through a hook of its capability: it is not lent to a subagent, whose
    state is another. `read_only` says that a call changes nothing, so that one which was interrupted may be made again.
    """

    name: str
    description: str
    parameters: dict[str, JsonValue]
    writes: bool = False
    writes_anywhere: bool = False
    own_state: bool = False
    read_only: bool = False
