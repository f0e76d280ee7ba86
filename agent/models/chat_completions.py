"""Chat completions, the wire form: what an endpoint is sent, and what its answer is put together from.

Nothing here imports the client or trusts the endpoint: what it sends may be missing, of another type, or without end.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.hook import InferenceRequest
from agent.messages import Message, ToolCall, Usage
from agent.models.argument_text import ArgumentReader

# What an answer may take in this process; an endpoint is not trusted to end.
_LIMIT_CHARS = 4 * 1024 * 1024
_LIMIT_CALLS = 128
_LIMIT_TOKENS = 10**9

_CHARS_PER_TOKEN = 4

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_LIMIT_CHARS = 64


def request_body(model: str, request: InferenceRequest) -> dict[str, Any]:
    """Return the model's name, the messages and the tools as the endpoint takes them."""
    messages = [_message(message) for message in request.messages]
    if request.system_prompt:
        messages.insert(0, {"role": "system", "content": request.system_prompt})
    body: dict[str, Any] = {"model": model, "messages": messages}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in request.tools
        ]
    return body


def _message(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        said["content"] = message.content or None
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": _name(call), "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    return said


def _name(call: ToolCall) -> str:
    # Endpoints refuse a history with a name that no tool can have, though a model made it up.
    return _NO_NAME.sub("_", call.name)[:_NAME_LIMIT_CHARS] or "_"


def _arguments(call: ToolCall) -> str:
    # Endpoints refuse a history with broken JSON in it; what the model wrote is quoted in the call's result.
    return "{}" if call.arguments is None else json.dumps(call.arguments)


@dataclass
class _Call:
    """A tool call as far as it has come; `continued`: a piece had no name."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    continued: bool = False

    def add(self, id_: str, name: str, arguments: str) -> None:
        self.continued = self.continued or not name
        self.id = self.id or id_
        self.name = self.name or name
        if arguments:
            self.arguments.append(arguments)

    def is_followed_by(self, id_: str, name: str, arguments: str, reader: ArgumentReader) -> bool:
        """Return whether a fragment is the beginning of the next call, not a piece of this one.

        The pieces of a call carry no name; but a few endpoints repeat name and id with each of them.
        """
        if not name or not self.name:
            return False
        return (
            name != self.name
            or bool(id_ and self.id and id_ != self.id)
            or bool(arguments and len(self.arguments) == 1 and reader.holds_object(self.arguments[0]))
            or (self.continued and self.index is None)
        )


class Gathered:
    """What has come of an answer, piece by piece or all at once.

    Parallel calls come interleaved, told apart by `index`. Endpoints that omit the index, or give each call the same,
    are understood by ids, names and whole calls; ids that are missing or come twice are replaced.
    """

    def __init__(self) -> None:
        self.finish_reason = ""
        self.usage: Any = None
        self.written_chars = 0
        self._reader = ArgumentReader()  # to look at pieces
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._open: dict[int, _Call] = {}
        self._taken = 0

    def add(self, chunk: Any) -> str:
        """Take a chunk of a stream; return the text in it."""
        self._taken += 1  # empty ones too, or a stream of those would have no end
        if chunk.usage is not None:
            self.usage = chunk.usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        if choice.delta is None:  # some endpoints end with a choice that has no delta
            return ""
        for fragment in choice.delta.tool_calls or ():
            self._add_call(fragment, whole=False)
        return self._add_text(choice.delta)

    def add_whole(self, completion: Any) -> str:
        """Take an answer that came without streaming; return the text in it."""
        choice = completion.choices[0]
        self.usage = completion.usage
        self.finish_reason = choice.finish_reason or ""
        for call in choice.message.tool_calls or ():
            self._add_call(call, whole=True)
        return self._add_text(choice.message)

    def _add_text(self, message: Any) -> str:
        text: str = message.content or ""
        if text:
            self._text.append(text)
        self._take(len(text) + len(getattr(message, "reasoning_content", None) or ""))
        return text

    def _take(self, chars: int) -> None:
        self._taken += chars
        self.written_chars += chars

    def _add_call(self, fragment: Any, *, whole: bool) -> None:
        function = getattr(fragment, "function", None)
        id_ = _text(fragment.id)
        name = _text(function.name) if function is not None else ""
        arguments = _text(function.arguments) if function is not None else ""
        self._take(len(name) + len(arguments))
        index = getattr(fragment, "index", None)
        index = index if isinstance(index, int) and not whole else None
        call = None if whole else self._call_of(index, id_)
        if call is None or call.is_followed_by(id_, name, arguments, self._reader):
            call = _Call(index)
            self._calls.append(call)
            if index is not None:
                self._open[index] = call
        call.add(id_, name, arguments)

    def _call_of(self, index: int | None, id_: str) -> _Call | None:
        """Return the call that a fragment seems to be a piece of, None for a new one."""
        if index is not None:
            return self._open.get(index)
        known = next((call for call in reversed(self._calls) if id_ and call.id == id_), None)
        return known or (self._calls[-1] if self._calls else None)

    @property
    def endless(self) -> bool:
        """Whether the answer is longer than any answer should be."""
        return self._taken > _LIMIT_CHARS or len(self._calls) > _LIMIT_CALLS

    @property
    def begun(self) -> bool:
        """Whether anything has come."""
        return self._taken > 0

    @property
    def empty(self) -> bool:
        """Whether nothing was said and nothing called."""
        return not self._text and not self._calls

    def message(self) -> Message:
        """Return what was gathered as the assistant's message."""
        seen: set[str] = set()
        reader = ArgumentReader()
        calls = []
        for call in sorted(self._calls, key=lambda call: call.index or 0):
            id_ = call.id if call.id and call.id not in seen else f"call_{uuid.uuid4().hex}"
            seen.add(id_)
            calls.append(reader.call(id_, call.name, "".join(call.arguments)))
        return Message(role="assistant", content="".join(self._text), tool_calls=tuple(calls))


def _text(value: Any) -> str:
    """Return a text as it is; a few endpoints send arguments as an object."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def usage_of(reported: Any, body: Mapping[str, Any], written_chars: int) -> Usage:
    """Return what the endpoint reports; a number that is missing, or is none, is estimated.

    The estimate is a quarter of the characters sent or received.
    """
    return Usage(
        input_tokens=_tokens(getattr(reported, "prompt_tokens", None))
        or _estimated(sum(len(json.dumps(body.get(part, []), ensure_ascii=False)) for part in ("messages", "tools"))),
        output_tokens=_tokens(getattr(reported, "completion_tokens", None)) or _estimated(written_chars),
    )


def _tokens(reported: Any) -> int:
    # Not a negative number, which would give a budget back, nor one that is none.
    return int(reported) if isinstance(reported, (int, float)) and 0 < reported < _LIMIT_TOKENS else 0


def _estimated(chars: int) -> int:
    return -(-chars // _CHARS_PER_TOKEN)
