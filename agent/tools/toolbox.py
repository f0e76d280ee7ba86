"""The tools of an agent: validated arguments in, a result for every failure out."""

import asyncio
import contextlib
import copy
import functools
import inspect
import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from types import NoneType
from typing import Any, cast
from weakref import WeakValueDictionary

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_jsonable_python

from agent.errors import InvalidPath, Withheld
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.tool_call import JudgedCall
from agent.tools.paths import resolve
from agent.tools.tool import JsonArguments, Tool, ToolContext

_log = logging.getLogger(__name__)
_SHOWN_PROBLEMS = 10
_SHOWN_TOOLS = 50
_SCALARS = (str, int, float, NoneType)


class Toolbox:
    """A ToolExecutor over Tool objects."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Take the tools, in the order in which the model sees them.

        Raises ValueError for two tools of one name, and TypeError for a tool that could never run.
        """
        self._tools: dict[str, Tool] = {}
        self._specs: tuple[ToolSpec, ...] = ()
        # By path, for the calls that write the same file, of any run: subagents share these tools.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for tool in tools:
            _check_tool(tool)
            if tool.name in self._tools:
                raise ValueError(f"two tools are named {tool.name!r}")
            self._tools[tool.name] = tool
            flags = {flag: getattr(tool, flag) for flag in ("writes", "writes_anywhere", "own_state", "read_only")}
            # A copy, because a hook may change what it is given.
            parameters = copy.deepcopy(_parameters(tool.arguments))
            self._specs += (ToolSpec(tool.name, tool.description, parameters, **flags),)

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call with its arguments as the tool's pydantic model has them: coerced, paths absolute."""
        try:
            checked = self._validated(call)
            if isinstance(checked, BaseModel):
                arguments = _as_json(checked)
                # 5 stays 5 where the model has 5.0: the digest is of the arguments as they were sent.
                final = call if _is_as_sent(arguments, call.arguments) else call.with_(arguments=arguments)
                return JudgedCall.of(final, model=checked, read_only=self._tools[call.name].read_only)
        except (RecursionError, PydanticSerializationError) as error:
            checked = ToolResult.error(f"the arguments of {call.name} cannot be written as JSON: {error}")
        return JudgedCall.of(self._with_path(call), unfit=checked)

    def _with_path(self, call: ToolCall) -> ToolCall:
        """Return a call that will not run with an absolute path: it is judged for the record."""
        tool = self._tools.get(call.name)
        field = tool.arguments.model_fields.get("path") if tool is not None else None
        if field is None or call.arguments is None:
            return call
        path = call.arguments.get("path", None if field.is_required() else field.default)
        try:
            return call.with_(arguments={**call.arguments, "path": resolve(path)}) if isinstance(path, str) else call
        except InvalidPath:
            return call

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Run the call. Raises nothing but cancellation and Withheld."""
        if call.unfit is not None:
            return call.unfit
        tool = self._tools[call.call.name]
        try:
            checked = _copied(call.validated(tool.arguments))
            path = getattr(checked, "path", None) if tool.writes else None
            async with self._locks.setdefault(path, asyncio.Lock()) if path is not None else contextlib.nullcontext():
                result: object = await tool.run(checked, context)
            if not isinstance(result, ToolResult) or not isinstance(result.content, bytes):
                given = "content that is no bytes" if isinstance(result, ToolResult) else type(result).__name__
                return ToolResult.error(f"the tool {tool.name} has a bug: it returned {given} instead of a ToolResult")
            return result
        except OSError as error:
            return ToolResult.error(str(error))
        except (asyncio.CancelledError, GeneratorExit, Withheld):
            raise
        except BaseException as error:  # also SystemExit and the like, which libraries raise
            # A lost file system says how the call ended (filesystem.py); anything else is the tool's fault.
            outcome = getattr(error, "outcome", None)
            if isinstance(outcome, str):
                return ToolResult.error(str(error), outcome=outcome)
            _log.exception("tool %s failed", tool.name)
            return ToolResult.error(f"the tool failed: {str(error) or type(error).__name__}")

    def _validated(self, call: ToolCall) -> BaseModel | ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            return no_such_tool(call.name, self._tools)
        if call.problem:
            return ToolResult.error(f"the arguments of {tool.name} {call.problem}. {_takes(tool)}")
        if call.arguments is None:
            return ToolResult.error(
                f"the arguments of {tool.name} are not a JSON object: {_shortened(call.raw_arguments)}. "
                f"Send one JSON object. {_takes(tool)}"
            )
        if tool.arguments.model_config.get("extra") == "forbid":
            unknown = len(call.arguments.keys() - tool.arguments.model_fields.keys())
            if unknown > _SHOWN_PROBLEMS:  # each would cost pydantic an error of its own
                return ToolResult.error(f"{unknown} of the arguments are not known to {tool.name}. {_takes(tool)}")
        try:
            return _with_path_absolute(tool.arguments.model_validate(_thawed(call.arguments)))
        except InvalidPath as error:
            problems = f"`path`: {error}"
        except ValidationError as error:
            problems = f"{error.error_count()} of their values are wrong"
            if error.error_count() <= 1_000:  # pydantic builds the whole list or nothing
                problems = "; ".join(map(_problem, error.errors(include_url=False)[:_SHOWN_PROBLEMS]))
                more = error.error_count() - _SHOWN_PROBLEMS
                problems += f"; and {more} more" if more > 0 else ""
        return ToolResult.error(f"the arguments of {tool.name} do not fit: {problems}. {_takes(tool)}")


def _check_tool(tool: object) -> None:
    """Raise TypeError for something that is not a tool, or whose calls would all fail; says how to fix it."""
    if not isinstance(tool, Tool):
        raise TypeError(f"{tool!r} is not a tool: make one with agent.tools.tool.Tool(...)")
    arguments: Any = tool.arguments
    if not (isinstance(arguments, type) and issubclass(arguments, BaseModel)):
        raise TypeError(f"tool {tool.name}: arguments must be a pydantic model class, not {arguments!r}")
    run: Any = tool.run
    # A lambda may return a coroutine; a function without async does not.
    if inspect.isroutine(run) and run.__name__ != "<lambda>" and not inspect.iscoroutinefunction(run):
        raise TypeError(f"tool {tool.name}: run is a plain function: write `async def {run.__name__}`")
    if not callable(run):
        raise TypeError(f"tool {tool.name}: run must be an async function, not {type(run).__name__}")


def _with_path_absolute(arguments: BaseModel) -> BaseModel:
    """Return arguments with `path` absolute, also if it is a plain str of the tool's model."""
    path = getattr(arguments, "path", None) if "path" in arguments.model_fields_set else None
    if not isinstance(path, str) or "path" not in type(arguments).model_fields or path == (absolute := resolve(path)):
        return arguments
    return arguments.model_copy(update={"path": absolute})


def _copied(arguments: BaseModel) -> BaseModel:
    """Return a copy for one execution: a tool may change its arguments, and a ring may run the call again."""
    scalar = all(isinstance(value, _SCALARS) for _, value in arguments) and not arguments.__pydantic_private__
    return arguments if scalar and arguments.model_config.get("frozen") else arguments.model_copy(deep=True)


def _as_json(value: Any) -> Any:
    """Return what a tool reads of its arguments, as JSON.

    It looks at the attributes: a serializer of the model could show policy something else than the tool is given.
    """
    if isinstance(value, JsonArguments):
        return _as_json(value.root)
    if isinstance(value, BaseModel):
        names = [*type(value).model_fields, *(value.model_extra or ())]
        return {name: _as_json(getattr(value, name)) for name in names if name in value.model_fields_set}
    if isinstance(value, dict):
        return {_as_json(key): _as_json(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(member) for member in value]
    return value if type(value) in (str, int, float, bool, type(None)) else to_jsonable_python(value)


def _is_as_sent(value: Any, sent: Any) -> bool:
    """Return whether values are equal. To Python 1 equals True, but to policy it does not: the tool is given True."""
    if isinstance(value, dict):
        same = isinstance(sent, dict) and value.keys() == sent.keys()
        return same and all(_is_as_sent(member, sent[key]) for key, member in value.items())
    if isinstance(value, list):
        return isinstance(sent, list) and len(value) == len(sent) and all(map(_is_as_sent, value, sent))
    return bool(value == sent) and isinstance(value, bool) == isinstance(sent, bool)


def _thawed(value: Any) -> Any:
    """Return a copy of frozen JSON that a tool may change."""
    if isinstance(value, dict):
        return {key: _thawed(member) for key, member in value.items()}
    return [_thawed(member) for member in value] if isinstance(value, list) else value


def no_such_tool(name: str, tools: Collection[str]) -> ToolResult:
    """Return the result of a call to an unknown tool."""
    shown = ", ".join(islice(tools, _SHOWN_TOOLS)) or "none"
    more = f" and {len(tools) - _SHOWN_TOOLS} more" if len(tools) > _SHOWN_TOOLS else ""
    return ToolResult.error(f"unknown tool {_shortened(name)!r}; the tools are {shown}{more}")


def _problem(details: ErrorDetails) -> str:
    name = _shortened(".".join(str(part) for part in details["loc"]), 100) or "arguments"
    if details["type"] == "extra_forbidden":
        return f"there is no argument `{name}`"
    if details["type"] == "missing":
        return f"`{name}` is missing"
    message = details["msg"].removeprefix("Value error, ")
    return f"`{name}`: {message[:1].lower()}{message[1:]}, not {_shortened(repr(details['input']))}"


def _shortened(text: str, limit_chars: int = 200) -> str:
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}... ({len(text)} characters)"


def _takes(tool: Tool) -> str:
    schema = _parameters(tool.arguments)
    properties = cast(dict[str, dict[str, Any]], schema.get("properties", {}))
    required = cast(list[str], schema.get("required", []))
    arguments = ", ".join(
        f"{name} ({described.get('type', 'any')}, "
        f"{'required' if name in required else 'default ' + repr(described.get('default'))})"
        for name, described in properties.items()
    )
    return f"{tool.name} takes: {arguments or 'no arguments'}"


# Building a schema takes a millisecond, and the gateway makes a toolbox for each run.
@functools.lru_cache(256)
def _parameters(arguments: type[BaseModel]) -> dict[str, JsonValue]:
    """Return the JSON Schema without pydantic's titles, which cost tokens."""
    schema = arguments.model_json_schema()
    for described in (schema, *schema.setdefault("properties", {}).values()):
        described.pop("title", None)
    schema.pop("description", None)
    return schema
