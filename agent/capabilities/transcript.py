"""A thread as Markdown, for the model that summarizes it and for its history file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent.frozen import storable_text
from agent.messages import Message

SHORTENED_CHARS = 2_000

_SHORTENED_TOOLS = frozenset({"write_file", "edit_file"})
_SHORTENED_ARGUMENTS = frozenset({"content", "old_text", "new_text"})
_PIECE_CHARS = 20_000
_LEAST_PIECE_CHARS = 200


def shortened(message: Message) -> Message:
    """Return a message without the bulk of the contents that it wrote to files."""
    calls = []
    for call in message.tool_calls:
        arguments = call.arguments
        if call.name in _SHORTENED_TOOLS and arguments is not None:
            long = {name: arguments.get(name) for name in _SHORTENED_ARGUMENTS}
            cut = {name: short(text, SHORTENED_CHARS) for name, text in long.items() if isinstance(text, str)}
            arguments = {**arguments, **cut}
        calls.append(call.with_(arguments=arguments))
    return message.with_(tool_calls=tuple(calls))


def rendered(message: Message, number: int) -> str:
    """Return a message as Markdown."""
    answers = f" (result of {message.tool_call_id})" if message.tool_call_id else ""
    parts = [f"## {number}. {message.role}{answers}", message.content]
    for call in message.tool_calls:
        arguments = call.raw_arguments if call.arguments is None else call.arguments
        said = json.dumps({"id": call.id, "name": call.name, "arguments": arguments}, ensure_ascii=False)
        parts.append(f"```json\n{said}\n```")
    return "\n\n".join(part for part in parts if part)


def fitting(begin: str, pieces: Sequence[str], limit_chars: int) -> str:
    """Return the texts as one of at most `limit_chars`: the longest pieces are shortened first, `begin` last."""
    begin = short(begin, limit_chars // 2)
    left_chars = limit_chars - len(begin)
    piece_chars = _PIECE_CHARS
    while sum(len(piece) + 2 for piece in pieces) > left_chars and piece_chars >= _LEAST_PIECE_CHARS:
        pieces = [short(piece, piece_chars) for piece in pieces]
        piece_chars //= 2
    text = short("\n\n".join(pieces), left_chars)
    return storable_text(f"{begin}\n\n{text}" if begin else text)


def short(text: str, limit_chars: int) -> str:
    """Return a text, or its head and tail with a note on what is missing, in at most `limit_chars`."""
    if len(text) <= limit_chars:
        return text
    note = f"\n[... at least {len(text) - limit_chars} characters left out ...]\n"
    kept = max(0, limit_chars - len(note))
    tail = kept // 3
    return f"{text[: kept - tail]}{note}{text[len(text) - tail :]}"[: max(0, limit_chars)]
