"""Brings the tool calls of a model into a form that can be stored and sent again, whatever they hold.

JSON lets a model write half of a surrogate pair, and Python reads it: that is how a file whose name is not UTF-8 is
named in a call. A tool gets such arguments as they were sent; no store and no endpoint takes them.
"""

from __future__ import annotations

import json

from agent.frozen import frozen_arguments, storable_text
from agent.messages import Message, ToolCall


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
        arguments = frozen_arguments(json.loads(text, parse_constant=str))
        return call.model_copy(update={"arguments": arguments, "raw_arguments": json.dumps(call.arguments)})
    return call
