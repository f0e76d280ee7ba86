"""A hook: a class that overrides the points it needs. The engine registers exactly those.

The ten points take an AgentState and return one. The two rings wrap the model call and the tool call and see no state,
so that the rings of concurrent tool calls cannot race on it. A hook serves many calls at once and stores nothing about
them in itself: the call's context is for that (agent.tool_call).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, Protocol, get_args

from pydantic import JsonValue

from agent.filesystem import OutputStream
from agent.messages import Message, ToolResult, ToolSpec
from agent.state import AgentState, ModelResponse, ToolExecution

OnFailure = Literal["closed", "open"]
Point = Literal[
    "execution_start",
    "before_step",
    "before_inference",
    "after_inference",
    "before_tool_use",
    "after_tool_use",
    "after_step",
    "should_continue",
    "execution_end",
    "on_error",
]
POINTS: tuple[Point, ...] = get_args(Point)


@dataclass(frozen=True)
class Matcher:
    """A condition on the state, for Hook.when: tool_name("execute") | tool_glob("run_*")."""

    test: Callable[[AgentState], bool]

    def __call__(self, state: AgentState) -> bool:
        return self.test(state)

    def __and__(self, other: Matcher) -> Matcher:
        return Matcher(lambda state: self(state) and other(state))

    def __or__(self, other: Matcher) -> Matcher:
        return Matcher(lambda state: self(state) or other(state))

    def __invert__(self) -> Matcher:
        return Matcher(lambda state: not self(state))


def tool_name(name: str) -> Matcher:
    """Match a call of the tool with exactly this name."""
    return Matcher(lambda state: _called(state) == name)


def tool_glob(pattern: str) -> Matcher:
    """Match when the whole tool name matches a shell-style pattern, case-sensitively."""
    return Matcher(lambda state: (called := _called(state)) is not None and fnmatchcase(called, pattern))


def _called(state: AgentState) -> str | None:
    return state.current.tool.call.name if state.current.tool_index is not None else None


@dataclass(frozen=True)
class Retry:
    """The next attempt to ask the model in a step: its number of how many, and the wait before it."""

    attempt: int
    attempts: int
    wait_s: float


@dataclass(frozen=True)
class Failover:
    """An attempt that failed, and the model that is asked next in the same attempt of the step."""

    model: str
    error: Exception
    next_model: str


def _no_wait(_reason: str) -> AbstractContextManager[None]:
    return nullcontext()


def _unheard(report: object) -> None:
    """Report to no one."""


@dataclass(frozen=True)
class Progress:
    """Takes what happens to a request on its way to an answer.

    `waiting` gives a context for the time that it waits in a queue; the argument says what for. A ring that asks again
    says so with `retrying` before it waits, a model that asks another one with `failing_over`.
    """

    waiting: Callable[[str], AbstractContextManager[None]] = _no_wait
    retrying: Callable[[Retry], None] = _unheard
    failing_over: Callable[[Failover], None] = _unheard


@dataclass(frozen=True)
class InferenceRequest:
    """What the model is asked; a new field breaks no ring.

    `output_schema` is the JSON Schema that the final answer must fit, `thread` the thread's id, for prompt caches.
    `agent` is the name of the agent that asks. `contents` are the bytes of the attachments that the model is shown, by
    their SHA-256.
    """

    system_prompt: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    output_schema: Mapping[str, JsonValue] | None = None
    thread: str = ""
    agent: str = ""
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    progress: Progress = field(default=Progress(), compare=False, repr=False)


NextInference = Callable[[InferenceRequest], Awaitable[ModelResponse]]
NextToolUse = Callable[[ToolExecution], Awaitable[ToolResult]]


class OutputFilter(Protocol):
    """Redacts the output of one call while it arrives; after an exception nothing more is shown.

    The output of a stream has the length of its input; `cut` means that its end is missing. Both methods may be async.
    """

    def feed(self, stream: OutputStream, data: bytes) -> bytes | Awaitable[bytes]: ...
    def flush(self, stream: OutputStream, *, cut: bool) -> bytes | Awaitable[bytes]: ...


class Hook:
    """Override what you need; what you do not override costs nothing.

    `timeout_s` bounds each of the ten points (rings are bounded by what they wrap). When a point raises or times out:
    `on_failure` "closed" blocks the call at before_tool_use, withholds the result at after_tool_use, and stops the run
    elsewhere; "open" leaves the state as it was and is an event. `mandatory` hooks are always closed and are inherited
    by subagents. `innermost` is for the policy hook alone. A hook that `redacts` removes secrets from results: then
    output is shown live only through its `output_filter`, or not at all if it has none.
    """

    name: str = ""
    priority: int = 0
    timeout_s: float = 5.0
    on_failure: OnFailure = "closed"
    mandatory: bool = False
    innermost: bool = False
    redacts: bool = False
    when: Matcher | None = None

    def matches(self, state: AgentState) -> bool:
        """Return whether to run the hook: by default its condition `when`."""
        return self.when is None or self.when(state)

    def output_filter(self) -> OutputFilter | None:
        """Return a new filter for the output of one call, if the hook redacts and has one."""
        return None

    def hook_ran(self, point: str, hook: str, state: AgentState, elapsed_s: float) -> None:
        """Observe how long another hook took at a point. It must not raise or block."""

    def suspended(self, state: AgentState) -> None:
        """Observe that a run begins to wait: its step's calls are judged again later. It must not raise."""

    async def execution_start(self, state: AgentState) -> AgentState:
        """Once per run; a resumed run does not repeat it."""
        return state

    async def before_step(self, state: AgentState) -> AgentState:
        """Before each step; a Forbid written here ends the run before the model is asked."""
        return state

    async def before_inference(self, state: AgentState) -> AgentState:
        """May change the messages, the tools and the system prompt of this inference."""
        return state

    async def after_inference(self, state: AgentState) -> AgentState:
        return state

    async def before_tool_use(self, state: AgentState) -> AgentState:
        """May block, ask, or rewrite the arguments of state.current.tool."""
        return state

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """May rewrite the result of state.current.tool. Also runs for blocked calls."""
        return state

    async def after_step(self, state: AgentState) -> AgentState:
        """After each step, before it is final."""
        return state

    async def should_continue(self, state: AgentState) -> AgentState:
        """The last word on another step."""
        return state

    async def execution_end(self, state: AgentState) -> AgentState:
        """Once per run, however it ends."""
        return state

    async def on_error(self, state: AgentState) -> AgentState:
        """After a failure (state.current.errors[-1]): forbid to stop, request to go on with the error shown."""
        return state

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        return await next_(request)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Ring around the tool call, inside the verdict: next_ refuses arguments other than the judged ones."""
        return await next_(tool)


def hook_name(hook: Hook) -> str:
    """Return the name of a hook in verdicts, stops and events."""
    return hook.name or type(hook).__name__
