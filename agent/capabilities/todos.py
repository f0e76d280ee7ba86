"""The agent's list of things to do: written whole by one tool, and shown to the model while something on it is open.

The list is in the thread's metadata, so that a later run of the thread finds it. The reminder is one message at the
end of what the model is shown and never becomes part of the thread: everything before it stays the same from step to
step, and with it the endpoint's cache.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from agent.capabilities.capability import Capability
from agent.hooks.hook import Hook
from agent.hooks.matchers import tool_name
from agent.messages import Message, ToolResult
from agent.state import AgentState
from agent.tools.tool import Tool, ToolContext

KEY = "todos.list"
"""Where the list is in the thread's metadata."""

MAX_TODOS = 100
MAX_LIST_CHARS = 32 * 1024
"""Of the list as JSON in ASCII. It is in every step's messages, and whoever keeps the thread bounds its values too."""

_WRITE = "write_todos"
# Below the hooks that replace or shorten the messages, so that the reminder is what the model reads last.
_PRIORITY = -100

_SIGNS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]"}

_Id = Annotated[str, Field(min_length=1, max_length=64)]
_Title = Annotated[str, Field(min_length=1, max_length=200)]


class Todo(BaseModel):
    """One thing to do."""

    # Models often number their todos: 1 is as good as "1".
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    id: _Id
    title: _Title
    status: Literal["pending", "in_progress", "done"]


class WriteTodosArguments(BaseModel):
    """Arguments of write_todos."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    todos: list[Todo] = Field(max_length=MAX_TODOS, description="the complete list, in order; it replaces the old one")

    @field_validator("todos")
    @classmethod
    def _fits(cls, todos: list[Todo]) -> list[Todo]:
        for id_, times in Counter(todo.id for todo in todos).items():
            if times > 1:
                raise ValueError(f"each id may be there once, and {id_!r} is there {times} times")
        if (chars := len(json.dumps(_kept(todos)))) > MAX_LIST_CHARS:
            raise ValueError(f"the list has {chars} characters as JSON, and {MAX_LIST_CHARS} is the limit; be brief")
        return todos


async def _write(asked: WriteTodosArguments, _context: ToolContext) -> ToolResult:
    return ToolResult(f"The list now: {_counted(asked.todos)}.".encode())


class TodosWriter(Hook):
    """Puts the list of a write_todos call that succeeded into the thread; of several in a step the last one stays."""

    name = "todos_writer"
    when = tool_name(_WRITE)

    def matches(self, state: AgentState) -> bool:
        return self.when(state)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if not tool.succeeded:
            return state
        asked = WriteTodosArguments.model_validate(tool.call.arguments)
        return state.with_metadata(KEY, _kept(asked.todos))


class TodosReminder(Hook):
    """Shows the list at the end of the messages while something on it is open."""

    name = "todos_reminder"
    priority = _PRIORITY
    on_failure = "open"  # a run without its reminder is still a run

    async def before_inference(self, state: AgentState) -> AgentState:
        todos = _listed(state.metadata.get(KEY))
        if all(todo.status == "done" for todo in todos):
            return state
        reminder = Message(role="user", content=_rendered(todos))
        return state.with_messages((*state.current.input_messages, reminder))


def _kept(todos: Iterable[Todo]) -> list[JsonValue]:
    return [todo.model_dump() for todo in todos]


def _listed(value: JsonValue) -> list[Todo]:
    """Return the todos in what is stored; what is no todo, whoever put it there, is left out."""
    todos = []
    for item in value[:MAX_TODOS] if isinstance(value, list) else ():
        try:
            todos.append(Todo.model_validate(item))
        except ValidationError:
            continue
    return todos


def _rendered(todos: Iterable[Todo]) -> str:
    # One line a todo, whatever is in its title.
    lines = (f"{_SIGNS[todo.status]} {todo.id}: {' '.join(todo.title.split())}" for todo in todos)
    return "\n".join(
        (
            "<todos>",
            *lines,
            "</todos>",
            "[This is an automatic reminder of your own list. Keep it true with write_todos as you work.]",
        )
    )


def _counted(todos: Iterable[Todo]) -> str:
    counts = Counter(todo.status for todo in todos)
    said = (f"{counts[status]} {status}" for status in ("done", "in_progress", "pending") if counts[status])
    return ", ".join(said) or "empty"


def todos() -> Capability:
    """Return write_todos and the reminder of what is open."""
    description = (
        "Replace your todo list. Keep one for work of several steps, and mark each todo as you start and end it."
    )
    return Capability(
        "todos",
        hooks=(TodosWriter(), TodosReminder()),
        tools=(Tool(_WRITE, description, WriteTodosArguments, _write, own_state=True),),
    )
