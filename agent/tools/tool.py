"""What a tool is, and what a call gives back; tools made of functions; capabilities, which bundle tools and hooks.

Of a function the model is shown its name, its docstring and its annotated parameters. The function may be async; a
plain one runs in a thread, which a cancelled run does not wait for. It returns a str, bytes, a ToolResult, or anything
that pydantic can write as JSON; the model reads its exceptions as errors. A parameter of type ToolContext gets the
call's context and is not shown to the model.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from agent.events import EventSink
from agent.filesystem import OnOutput
from agent.hooks.hook import Hook
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.state import AgentState
from agent.tool_call import CallContext, JudgedCall

Function = Callable[..., Any]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class RunInFlight:
    """The run that a tool call belongs to, as it was when the step's calls had been judged.

    `context` is what is known of every call of the run. A tool that changes the state does it in a hook of its
    capability, at after_tool_use, which runs in call order.
    """

    state: AgentState
    events: EventSink
    hooks: Sequence[Hook]
    executor: ToolExecutor
    context: CallContext = field(default_factory=CallContext)


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call besides the arguments; `run` is None outside a ToolRunner.

    `hooks` is what the hooks of the call share.
    """

    call_id: str
    on_output: OnOutput | None = None
    run: RunInFlight | None = None
    hooks: CallContext = field(default_factory=CallContext)


class ToolArguments(BaseModel):
    """Base class for arguments that refuse unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JsonArguments(RootModel[dict[str, JsonValue]]):
    """Base class for arguments that a JSON Schema describes: they are judged and taken as they were sent.

    A subclass returns the schema from `model_json_schema` and checks arguments in a validator.
    """


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


@dataclass(frozen=True)
class Capability:
    """A named bundle of hooks and tools that belong together."""

    name: str
    hooks: Sequence[Hook] = ()
    tools: Sequence[Tool] = ()


class ToolExecutor(Protocol):
    """The one way to a tool. It returns a result for every failure the model can act on.

    It raises Withheld, which the runner turns into a result, where what a tool gave back must not be shown.
    """

    def specs(self) -> Sequence[ToolSpec]: ...
    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call with its arguments in the one form that policy judges and the tool takes: paths absolute.

        A call to an unknown tool, or with unfit arguments, is `unfit`: it is judged for the record and never runs.
        """
        ...

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Run a call that this executor has prepared; it may be run again."""
        ...


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(*, name: str = "", description: str = "", read_only: bool = False) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None, /, *, name: str = "", description: str = "", read_only: bool = False
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function: `tool(function)`, `@tool` or `@tool(name="...")`.

    The defaults of name and description are the function's own; `read_only` is as in ToolSpec. Raises TypeError for
    something that is not a function, has no description, or has a parameter that a model cannot fill in.
    """
    made = partial(_made, name=name, description=description, read_only=read_only)
    return made if function is None else made(function)


def as_tool(given: Tool | Function) -> Tool:
    """Return a tool as it is, and a function as a tool."""
    return given if isinstance(given, Tool) else tool(given)


def _made(function: Function, *, name: str, description: str, read_only: bool) -> Tool:
    if not inspect.isroutine(function):
        raise TypeError(f"{function!r} is neither a tool nor a function: give a function, or make one with agent.Tool")
    name = name or function.__name__
    description = description or inspect.getdoc(function) or ""
    if not description:
        raise TypeError(f"tool {name}: there is no description: write a docstring, the model reads it")
    arguments, context = _arguments(name, function)
    waits = inspect.iscoroutinefunction(function)

    async def run(asked: BaseModel, called: ToolContext) -> ToolResult:
        given = {field: getattr(asked, field) for field in arguments.model_fields}
        if context:
            given[context] = called
        result = function(**given) if waits else await asyncio.to_thread(function, **given)
        value = await result if inspect.isawaitable(result) else result
        if isinstance(value, ToolResult):
            return value
        content = value.encode("utf-8", "replace") if isinstance(value, str) else value
        return ToolResult(content if isinstance(content, bytes) else to_json(content))

    return Tool(name, description, arguments, run, read_only=read_only)


def _arguments(name: str, function: Function) -> tuple[type[BaseModel], str]:
    """Return the model of a function's parameters, and the name of the one that takes the context."""
    fields: dict[str, Any] = {}
    context = ""
    try:
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in _NAMED or parameter.name.startswith("_"):  # pydantic takes those for private
                raise TypeError(f"the parameter {parameter} cannot be given by name")
            if parameter.name not in hints:
                raise TypeError(f"the parameter {parameter.name} has no type: annotate it")
            if hints[parameter.name] is ToolContext:
                context = parameter.name
                continue
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a parameter may be named "json" or "copy", as old methods of pydantic
            model: type[BaseModel] = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
            model.model_json_schema()
    except (TypeError, ValueError, NameError, PydanticUserError) as error:
        raise TypeError(f"tool {name}: its signature cannot be shown to a model: {error}") from error
    return model, context
