"""The bounds of a tool call, before anything judges, stores or copies it.

A model's output and a service's request are read many times. Absurd ones are refused here, once, with the bound and a
remedy. What passes is strict JSON that every store returns unchanged.
"""

from __future__ import annotations

import math

from pydantic import JsonValue

from agent.frozen import storable_text
from agent.messages import ToolCall

ARGUMENTS_LIMIT_CHARS = 4 * 1024 * 1024
"""The size limit of a request to the gateway in bytes, so that a service never meets this limit first."""

ARGUMENTS_LIMIT_VALUES = 20_000
ARGUMENTS_LIMIT_DEPTH = 96
NAME_LIMIT_CHARS = 128
_RAW_LIMIT_CHARS = 1_000


def bounded(call: ToolCall) -> ToolCall:
    """Return the call with a printable name, and with arguments within bounds or else a problem."""
    name = call.name if call.name.isprintable() else repr(call.name[:NAME_LIMIT_CHARS])
    changes: dict[str, object] = {}
    if len(name) > NAME_LIMIT_CHARS or name != call.name:
        changes["name"] = storable_text(name[:NAME_LIMIT_CHARS])
    if problem := call.problem or _problem(call.raw_arguments, call.arguments):
        changes |= {
            "arguments": None,
            "problem": problem,
            "raw_arguments": storable_text(call.raw_arguments[:_RAW_LIMIT_CHARS]),
        }
    elif call.arguments is None and len(call.raw_arguments) > _RAW_LIMIT_CHARS:
        changes["raw_arguments"] = storable_text(call.raw_arguments[:_RAW_LIMIT_CHARS])
    return call.model_copy(update=changes) if changes else call


def _problem(raw: str, arguments: dict[str, JsonValue] | None) -> str:
    if len(raw) > ARGUMENTS_LIMIT_CHARS:
        return (
            f"have {len(raw):,} characters, the limit is {ARGUMENTS_LIMIT_CHARS:,}: do it in several calls, or build "
            "a large file with a program"
        )
    values = 0
    level: list[JsonValue] = [arguments]
    for _ in range(ARGUMENTS_LIMIT_DEPTH):
        values += len(level)
        if values > ARGUMENTS_LIMIT_VALUES:
            return f"hold more than {ARGUMENTS_LIMIT_VALUES:,} values: do it in several calls"
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            return "hold NaN or Infinity, which are no JSON"
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
        if not level:
            return ""
    return f"are nested more than {ARGUMENTS_LIMIT_DEPTH} deep: make them flatter"
