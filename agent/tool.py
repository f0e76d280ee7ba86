"""Tools: what a model can call, and what a call gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, JsonValue

from agent.filesystem import OnOutput
from agent.messages import ToolCall, Value

if TYPE_CHECKING:
    from agent.events import EventSink
    from agent.hook import Hook
    from agent.state import AgentState


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
class RunInFlight:
    """The run that a tool call belongs to, as it was when the step's calls had been judged.

    A tool that changes the state does it in a hook of its capability, at after_tool_use, which runs in call order.
    """

    state: AgentState
    events: EventSink
    hooks: Sequence[Hook]
    executor: ToolExecutor


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call besides the arguments; `run` is None outside a ToolRunner."""

    call_id: str
    on_output: OnOutput | None = None
    run: RunInFlight | None = None


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


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments are validated by a pydantic model before `run` sees them."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[[Any, ToolContext], Awaitable[ToolResult]]
    writes: bool = False
    writes_anywhere: bool = False
    own_state: bool = False
    read_only: bool = False


class ToolExecutor(Protocol):
    """The one way to a tool. It returns a result for every failure the model can act on and raises for none of them."""

    def specs(self) -> Sequence[ToolSpec]: ...
    def check(self, call: ToolCall) -> ToolResult | None:
        """Return the error result of a call to an unknown tool or with unfit arguments, None when it can run."""
        ...

    def normalised(self, call: ToolCall) -> ToolCall:
        """Return the call with its arguments in the one form that policy judges and the tool takes: paths absolute.

        Idempotent. A call that check() refuses comes back as it is.
        """
        ...

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult: ...
