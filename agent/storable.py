"""Brings what a model said into a form that can be stored and sent again, whatever it holds.

JSON lets a model write half of a surrogate pair, and Python reads it: that is how a file whose name is not UTF-8 is
named in a call. No store and no endpoint takes such a character.
"""

from __future__ import annotations

import json

from agent.messages import Message, ToolCall


def storable_text(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable_message(message: Message) -> Message:
    """Return the message as the thread keeps it; `raw_arguments` of a call has what could not be stored, escaped."""
    calls = tuple(_storable_call(call) for call in message.tool_calls)
    if calls == message.tool_calls:
        return message
    return message.model_copy(update={"tool_calls": calls})


def _storable_call(call: ToolCall) -> ToolCall:
    try:
        json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # NaN and infinity, too
        text = storable_text(json.dumps(call.arguments, ensure_ascii=False))
        arguments = json.loads(text, parse_constant=str)
        return call.model_copy(update={"arguments": arguments, "raw_arguments": json.dumps(call.arguments)})
    return call
