"""The bounds of a tool call, before anything judges, stores or copies it.

A model's output and a service's request are read many times. Absurd ones are refused here, once, with the bound and a
remedy. What passes is strict JSON that every store returns unchanged.
"""

import json
import math

from pydantic import JsonValue

from agent.frozen import frozen_arguments, levels, storable_text
from agent.messages import ToolCall

ARGUMENTS_LIMIT_CHARS = 4 * 1024 * 1024
"""The size limit of a request to the gateway in bytes, so that a service never meets this limit first."""

ARGUMENTS_LIMIT_VALUES = 20_000
ARGUMENTS_LIMIT_DEPTH = 96
NAME_LIMIT_CHARS = 128
_RAW_LIMIT_CHARS = 1_000
_TOO_MANY = (
    f"hold more than {ARGUMENTS_LIMIT_VALUES:,} values, the limit for all calls of an answer together: "
    "do it in several steps"
)
_TOO_DEEP = f"are nested more than {ARGUMENTS_LIMIT_DEPTH} deep: make them flatter"


def bounded(call: ToolCall) -> ToolCall:
    """Return the call with a printable name, and with arguments within bounds or else a problem."""
    name = call.name if call.name.isprintable() else repr(call.name[:NAME_LIMIT_CHARS])
    changes: dict[str, object] = {}
    if len(name) > NAME_LIMIT_CHARS or name != call.name:
        changes["name"] = storable_text(name[:NAME_LIMIT_CHARS])
    problem = call.problem or _problem(call.raw_arguments, call.arguments)
    if problem:
        changes |= {"arguments": None, "problem": problem}
    if problem or (call.arguments is None and len(call.raw_arguments) > _RAW_LIMIT_CHARS):
        changes["raw_arguments"] = storable_text(call.raw_arguments[:_RAW_LIMIT_CHARS])
    return call.with_(**changes) if changes else call


def _problem(raw: str, arguments: dict[str, JsonValue] | None) -> str:
    if len(raw) > ARGUMENTS_LIMIT_CHARS:
        return (
            f"have {len(raw):,} characters, the limit is {ARGUMENTS_LIMIT_CHARS:,}: do it in several calls, or build "
            "a large file with a program"
        )
    values = 0
    for depth, level in enumerate(levels(arguments)):
        if depth == ARGUMENTS_LIMIT_DEPTH and level:
            return _TOO_DEEP
        values += len(level)
        if values > ARGUMENTS_LIMIT_VALUES:
            return f"hold more than {ARGUMENTS_LIMIT_VALUES:,} values: do it in several calls"
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            return "hold NaN or Infinity, which are not JSON"
    return ""


class ArgumentReader:
    """Reads the calls of one answer, or one call of a service. All together may have as many values as one call."""

    def __init__(self) -> None:
        self._values_left = ARGUMENTS_LIMIT_VALUES

    def call(self, id_: str, name: str, raw: str) -> ToolCall:
        """Return the call, bounded; arguments that are not a JSON object are kept as text."""
        try:
            # Several endpoints send an empty text for no arguments.
            arguments = self._parsed(raw) if raw.strip() else {}
            call = ToolCall(id=id_, name=name, raw_arguments=raw, arguments=None)
            return bounded(call.with_(arguments=frozen_arguments(arguments)))  # JSON is not validated as JSON again
        except (_TooManyValues, RecursionError) as error:
            problem = _TOO_MANY if isinstance(error, _TooManyValues) else _TOO_DEEP
        return bounded(ToolCall(id=id_, name=name, raw_arguments=raw, arguments=None, problem=problem))

    def holds_object(self, raw: str) -> bool:
        """Return whether a text is a complete JSON object within the limits."""
        try:
            return self._parsed(raw) is not None
        except (_TooManyValues, RecursionError):
            return False

    def _parsed(self, raw: str) -> dict[str, JsonValue] | None:
        if len(raw) > ARGUMENTS_LIMIT_CHARS:
            return None
        values = values_in(raw)
        if values > self._values_left:
            raise _TooManyValues
        self._values_left -= values
        try:
            found = json.loads(raw)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def values_in(text: str) -> int:
    """Estimate the number of values in a JSON text, without parsing it.

    Outside of strings a value costs a comma, and a container its bracket.
    """
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    quotes = plain.count('"')
    if quotes > 1_000_000:  # too many to split; a member has at most four
        return quotes // 4
    outside = "".join(plain.split('"')[::2])
    return outside.count(",") + outside.count("[") + outside.count("{")


class _TooManyValues(Exception):
    """The text has more values than are left."""
