"""The agent's todo list, in the thread's metadata: one tool replaces it, and the model sees it while an item is open.

The reminder is the last message of an inference and never part of the thread: the messages before it stay the same from
step to step, and so does the endpoint's cache.
"""

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError, field_validator

from agent.hooks.hook import Hook, tool_name
from agent.messages import Message, ToolResult
from agent.state import AgentState
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

KEY = "todos.list"
"""Where the list is in the thread's metadata."""

MAX_TODOS = 100
MAX_LIST_CHARS = 32 * 1024
"""Of the list as ASCII JSON: every inference contains it, and stores limit the values of a thread."""

_WRITE = "write_todos"
_SIGNS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]"}


class Todo(ToolArguments):
    """One item."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # models often number their todos

    id: str = Field(min_length=1, max_length=64)
    title: str = Field(min_length=1, max_length=200)
    status: Literal["pending", "in_progress", "done"]


class WriteTodosArguments(ToolArguments):
    """Arguments of write_todos."""

    todos: list[Todo] = Field(max_length=MAX_TODOS, description="the complete list, in order; it replaces the old one")

    @field_validator("todos")
    @classmethod
    def _fits(cls, todos: list[Todo]) -> list[Todo]:
        for id_, times in Counter(todo.id for todo in todos).items():
            if times > 1:
                raise ValueError(f"each id may appear once, but {id_!r} appears {times} times")
        if (chars := len(json.dumps(_kept(todos)))) > MAX_LIST_CHARS:
            raise ValueError(f"the list has {chars} characters as JSON, and {MAX_LIST_CHARS} is the limit; be brief")
        return todos


async def _write(asked: WriteTodosArguments, _context: ToolContext) -> ToolResult:
    counts = Counter(todo.status for todo in asked.todos)
    said = (f"{counts[status]} {status}" for status in ("done", "in_progress", "pending") if counts[status])
    return ToolResult(f"The list now: {', '.join(said) or 'empty'}.".encode())


class TodosWriter(Hook):
    """Stores the list of a successful write_todos call; of several in a step, the last one."""

    name = "todos_writer"
    when = tool_name(_WRITE)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if not tool.succeeded:
            return state
        asked = tool.judged.validated(WriteTodosArguments)
        return state.with_metadata(KEY, _kept(asked.todos))


class TodosReminder(Hook):
    """Shows the list after the messages while an item is open."""

    name = "todos_reminder"
    priority = -100  # below the hooks that replace or shorten the messages, so that the reminder comes last
    on_failure = "open"

    async def before_inference(self, state: AgentState) -> AgentState:
        listed, todos = state.metadata.get(KEY), []
        for item in listed[:MAX_TODOS] if isinstance(listed, list) else ():
            with suppress(ValidationError):  # an invalid item is left out
                todos.append(Todo.model_validate(item))
        if all(todo.status == "done" for todo in todos):
            return state
        # One line per todo, whatever its title contains.
        lines = (f"{_SIGNS[todo.status]} {todo.id}: {' '.join(todo.title.split())}" for todo in todos)
        said = "[This is an automatic reminder of your own list. Keep it true with write_todos as you work.]"
        reminder = Message(role="user", content="\n".join(("<todos>", *lines, "</todos>", said)))
        return state.with_messages((*state.current.input_messages, reminder))


def _kept(todos: Iterable[Todo]) -> list[JsonValue]:
    return [todo.model_dump() for todo in todos]


def todos() -> Capability:
    """Return write_todos and the reminder of open items."""
    does = "Replace your todo list. Keep one for work of several steps, and mark each todo as you start and end it."
    tool = Tool(_WRITE, does, WriteTodosArguments, _write, own_state=True)
    return Capability("todos", hooks=(TodosWriter(), TodosReminder()), tools=(tool,))
