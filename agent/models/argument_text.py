"""The arguments of tool calls as text, bounded before they are parsed; agent.tools.intake bounds the parsed values.

Parsing blocks the event loop: two megabytes of empty lists take a second and a half.
"""

from __future__ import annotations

import json

from pydantic import JsonValue, ValidationError

from agent.messages import ToolCall
from agent.tools.intake import ARGUMENTS_LIMIT_CHARS, ARGUMENTS_LIMIT_DEPTH, ARGUMENTS_LIMIT_VALUES, bounded

_TOO_MANY = (
    f"hold more than {ARGUMENTS_LIMIT_VALUES:,} values, the limit for all calls of an answer together: "
    "do it in several steps"
)
_SPLIT_LIMIT_QUOTES = 1_000_000
_TOO_DEEP = f"are nested more than {ARGUMENTS_LIMIT_DEPTH} deep: make them flatter"


class ArgumentReader:
    """Reads the calls of one answer, or one call of a service. All together may have as many values as one call."""

    def __init__(self) -> None:
        self._values_left = ARGUMENTS_LIMIT_VALUES

    def call(self, id_: str, name: str, raw: str) -> ToolCall:
        """Return the call, bounded; arguments that are not a JSON object are kept as text."""
        problem = ""
        try:
            # Several endpoints send an empty text for no arguments.
            arguments = self._parsed(raw) if raw.strip() else {}
            return bounded(ToolCall(id=id_, name=name, raw_arguments=raw, arguments=arguments))
        except _TooManyValues:
            problem = _TOO_MANY
        except (ValidationError, RecursionError):
            problem = _TOO_DEEP
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
    plain = text.replace("\\\\", "").replace('\\"', "")
    quotes = plain.count('"')
    if quotes > _SPLIT_LIMIT_QUOTES:  # too many to split; a member has at most four
        return quotes // 4
    outside = "".join(plain.split('"')[::2])
    return outside.count(",") + outside.count("[") + outside.count("{")


class _TooManyValues(Exception):
    """The text has more values than are left."""
