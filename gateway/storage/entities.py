"""What queries return: a thread, a run, an event of a run's log, and a message of a thread.

Reading and writing a message never fails, as one bad message would cost the whole thread.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from agent.frozen import storable_text
from agent.messages import Message, ToolCall, storable_message

NOT_READ = "[a message of this thread was stored and cannot be read]"
_NO_ARGUMENTS = "[arguments that cannot be stored or read]"


@dataclass(frozen=True)
class Thread:
    """A thread: `id` is the gateway's, `name` the tenant's."""

    id: str
    tenant: str
    name: str


@dataclass(frozen=True)
class Run:
    """A stored run; `thread` is the thread's name, `started_by` the credential as the audit shows it."""

    id: str
    tenant: str
    thread: str
    agent: str
    task: str
    policy_version: str
    status: str
    started_us: int
    finished_us: int | None = None
    stop_hook: str | None = None
    stop_rule: str | None = None
    stop_reason: str | None = None
    last_sequence: int = 0
    policy_mode: str = "pin"
    started_by: str = ""
    steps: int = 0


@dataclass(frozen=True)
class LoggedEvent:
    """An event with its place in the run's log."""

    sequence: int
    type: str
    at_us: int
    payload: str


class ReadMessage(NamedTuple):
    """What could be read of a row; `well` if that is all of it."""

    message: Message | None
    well: bool


def stored_text(message: Message) -> str:
    """Return the text that a message is stored as; what no store accepts is replaced."""
    try:
        return message.model_dump_json()
    except ValueError:  # half of a surrogate pair, or too deeply nested
        calls = tuple(_storable_call(call) for call in storable_message(message).tool_calls)
        clean = {"content": storable_text(message.content), "tool_calls": calls}
        return message.model_copy(update=clean).model_dump_json()


def _storable_call(call: ToolCall) -> ToolCall:
    try:
        call.model_dump_json()
    except ValueError:
        name, id_ = storable_text(call.name), storable_text(call.id)
        return ToolCall(id=id_, name=name, arguments=None, raw_arguments=_NO_ARGUMENTS)
    return call


def read_message(text: str) -> ReadMessage:
    """Parse a row's text."""
    try:
        return ReadMessage(Message.model_validate_json(text), well=True)
    except ValueError:
        return ReadMessage(_rest_of(text), well=False)


def _rest_of(text: str) -> Message | None:
    """Return role and content without the arguments of tool calls, which are usually what cannot be read."""
    try:
        found = json.loads(text)
        calls = [
            {"id": call["id"], "name": call["name"], "arguments": None, "raw_arguments": _NO_ARGUMENTS}
            for call in found["tool_calls"]
        ]
        said = {"role": found["role"], "content": storable_text(found["content"]), "tool_calls": calls}
        return Message.model_validate({**said, "tool_call_id": found["tool_call_id"]})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def whole_thread(found: Iterable[Message | None]) -> tuple[Message, ...]:
    """Return the messages, with a note for each lost one.

    Endpoints refuse a call without an answer and an answer without a call: a lost message becomes the answer of a call
    that waits for one, and the answer to a lost call becomes the user's.
    """
    said: list[Message] = []
    waiting: list[str] = []
    for one in found:
        message = one or Message(
            role="tool" if waiting else "user", tool_call_id=waiting[0] if waiting else None, content=NOT_READ
        )
        if message.role != "tool":
            waiting = [call.id for call in message.tool_calls]
        elif message.tool_call_id in waiting:
            waiting.remove(message.tool_call_id)
        else:
            message = Message(role="user", content=message.content)
        said.append(message)
    return tuple(said)
