"""The wire format of chat completions: requests, and the assembly of answers.

Endpoints are untrusted: any part of an answer may be missing, of the wrong type, or endless.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.frozen import storable_text
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall, Usage
from agent.models.endpoint_errors import UnusableAnswer
from agent.models.model import CHARS_PER_TOKEN, file_tokens
from agent.models.settings import RequestSettings, ResponseFormat
from agent.models.shown_message import ShownFile, described, shown_message
from agent.tools.intake import ArgumentReader

_USUAL = RequestSettings()


def request_body(model: str, request: InferenceRequest, settings: RequestSettings = _USUAL) -> dict[str, Any]:
    """Return the request: equal requests have equal bytes, and a longer thread begins with those of a shorter one."""
    messages = _messages(request)
    if request.system_prompt:
        messages.insert(0, {"role": "system", "content": request.system_prompt})
    if settings.prompt_cache == "cache_control":
        _mark_cacheable(messages)
    body: dict[str, Any] = {"model": model, "messages": messages, **_asked(request, settings)}
    shown = [{name: getattr(tool, name) for name in ("name", "description", "parameters")} for tool in request.tools]
    if shown:
        body["tools"] = [{"type": "function", "function": tool} for tool in shown]
    return {**body, **settings.extra}


def _asked(request: InferenceRequest, settings: RequestSettings) -> dict[str, Any]:
    choice = settings.tool_choice
    named = choice in (None, "auto", "none", "required")
    bounded = {"max_tokens", "max_completion_tokens"} & settings.extra.keys()
    asked: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "stop": [*settings.stop] or None,
        "reasoning_effort": settings.reasoning_effort,
        settings.max_tokens_name or "max_tokens": None if bounded else settings.max_output_tokens,
        "response_format": _response_format(settings.response_format, request.output_schema),
        "prompt_cache_key": _cache_key(request.thread) if settings.prompt_cache == "prompt_cache_key" else None,
    }
    if request.tools:  # endpoints refuse these without tools
        asked["tool_choice"] = choice if named else {"type": "function", "function": {"name": choice}}
        asked["parallel_tool_calls"] = settings.parallel_tool_calls
    return {name: value for name, value in asked.items() if value is not None}


def _cache_key(thread: str) -> str | None:
    # A digest, because endpoints limit its length, and a thread's id is nothing to them.
    return hashlib.sha256(thread.encode()).hexdigest()[:32] if thread else None


def _response_format(kind: ResponseFormat | None, schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if kind is None or schema is None:
        return None
    named = {"json_schema": {"name": "answer", "schema": schema}} if kind == "json_schema" else {}
    return {"type": kind, **named}


def _mark_cacheable(messages: list[dict[str, Any]]) -> None:
    """Ask for a cache of the prefixes that end with the system prompt and with the last two messages to the model.

    Anthropic's models look for the longest marked prefix that they know, so the last but one is what the request before
    this one marked last.
    """
    spoken = [message for message in messages if message["role"] != "assistant"]
    for message in messages:
        said = message["content"]
        if said and isinstance(said, str):  # all, so that a message has the same bytes once it is no longer marked
            message["content"] = [_text_part(said)]
    for message in {id(message): message for message in (*spoken[:1], *spoken[-2:])}.values():
        texts = [part for part in message["content"] or () if part["type"] == "text"]
        if texts:  # a message of files alone has none, and only texts can be marked everywhere
            texts[-1]["cache_control"] = {"type": "ephemeral"}


def _messages(request: InferenceRequest) -> list[dict[str, Any]]:
    """Return the messages. What tools show follows the step's results as one message of the user.

    A result can only be text, and endpoints refuse any other role between calls and their results.
    """
    sent: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    by_tools: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role != "tool" and by_tools:
            sent.append({"role": "user", "content": by_tools})
            by_tools = []
        called = {call.id: call.name for call in message.tool_calls} or called
        shown = shown_message(message, request.contents)
        said = _message(message, shown.text)
        if message.role == "user" and shown.files:
            text = [_text_part(shown.text)] if shown.text else []
            said["content"] = [*text, *map(_file_part, shown.files)]
        elif message.role == "tool":
            for file in shown.files:
                tool = called.get(message.tool_call_id or "", "a tool")
                by_tools += [_text_part(f"[{tool}: {described(file.attachment)}]"), _file_part(file)]
        sent.append(said)
    return [*sent, {"role": "user", "content": by_tools}] if by_tools else sent


def _message(message: Message, text: str) -> dict[str, Any]:
    # With tool calls all endpoints accept an empty text: some refuse null, others require the key.
    said: dict[str, Any] = {"role": message.role, "content": text}
    if message.tool_calls:
        said["tool_calls"] = [*map(_call, message.tool_calls)]
    elif message.role == "assistant" and not text:
        said["content"] = "(no text)"  # some endpoints refuse an empty answer in a history
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    return said


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _file_part(file: ShownFile) -> dict[str, Any]:
    if file.is_image:
        return {"type": "image_url", "image_url": {"url": file.data_uri()}}
    return {"type": "file", "file": {"filename": file.name, "file_data": file.data_uri()}}


def _call(call: ToolCall) -> dict[str, Any]:
    # Endpoints refuse a name that the model made up, and broken JSON, which the call's result quotes.
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:64] or "_"
    arguments = "{}" if call.arguments is None else json.dumps(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


@dataclass
class _Call:
    """A partial tool call; `continued`: a piece had no name."""

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
    counts the reasoning, which is dropped.
    """

    finish_reason: str = ""
    usage: Any = None
    written_chars: int = 0
    reasoning_chars: int = 0
    begun: bool = False
    refused: bool = False
    _reader: ArgumentReader = field(default_factory=ArgumentReader)  # to look at pieces
    _text: list[str] = field(default_factory=list)
    _calls: list[_Call] = field(default_factory=list)
    _open: dict[int, _Call] = field(default_factory=dict)
    _taken: int = 0

    def add(self, answer: Any) -> str:
        """Add a chunk of a stream or a whole answer, as JSON; return its text. Raises UnusableAnswer."""
        if not isinstance(answer, dict):
            raise UnusableAnswer("JSON that is no object")
        self._taken += 1  # counts empty chunks too: a stream of them must end
        self.usage = answer.get("usage") or self.usage
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return ""
        self.begun = True
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.finish_reason = storable_text(reason[:64])
        whole = isinstance(choice.get("message"), dict)
        said = choice["message"] if whole else choice.get("delta")
        if not isinstance(said, dict):  # some endpoints end with a choice that has no delta
            return ""
        calls = said.get("tool_calls")
        for fragment in calls if isinstance(calls, list) else ():
            if isinstance(fragment, dict):
                self._add_call(fragment, whole=whole)
        return self._add_text(said)

    def _add_text(self, said: dict[str, Any]) -> str:
        refusal = _plain_text(said.get("refusal"))
        self.refused = self.refused or bool(refusal)
        text = _plain_text(said.get("content")) + refusal
        if text:
            self._text.append(text)
        reasoning = said.get("reasoning_content") or said.get("reasoning")
        reasoning_chars = len(reasoning) if isinstance(reasoning, str) else 0
        self.reasoning_chars += reasoning_chars
        self._take(len(text) + reasoning_chars)
        return text

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

    def message(self) -> Message:
        seen: set[str] = set()
        reader = ArgumentReader()
        calls = []
        for call in sorted(self._calls, key=lambda call: call.index or 0):
            id_ = call.id if call.id and call.id not in seen else f"call_{uuid.uuid4().hex}"
            seen.add(id_)
            calls.append(reader.call(id_, call.name, "".join(call.arguments)))
        return Message(role="assistant", content="".join(self._text), tool_calls=tuple(calls))


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


def usage_of(reported: Any, body: Mapping[str, Any], written_chars: int) -> Usage:
    """Return the reported usage; missing or invalid numbers are estimated as characters / 4."""
    reported = reported if isinstance(reported, dict) else {}
    sent_chars = sum(_chars(one) for part in ("messages", "tools") for one in body.get(part, []))
    return Usage(
        input_tokens=_tokens(reported.get("prompt_tokens"), sent_chars),
        output_tokens=_tokens(reported.get("completion_tokens"), written_chars),
    )


def _chars(sent: Mapping[str, Any]) -> int:
    """Return the characters of a message or a tool as JSON; a file counts as many as its tokens are worth."""
    content = sent.get("content")
    if not isinstance(content, list):
        return len(json.dumps(sent, ensure_ascii=False))
    files = [_uri_of(part) for part in content if part["type"] != "text"]
    texts = {**sent, "content": [part for part in content if part["type"] == "text"]}
    tokens = sum(file_tokens(uri[len("data:") :], len(uri) * 3 // 4) for uri in files)
    return len(json.dumps(texts, ensure_ascii=False)) + tokens * CHARS_PER_TOKEN


def _uri_of(part: Mapping[str, Any]) -> str:
    uri: str = part["image_url"]["url"] if part["type"] == "image_url" else part["file"]["file_data"]
    return uri


def _tokens(reported: Any, chars: int) -> int:
    # A negative number would increase a budget.
    known = isinstance(reported, (int, float)) and 0 < reported < 10**9
    return (int(reported) if known else 0) or -(-chars // CHARS_PER_TOKEN)
