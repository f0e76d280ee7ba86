"""A large tool set at the price of a small one: the model searches it with find_tools, which loads what it finds.

Calls to tools that are neither in `always` nor loaded are blocked. A loaded tool is available from the next step on,
because the model has not seen its parameters before. A tool that another hook removed stays removed and is not found.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import Field, JsonValue

from agent.hooks.hook import Hook
from agent.messages import ToolResult, ToolSpec
from agent.state import AgentState
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

LOADED = "tool_registry.loaded"
"""The note with the loaded tools, in the order they were found."""

_HIDDEN = "tool_registry.hidden"  # tools neither in `always` nor loaded
_WITHHELD = "tool_registry.withheld"  # hidden tools that another hook removed, too
_FIND = "find_tools"
_NAMED = 50
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_]+")
# Words of most descriptions, which say nothing about a tool.
_COMMON = frozenset(
    re.findall(r"\w+", "a an and as by for from in is it of on or that the this to tool tools use with")
)
# Only the start of the result: its end may be evicted before the hook sees it.
_FOUND = re.compile(rb'\{"loaded": (\[[^\]]*\])')


class FindToolsArguments(ToolArguments):
    """Arguments of find_tools."""

    query: str = Field(min_length=1, max_length=400, description="words for what the tool should do")
    limit: int = Field(5, ge=1, le=20, description="tools to load at most")


async def _find(asked: FindToolsArguments, context: ToolContext) -> ToolResult:
    if context.run is None:
        return ToolResult.error("this call belongs to no run, so no tool can be loaded")
    notes = context.run.state.notes
    names = set(_names(notes.get(_HIDDEN))) - set(_names(notes.get(_WITHHELD)))
    hidden = [spec for spec in context.run.executor.specs() if spec.name in names]
    matches = _ranked(asked.query, hidden)
    if not matches:
        return ToolResult(b'{"loaded": [], "tools": []}', note=_nothing(hidden))
    found = matches[: asked.limit]
    shown = [{name: getattr(spec, name) for name in ("name", "description", "parameters")} for spec in found]
    content = {"loaded": [spec.name for spec in found], "tools": shown}
    left = len(matches) - len(found)
    more = f"; {left} more match, so narrow the query if none of these will do" if left else ""
    return ToolResult(json.dumps(content).encode(), note=f"[loaded: call them from the next step on{more}]")


def _nothing(hidden: Sequence[ToolSpec]) -> str:
    if not hidden:
        return "[all tools are already shown]"
    names = ", ".join([spec.name for spec in hidden[:_NAMED]] + ["..."] * (len(hidden) > _NAMED))
    return f"[nothing matches, nothing was loaded. Try other words; there are {names}]"


def _ranked(query: str, specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    """Return the tools that share a word with the query, best match first; ties keep their order."""
    words = _stems(query)

    def score(spec: ToolSpec) -> int:
        return 3 * len(words & _stems(spec.name)) + len(words & _stems(spec.description[:2_000]))

    return sorted(filter(score, specs), key=score, reverse=True)


def _stems(text: str) -> set[str]:
    """Return the stems of the words of a text or a name (snake_case, camelCase): files, file and filing are one."""
    words = (word.lower() for word in _WORD.findall(text))
    return {_stem(word) for word in words if word not in _COMMON}


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        word = f"{word[:-3]}y"
    elif word.endswith("s") and not word.endswith("ss"):
        word = _without(word, "s")
    for ending in ("ing", "ed", "e"):
        word = _without(word, ending)
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def _without(word: str, ending: str) -> str:
    return word[: -len(ending)] if word.endswith(ending) and len(word) >= len(ending) + 3 else word


def _names(value: JsonValue) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


class ToolRegistry(Hook):
    """Hides tools that are not loaded, blocks calls to them, and loads what find_tools found."""

    name = "tool_registry"
    # Below other hooks that change the tools: it sees what they left, and the result of find_tools first.
    priority = -100
    on_failure = "open"  # it saves tokens; protection is the policy's task

    def __init__(self, always: Sequence[str] = ()) -> None:
        self.always = frozenset((*always, _FIND))

    async def before_step(self, state: AgentState) -> AgentState:
        shown = self.always.union(_names(state.notes.get(LOADED)))
        return _noted(state, _HIDDEN, [spec.name for spec in state.current.tools if spec.name not in shown])

    async def before_inference(self, state: AgentState) -> AgentState:
        hidden = _names(state.notes.get(_HIDDEN))
        left = {spec.name for spec in state.current.tools}
        state = _noted(state, _WITHHELD, [name for name in hidden if name not in left])
        if left.isdisjoint(hidden):
            return state
        hide = set(hidden)
        return state.with_tools(tuple(spec for spec in state.current.tools if spec.name not in hide))

    async def before_tool_use(self, state: AgentState) -> AgentState:
        name = state.current.tool.call.name
        if name not in _names(state.notes.get(_HIDDEN)) or name in _names(state.notes.get(LOADED)):
            return state
        reason = f"{name} is not loaded; call {_FIND} first, and {name} in a step after that"
        return state.block(self.name, "not_loaded", reason)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.call.name != _FIND or tool.result is None or not tool.succeeded:
            return state
        # A ring may have changed the result: only hidden tools can be loaded.
        hidden, named = _names(state.notes.get(_HIDDEN)), []
        with suppress(ValueError):
            start = _FOUND.match(tool.result.content)
            named = _names(json.loads(start[1])) if start else []
        found = [name for name in named if name in hidden]
        return _noted(state, LOADED, list(dict.fromkeys((*_names(state.notes.get(LOADED)), *found))))


def _noted(state: AgentState, key: str, names: Sequence[str]) -> AgentState:
    """Set a note unless it is unchanged, which saves the store a write."""
    return state if _names(state.notes.get(key)) == names else state.with_note(key, list(names))


def tool_registry(*, always: Sequence[str] = ()) -> Capability:
    """Return find_tools and the hook that hides all tools except `always`."""
    does = "Search the tools that are not shown, and load those that fit: they can be called from the next step on."
    tool = Tool(_FIND, does, FindToolsArguments, _find, own_state=True)
    return Capability("tool_registry", hooks=(ToolRegistry(always),), tools=(tool,))
