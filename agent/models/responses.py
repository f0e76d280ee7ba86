"""The wire format of OpenAI's Responses API: requests, and the assembly of answers.

Nothing is stored at the endpoint: each request has the whole thread, and with it the reasoning, encrypted or plain, as
the endpoint sent it. Endpoints are untrusted: any part of an answer may be missing, of the wrong type, or endless, and
many implement only a part of this API.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.frozen import storable_text
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall
from agent.models.chat_completions import call_ids
from agent.models.chat_request import cache_key, response_format, sent_function, shown_function
from agent.models.endpoint_errors import UnusableAnswer
from agent.models.model import Arrived
from agent.models.provider_data import LIMIT_CHARS, json_chars, kept, kept_for
from agent.models.settings import RequestSettings
from agent.models.shown_message import ShownFile, ShownMessage, shown_messages
from agent.models.tool_names import wire_name
from agent.tools.intake import ArgumentReader

_USUAL = RequestSettings()
_ID_CHARS = 64
_ITEMS_LIMIT = 512
_SAID, _CALLED, _REASONED = "message", "function_call", "reasoning"
_ENDS = {f"response.{status}": status for status in ("completed", "incomplete", "failed", "cancelled")}
_DELTAS = {
    "response.output_text.delta": _SAID,
    "response.refusal.delta": _SAID,
    "response.function_call_arguments.delta": _CALLED,
    "response.reasoning_summary_text.delta": _REASONED,
    "response.reasoning_text.delta": _REASONED,
}
_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


# --- requests ---


def request_body(
    model: str, request: InferenceRequest, settings: RequestSettings = _USUAL, provider: str | None = None
) -> dict[str, Any]:
    """Return the request; see chat_request.request_body."""
    items = [
        item
        for position, shown in enumerate(shown_messages(request.messages, request.contents))
        for item in _items(shown, position, kept_for(shown.message, provider))
    ]
    body: dict[str, Any] = {"model": model, "input": items, "store": False, **_asked(request, settings)}
    if request.system_prompt:
        body["instructions"] = request.system_prompt
    if provider is not None:
        body["include"] = ["reasoning.encrypted_content"]
    if request.tools:
        # A schema is strict here unless the request says otherwise, and then may have no optional argument.
        body["tools"] = [{"type": "function", **shown_function(tool), "strict": False} for tool in request.tools]
    # So that {"reasoning": {"summary": "auto"}} does not replace the effort.
    joined = {
        name: {**body[name], **value}
        for name, value in settings.extra.items()
        if isinstance(value, Mapping) and isinstance(body.get(name), dict)
    }
    return {**body, **settings.extra, **joined}


def _asked(request: InferenceRequest, settings: RequestSettings) -> dict[str, Any]:
    shape = response_format(settings.response_format, request.output_schema)
    cached = settings.prompt_cache == "prompt_cache_key"
    asked: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_output_tokens,
        "reasoning": {"effort": settings.reasoning_effort} if settings.reasoning_effort else None,
        "text": {"format": {"type": shape["type"], **shape.get("json_schema", {})}} if shape else None,
        "prompt_cache_key": cache_key(request.thread) if cached else None,
    }
    if request.tools:
        choice = settings.tool_choice
        named = choice is None or choice in ("auto", "none", "required")
        asked["tool_choice"] = choice if named else {"type": "function", "name": wire_name(choice or "")}
        asked["parallel_tool_calls"] = settings.parallel_tool_calls
    return {name: value for name, value in asked.items() if value is not None}


def _items(shown: ShownMessage, position: int, back: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the items of a message; those of an answer in the order in which its endpoint sent them."""
    message = shown.message
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        return
    if message.role != "assistant":
        yield {"role": message.role, "content": [*map(_part, shown.parts)] or message.content}
        return
    said = _Sent(message, position)
    kept_items = back.get("items", ())
    sent = sum(item.get("type") == _CALLED for item in kept_items)
    chars = sum(item.get("chars", 0) for item in kept_items if item.get("type") == _SAID)
    # Else a hook changed the answer, and what the endpoint knows of it no longer fits.
    if sent == len(message.tool_calls) and chars == len(message.content):
        for item in kept_items:
            yield from said.item(item)
    yield from said.rest()


def _part(part: str | ShownFile) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if part.is_image:
        return {"type": "input_image", "image_url": part.data_uri(), "detail": "auto"}
    return {"type": "input_file", "filename": part.name, "file_data": part.data_uri()}


class _Sent:
    """An answer as it is sent back, item by item. Some endpoints require an id of each item, so each has one."""

    def __init__(self, message: Message, position: int) -> None:
        self._text = message.content
        self._calls = list(message.tool_calls)
        self._position = position
        self._said = bool(message.tool_calls)

    def item(self, kept_item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what a kept item stands for."""
        same = {name: kept_item[name] for name in ("id", "phase") if name in kept_item}
        if kept_item.get("type") == _SAID:
            chars = kept_item["chars"]
            text, self._text = self._text[:chars], self._text[chars:]
            yield self._message(text) | same
        elif kept_item.get("type") == _CALLED:
            yield _sent_call(self._calls.pop(0)) | same
        else:
            yield dict(kept_item)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield what no kept item stands for."""
        if self._text or not self._said:
            yield self._message(self._text or "(no text)")  # some endpoints refuse an empty answer in a history
        yield from map(_sent_call, self._calls)

    def _message(self, text: str) -> dict[str, Any]:
        self._said = True
        content = [{"type": "output_text", "text": text, "annotations": []}]
        same = {"type": _SAID, "role": "assistant", "status": "completed"}
        return {**same, "id": f"msg_{self._position}", "content": content}


def _sent_call(call: ToolCall) -> dict[str, Any]:
    return {"type": _CALLED, "id": f"fc_{call.id}"[:_ID_CHARS], "call_id": call.id, **sent_function(call)}


# --- answers ---


@dataclass
class _Item:
    """An item of the output: a message, a call, reasoning, or what a tool of the endpoint's own did.

    `whole` is what is kept of an ended item, and `said` its text; `pieces` came by deltas, the last of them of `part`.
    """

    kind: str
    index: int | None = None
    ids: set[str] = field(default_factory=set)
    name: str = ""
    call_id: str = ""
    pieces: list[str] = field(default_factory=list)
    part: Any = None
    whole: dict[str, Any] | None = None
    said: str = ""

    def describe(self, item: Mapping[str, Any]) -> None:
        """Take the names that an item has from its start."""
        self.ids |= {known for name in ("id", "call_id") if isinstance(known := item.get(name), str) and known}
        self.name = self.name or _text(item.get("name"))
        self.call_id = self.call_id or _text(item.get("call_id"))

    @property
    def text(self) -> str:
        """The item's text: a message, arguments or reasoning. What it ended with counts, not its pieces."""
        return self.said or "".join(self.pieces)


@dataclass
class Gathered:
    """An answer as received so far, from a stream or at once; see chat_completions.Gathered.

    Deltas and ends of items are matched by id, index, or the order in which items began: endpoints omit each of these.
    """

    finish_reason: str = ""
    usage: Any = None
    written_chars: int = 0
    reasoning_chars: int = 0
    begun: bool = False
    refused: bool = False
    ended: bool = False
    _items: list[_Item] = field(default_factory=list)
    _taken: int = 0
    _held_chars: float = 0

    def add(self, answer: Any) -> Arrived:
        """Add an event of a stream or a whole answer, as JSON; return what it brought. Raises UnusableAnswer."""
        if not isinstance(answer, dict):
            raise UnusableAnswer("JSON that is not an object")
        self._taken += 1  # counts empty events too: a stream of them must end
        kind = _text(answer.get("type"))
        response = answer if isinstance(answer.get("output"), list) else answer.get("response")
        if isinstance(response, dict):
            self.usage = _usage(response.get("usage")) or self.usage
            ends = _text(response.get("status")) or "completed" if response is answer else _ENDS.get(kind)
            return self._end(response, ends) if ends else Arrived()
        if kind in _DELTAS:
            return self._add_delta(kind, answer)
        item = answer.get("item")
        if isinstance(item, dict) and kind == "response.output_item.added":
            self.begun = True
            self._begin(_text(item.get("type")), answer).describe(item)
        elif isinstance(item, dict) and kind == "response.output_item.done":
            return self._add_whole(item, answer)
        return Arrived()

    def _add_delta(self, kind: str, answer: dict[str, Any]) -> Arrived:
        self.begun = True
        delta = _text(answer.get("delta"))
        item = self._item(_DELTAS[kind], answer) or self._begin(_DELTAS[kind], answer)
        part, item.part = item.part, answer.get("summary_index")
        if item.pieces and part != item.part:
            delta = f"\n\n{delta}"
        item.pieces.append(delta)
        self.refused = self.refused or (kind == "response.refusal.delta" and bool(delta))
        return self._brought(item.kind, delta)

    def _add_whole(self, item: dict[str, Any], answer: Mapping[str, Any]) -> Arrived:
        """Take an item that is complete; it brings what its deltas have not."""
        self.begun = True
        kind = _text(item.get("type"))
        found = self._item(kind, {**answer, "item_id": item.get("id") or item.get("call_id")})
        found = found or self._begin(kind, answer)
        found.describe(item)
        found.said = _text_of(kind, item)
        found.whole = self._held(kind, item)
        self.refused = self.refused or (kind == _SAID and _has_refusal(item))
        return Arrived() if found.pieces else self._brought(kind, found.text)

    def _held(self, kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is kept of an item: texts and calls are in the message, everything else is the endpoint's.

        Nothing is, once all of it is too long to be kept.
        """
        if kind in (_SAID, _CALLED):
            return {name: known for name in ("id", "phase") if isinstance(known := item.get(name), str) and known}
        self._held_chars += json_chars(item)
        return dict(item) if self._held_chars <= LIMIT_CHARS else {}

    def _brought(self, kind: str, text: str) -> Arrived:
        self._taken += len(text)
        self.written_chars += len(text)
        if kind == _REASONED:
            self.reasoning_chars += len(text)
            return Arrived(reasoning=text)
        return Arrived(text=text if kind == _SAID else "")

    def _begin(self, kind: str, answer: Mapping[str, Any]) -> _Item:
        item = _Item(kind, _index(answer))
        if named := _text(answer.get("item_id")):
            item.ids.add(named)
        self._items.append(item)
        return item

    def _item(self, kind: str, answer: Mapping[str, Any]) -> _Item | None:
        """Return the item that an event is about, None if it is new."""
        alike = [item for item in self._items if item.kind == kind]
        named, index = _text(answer.get("item_id")), _index(answer)
        if named and (found := next((item for item in alike if named in item.ids), None)):
            return found
        if index is not None and (found := next((item for item in alike if item.index == index), None)):
            return found
        # Several endpoints name an item differently from event to event: the first open one is meant.
        return next((item for item in alike if item.whole is None and None in (index, item.index)), None)

    def _end(self, response: dict[str, Any], ends: str) -> Arrived:
        """Take the response that ends a stream, or that is the whole answer."""
        self.ended = True
        listed = response.get("output")
        listed = listed[: _ITEMS_LIMIT + 1] if isinstance(listed, list) else []  # each is looked for among all others
        output = [item for item in listed if isinstance(item, dict)]
        brought = Arrived()
        # Its items may lack what they had when they ended, so it counts only where some are missing.
        if len(output) > len(self._items) or (output and any(item.whole is None for item in self._items)):
            brought = self._replace(output)
        self.begun = self.begun or ends in ("completed", "incomplete")
        if ends == "incomplete":
            details = response.get("incomplete_details")
            reason = _text(details.get("reason")) if isinstance(details, dict) else ""
            self.finish_reason = _REASONS.get(reason) or storable_text(reason[:_ID_CHARS]) or "length"
        elif ends == "completed":
            self.finish_reason = "tool_calls" if any(item.kind == _CALLED for item in self._items) else "stop"
        elif ends in ("failed", "cancelled"):
            self.finish_reason = "error"
        return brought

    def _replace(self, output: Sequence[dict[str, Any]]) -> Arrived:
        shown = {item.kind for item in self._items if item.pieces or item.whole is not None}
        self._items, self._held_chars = [], 0
        written, reasoned = self.written_chars, self.reasoning_chars
        parts = [(_text(item.get("type")), self._add_whole(item, {})) for item in output]
        if shown:  # its characters have been counted
            self.written_chars, self.reasoning_chars = written, reasoned
        text = "".join(part.text for kind, part in parts if kind not in shown)
        return Arrived(text, "".join(part.reasoning for kind, part in parts if kind not in shown))

    @property
    def endless(self) -> bool:
        return self._taken > 4 * 1024 * 1024 or len(self._items) > _ITEMS_LIMIT

    @property
    def empty(self) -> bool:
        return not any(item.kind == _CALLED or (item.kind == _SAID and item.text) for item in self._items)

    def message(self, provider: str | None = None) -> Message:
        """Return the message; it has what `provider`, the endpoint and model that sent it, wants back."""
        items = self._in_order()
        calls = [item for item in items if item.kind == _CALLED]
        reader = ArgumentReader()
        read = [
            reader.call(id_, item.name, item.text)
            for id_, item in zip(call_ids([item.call_id for item in calls]), calls, strict=True)
        ]
        content = "".join(item.text for item in items if item.kind == _SAID)
        wanted = [kept_item for item in items if (kept_item := _kept_item(item)) is not None]
        # Without reasoning the message says it all.
        opaque = any(item.get("type") not in (_SAID, _CALLED) or "phase" in item for item in wanted)
        back = kept(provider, {"items": wanted} if opaque and self._held_chars <= LIMIT_CHARS else {})
        return Message(role="assistant", content=content, tool_calls=tuple(read), provider_data=back)

    def _in_order(self) -> list[_Item]:
        if all(item.index is not None for item in self._items):
            return sorted(self._items, key=lambda item: item.index or 0)
        return self._items


def _kept_item(item: _Item) -> dict[str, Any] | None:
    """Return an item as the message keeps it, None if it does not."""
    if item.kind == _SAID:
        return {"type": _SAID, **(item.whole or {}), "chars": len(item.text)} if item.text else None
    if item.kind == _CALLED:
        return {"type": _CALLED, **(item.whole or {})}
    return item.whole if item.kind else None  # reasoning that did not end cannot be continued


def _text_of(kind: str, item: Mapping[str, Any]) -> str:
    if kind == _CALLED:
        arguments = item.get("arguments")
        return arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
    if kind == _SAID:
        return "".join(_texts(item.get("content"), "text", "refusal"))
    if kind == _REASONED:
        return "\n\n".join(_texts(item.get("summary"), "text")) or "".join(_texts(item.get("content"), "text"))
    return ""


def _texts(parts: Any, *names: str) -> Iterator[str]:
    if isinstance(parts, str):  # as a few endpoints send it
        yield parts
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            yield next((said for name in names if (said := _text(part.get(name)))), "")


def _has_refusal(item: Mapping[str, Any]) -> bool:
    parts = item.get("content")
    return any(isinstance(part, dict) and part.get("refusal") for part in (parts if isinstance(parts, list) else ()))


def _usage(reported: Any) -> dict[str, Any]:
    """Return the usage with the names of chat completions, which usage_of reads."""
    reported = reported if isinstance(reported, dict) else {}
    names = {
        "input_tokens": "prompt_tokens",
        "input_tokens_details": "prompt_tokens_details",
        "output_tokens": "completion_tokens",
        "output_tokens_details": "completion_tokens_details",
    }
    return {names.get(name, name): value for name, value in reported.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _index(answer: Mapping[str, Any]) -> int | None:
    index = answer.get("output_index")
    return index if isinstance(index, int) and not isinstance(index, bool) else None
