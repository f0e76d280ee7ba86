"""Finds the one JSON value in a model's answer, which may be in a code fence or in prose."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import cast

from pydantic import JsonValue

from agent.frozen import levels

MAX_VALUE_CHARS = 64 * 1024
"""Of a value as ASCII JSON; stores limit the values of a thread, too."""
MAX_DEPTH = 64

_ANSWER_CHARS = 4 * MAX_VALUE_CHARS
_STARTS = 200
_FENCE = re.compile(r"^```(?:json|JSON)?[ \t\r]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_START = re.compile(r"[{\[]")
# Text that begins like this and does not parse is broken JSON, not prose: a valid part of it is not the answer.
_MEANT = re.compile(r"""\{\s*["}]|\[\s*["\[{\]\d-]""")


def json_in(answer: str) -> JsonValue:
    """Return the one JSON value of an answer: alone, in a code fence, or an object or array with prose around it.

    Raises ValueError with a message for the model. The value survives a round trip through stored JSON.
    """
    if len(answer) > _ANSWER_CHARS:
        raise ValueError(f"the answer has {len(answer)} characters, {_ANSWER_CHARS} at most are read")
    if not answer.strip():
        raise ValueError("the answer is empty")
    try:
        return _kept(_decoded(answer))
    except _NotJson as error:
        problem = error
    found = list(islice(_fenced(answer), 2)) or list(islice(_embedded(answer), 2))
    if len(found) > 1:
        raise ValueError("there is more than one JSON value in the answer: send exactly one, and nothing else")
    if not found:
        raise ValueError(f"the answer is not JSON: {problem}")
    return _kept(found[0])


class _NotJson(ValueError):
    """The text is not JSON; a part of it may be."""


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _decoded(text: str) -> JsonValue:
    try:
        return cast(JsonValue, _DECODER.decode(text.strip()))
    except (ValueError, RecursionError) as error:
        raise _NotJson(str(error)) from None


def _fenced(text: str) -> Iterator[JsonValue]:
    for fence in islice(_FENCE.finditer(text), _STARTS):
        with suppress(_NotJson):
            yield _decoded(fence[1])


def _embedded(text: str) -> Iterator[JsonValue]:
    """Yield the outermost objects and arrays in a text, up to the first broken one."""
    position = 0
    for _ in range(_STARTS):
        start = _START.search(text, position)
        if start is None:
            return
        try:
            value, position = _DECODER.raw_decode(text, start.start())
            yield value
        except (ValueError, RecursionError):
            if _MEANT.match(text, start.start()):
                return
            position = start.end()


def _kept(value: JsonValue) -> JsonValue:
    """Return a value that can be stored. Raises ValueError for any other."""
    if all(islice(levels(value), MAX_DEPTH + 1)):
        raise ValueError(f"the value is nested more than {MAX_DEPTH} deep")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e999 is infinite, "\ud800" half a character
    except ValueError as error:
        raise ValueError(f"the value cannot be kept as JSON: {error}") from None
    return value
