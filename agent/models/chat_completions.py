"""The answers of chat completions.

Endpoints are untrusted: any part of an answer may be missing, of the wrong type, or endless.
"""

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agent.frozen import storable_text
from agent.messages import Message
from agent.models.endpoint_errors import UnusableAnswer
from agent.models.model import Arrived
from agent.models.provider_data import LIMIT_CHARS, Blocks, json_chars, kept
from agent.tools.intake import ArgumentReader

# How models write tool calls, which their servers did not recognise as such. Each line is looked at once: an answer may
# be millions of empty lines.
_CALL = re.compile(r"(?m)^[^\S\n]*(?:<tool_call>|<function=\w|\[TOOL_CALLS\]|<\|python_tag\|>|<\uff5ctool\u2581calls)")

# Blocks of reasoning that are sent back: OpenRouter's, and those of LiteLLM for Anthropic's signed thinking.
_BLOCKS = ("reasoning_details", "thinking_blocks")
# Plain reasoning, by any of its names; it is sent back under the name that it came by.
_REASONING = ("reasoning_content", "reasoning")
# What belongs to a tool call besides its function, such as Gemini's thought signature.
_CALL_EXTRAS = ("extra_content", "provider_specific_fields")


@dataclass
class _Call:
    """A partial tool call; `continued`: a piece had no name."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    continued: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, id_: str, name: str, arguments: str) -> None:
        self.continued = self.continued or not name
        self.id = self.id or id_
        self.name = self.name or name
        if arguments:
            self.arguments.append(arguments)

    def is_followed_by(self, id_: str, name: str, arguments: str, reader: ArgumentReader) -> bool:
        """Return whether a fragment starts the next call instead of continuing this one.

        The pieces of a call have no name, but a few endpoints repeat name and id in each.
        """
        if not name or not self.name:
            return False
        return (
            name != self.name
            or bool(id_ and self.id and id_ != self.id)
            or bool(arguments and len(self.arguments) == 1 and reader.holds_object(self.arguments[0]))
            or (self.continued and self.index is None)
        )


@dataclass
class Gathered:
    """An answer as received so far, from a stream or at once.

    Parallel calls are distinguished by `index`, for endpoints that omit or repeat it by ids, names and complete calls;
    missing and duplicate ids are replaced. `begun`: a choice was received, so the answer is charged. `reasoning_chars`
    counts the reasoning, which is no part of the text. `ended` is never set: usage may follow the finish reason.
    """

    finish_reason: str = ""
    usage: Any = None
    written_chars: int = 0
    reasoning_chars: int = 0
    begun: bool = False
    refused: bool = False
    ended: bool = False
    _reader: ArgumentReader = field(default_factory=ArgumentReader)  # to look at pieces
    _text: list[str] = field(default_factory=list)
    _reasoning: dict[str, list[str]] = field(default_factory=dict)  # by its name
    _blocks: dict[str, Blocks] = field(default_factory=dict)
    _extra: dict[str, Any] = field(default_factory=dict)
    _calls: list[_Call] = field(default_factory=list)
    _open: dict[int, _Call] = field(default_factory=dict)
    _taken: int = 0
    _held_chars: float = 0

    def add(self, answer: Any) -> Arrived:
        """Add a chunk of a stream or a whole answer, as JSON; return what it brought. Raises UnusableAnswer."""
        if not isinstance(answer, dict):
            raise UnusableAnswer("JSON that is not an object")
        self._taken += 1  # counts empty chunks too: a stream of them must end
        self.usage = answer.get("usage") or self.usage
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return Arrived()
        self.begun = True
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.finish_reason = storable_text(reason[:64])
        whole = isinstance(choice.get("message"), dict)
        said = choice["message"] if whole else choice.get("delta")
        if not isinstance(said, dict):  # some endpoints end with a choice that has no delta
            return Arrived()
        calls = said.get("tool_calls")
        for fragment in calls if isinstance(calls, list) else ():
            if isinstance(fragment, dict) and not self.endless:  # each is looked for among all others
                self._add_call(fragment, whole=whole)
        return Arrived(self._add_text(said), self._add_reasoning(said, whole=whole))

    def _add_text(self, said: dict[str, Any]) -> str:
        refusal = _plain_text(said.get("refusal"))
        self.refused = self.refused or bool(refusal)
        text = _plain_text(said.get("content")) + refusal
        if text:
            self._text.append(text)
        self._take(len(text))
        return text

    def _add_reasoning(self, said: dict[str, Any], *, whole: bool) -> str:
        """Add the reasoning; endpoints that send blocks often repeat their text beside them."""
        in_blocks = ""
        for name in _BLOCKS:
            if said.get(name):
                in_blocks = self._blocks.setdefault(name, Blocks()).add(said[name], whole=whole) or in_blocks
        self._hold(self._extra, said, ("extra_content",))
        name = next((name for name in _REASONING if said.get(name) and isinstance(said[name], str)), "")
        reasoning: str = said[name] if name else in_blocks or _thinking(said.get("content"))
        if name:
            self._reasoning.setdefault(name, []).append(reasoning)
        self.reasoning_chars += len(reasoning)
        self._take(len(reasoning))
        return reasoning

    def _take(self, chars: int) -> None:
        self._taken += chars
        self.written_chars += chars

    def _add_call(self, fragment: dict[str, Any], *, whole: bool) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        id_, name, arguments = _text(fragment.get("id")), _text(function.get("name")), _text(function.get("arguments"))
        self._take(len(name) + len(arguments))
        index = fragment.get("index")
        index = index if isinstance(index, int) and not whole else None
        call = None if whole else self._call_of(index, id_)
        if call is None or call.is_followed_by(id_, name, arguments, self._reader):
            call = _Call(index)
            self._calls.append(call)
            if index is not None:
                self._open[index] = call
        call.add(id_, name, arguments)
        self._hold(call.extra, fragment, _CALL_EXTRAS)

    def _hold(self, held: dict[str, Any], sent: dict[str, Any], names: Iterable[str]) -> None:
        """Take what is sent back as it came, while all of it is short enough to be kept."""
        for name in names:
            value = sent.get(name)
            if isinstance(value, dict) and value:
                self._held_chars += json_chars(value)
                if self._held_chars <= LIMIT_CHARS:
                    held[name] = value

    def _call_of(self, index: int | None, id_: str) -> _Call | None:
        """Return the call that a fragment seems to continue, None for a new one."""
        if index is not None:
            return self._open.get(index)
        known = next((call for call in reversed(self._calls) if id_ and call.id == id_), None)
        return known or (self._calls[-1] if self._calls else None)

    @property
    def endless(self) -> bool:
        return self._taken > 4 * 1024 * 1024 or len(self._calls) > 128

    @property
    def empty(self) -> bool:
        return not self._text and not self._calls

    def message(self, provider: str | None = None) -> Message:
        """Return the message; it has what `provider`, the endpoint and model that sent it, wants back."""
        reader = ArgumentReader()
        in_order = sorted(self._calls, key=lambda call: call.index or 0)
        ids = call_ids(call.id for call in in_order)
        calls = [reader.call(id_, call.name, "".join(call.arguments)) for id_, call in zip(ids, in_order, strict=True)]
        back = kept(provider, self._wanted_back(in_order))
        return Message(role="assistant", content="".join(self._text), tool_calls=tuple(calls), provider_data=back)

    def _wanted_back(self, calls: list[_Call]) -> dict[str, Any]:
        """Return what the endpoint wants back: blocks always, plain reasoning with tool calls only.

        DeepSeek requires the reasoning of every answer that called tools, however old, and has no use for any other.
        """
        extra, extras = self._extra, [call.extra for call in calls]
        if self._held_chars > LIMIT_CHARS:  # some of it is missing
            extra, extras = {}, []
        said = extra | {name: whole for name, blocks in self._blocks.items() if (whole := blocks.whole())}
        if calls and not any(name in said for name in _BLOCKS):
            said |= {name: storable_text("".join(pieces)) for name, pieces in self._reasoning.items()}
        return ({"message": said} if said else {}) | ({"calls": extras} if any(extras) else {})


def call_ids(sent: Iterable[str]) -> list[str]:
    """Return the ids of an answer's calls; missing and duplicate ones are replaced."""
    ids: list[str] = []
    for id_ in sent:
        ids.append(id_ if id_ and id_ not in ids else f"call_{uuid.uuid4().hex}")
    return ids


def _text(value: Any) -> str:
    """Return a text, or JSON for the few endpoints that send arguments as an object."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def _plain_text(content: Any) -> str:
    """Return the text of a message, which a few endpoints send as a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text", part.get("refusal")) if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def _thinking(content: Any) -> str:
    """Return the reasoning in a content that is a list of parts, as Mistral's."""
    parts = content if isinstance(content, list) else []
    thoughts = (part.get("thinking") for part in parts if isinstance(part, dict) and part.get("type") == "thinking")
    return "".join(map(_plain_text, thoughts))


def is_call(text: str) -> bool:
    """Return whether an answer is a tool call that was left as text; an answer about them has them in code blocks."""
    return "```" not in text and _CALL.search(text) is not None
