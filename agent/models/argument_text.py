"""The arguments of tool calls as text, counted before they are parsed: parsing what is absurd is the harm itself.

Two megabytes of empty lists take a second and a half to parse, and nobody else has a turn meanwhile. What is parsed,
agent.tools.intake then looks at.
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
    """Reads the calls of one answer, or the one of a service. As many values as one call, all may have together."""

    def __init__(self) -> None:
        self._values_left = ARGUMENTS_LIMIT_VALUES

    def call(self, id_: str, name: str, raw: str) -> ToolCall:
        """Return the call, bounded; arguments that are no JSON object are kept raw, for the caller to be shown."""
        problem = ""
        try:
            # No text at all is how several endpoints write "no arguments".
            arguments = self._parsed(raw) if raw.strip() else {}
            return bounded(ToolCall(id=id_, name=name, raw_arguments=raw, arguments=arguments))
        except _TooManyValues:
            problem = _TOO_MANY
        except (ValidationError, RecursionError):
            problem = _TOO_DEEP
        return bounded(ToolCall(id=id_, name=name, raw_arguments=raw, arguments=None, problem=problem))

    def holds_object(self, raw: str) -> bool:
        """Return whether a text is a whole JSON object, as far as it may be looked at."""
        try:
            return self._parsed(raw) is not None
        except (_TooManyValues, RecursionError):
            return False

    def _parsed(self, raw: str) -> dict[str, JsonValue] | None:
        """Return the JSON object in a text; None when there is none, or when the text alone is too long."""
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
    """Return about how many values a JSON text holds, without parsing it.

    Outside of strings a value costs a comma, and a container its bracket.
    """
    plain = text.replace("\\\\", "").replace('\\"', "")
    quotes = plain.count('"')
    if quotes > _SPLIT_LIMIT_QUOTES:  # to split there is what is to be avoided; a member has at most four
        return quotes // 4
    outside = "".join(plain.split('"')[::2])
    return outside.count(",") + outside.count("[") + outside.count("{")


class _TooManyValues(Exception):
    """There are more values than are left."""
