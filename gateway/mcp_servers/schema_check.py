"""Checks a value against a server's schema, in bounded time whatever the schema and the value.

Each keyword, descent, comparison and error takes from a budget, and patterns are matched by RE2, which does not
backtrack. What cannot be checked in that way is left to the server, which has to check everything itself.
"""

from __future__ import annotations

import json
import reprlib
import threading
from collections.abc import Iterator, Sized
from functools import lru_cache
from itertools import islice
from typing import Any

from agent.capabilities.json_schema import ERROR_CHARS, MAX_ERRORS, short
from gateway.policy.regexes import compile_within

# A step is about a microsecond.
STEPS_LIMIT = 300_000
STEPS_AT_ONCE = 10_000
"""The most that is done on the event loop, and the most characters that are looked at there."""
# These compare all members with each other, or walk the schema again for each of them.
_LEFT_TO_THE_SERVER = ("uniqueItems", "unevaluatedItems", "unevaluatedProperties", "format", "$dynamicRef")
# To find what these name, the whole schema is walked.
_NAMES = ('"$id"', '"$anchor"', '"$dynamicAnchor"')
# Their values are compared with, at any depth.
_COMPARED = ("enum", "const", "dependentRequired")
# For one pattern: compiling takes some ten milliseconds at most.
_PATTERN_MEMORY_BYTES = 1024 * 1024
_PATTERNS_KEPT = 200
# Of the check in this thread: `steps` that are left, what an `id` costs, `sizes` of what it compares with, and its
# `patterns`.
_LEFT = threading.local()


class TooManySteps(Exception):
    """A check takes too long."""


class SchemaCheck:
    """Checks values against one schema, given as JSON text."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._walks_all = any(name in schema for name in _NAMES)

    def errors_at_once(self, value: Any) -> list[str] | None:
        """Return the errors in a value as `errors` does; None for one that has to be checked in a thread."""
        if self._walks_all or len(self._schema) + _chars(value, STEPS_AT_ONCE) > 2 * STEPS_AT_ONCE:
            return None
        try:
            return self._errors(value, STEPS_AT_ONCE)
        except (TooManySteps, RecursionError):  # a thread has a stack of its own
            return None

    def errors(self, value: Any) -> list[str]:
        """Return the errors in a value, at most MAX_ERRORS. It may take some tenths of a second."""
        try:
            return self._errors(value, STEPS_LIMIT)
        except (TooManySteps, RecursionError) as error:
            return [_too_complex(error)]

    def _errors(self, value: Any, steps: int) -> list[str]:
        _LEFT.steps, _LEFT.id, _LEFT.sizes, _LEFT.patterns = steps, 50 + len(self._schema) // 10, {}, {}
        try:
            found = list(islice(_validator(self._schema).iter_errors(value), MAX_ERRORS))
        except (TooManySteps, RecursionError):
            raise
        except Exception as error:  # a number too large to divide
            return [_too_complex(error)]
        return [f"{short(one.json_path)}: {short(one.message)}" for one in found]


def _too_complex(error: Exception) -> str:
    return f"they are too large or too complex to be checked ({type(error).__name__})"


def _chars(value: Any, limit: int) -> int:
    """Return about how many characters a value has; some number above the limit for one that has more."""
    chars, left = 0, [value]
    while left and chars <= limit:
        one = left.pop()
        chars += len(one) if isinstance(one, str) else 4
        if isinstance(one, dict):
            chars += sum(map(len, one))
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
    return chars


def _take(steps: int) -> None:
    _LEFT.steps -= steps
    if _LEFT.steps < 0:
        raise TooManySteps


# --- the validator ---


@lru_cache(64)
def _validator(schema: str) -> Any:
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # noqa: PLC0415 - see below
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - see below

    contents = json.loads(schema)
    registry = REGISTRY  # nothing is fetched
    if any(name in schema for name in _NAMES):
        root = DRAFT202012.create_resource(contents)
        registry = registry.with_resource(root.id() or "", root).crawl()  # else each reference would do it
    return _validator_class()(contents, registry=registry)


@lru_cache(1)
def _validator_class() -> Any:
    """Return the class of validators that take from the budget."""
    # jsonschema is slow to import, and few gateways have MCP servers.
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - as above

    own: dict[str, Any] = {"pattern": _pattern, "patternProperties": _pattern_properties}
    own |= {"additionalProperties": _additional_properties, "enum": _enum}
    keywords = Draft202012Validator.VALIDATORS | own
    bounded = {name: _counted(name, keyword) for name, keyword in keywords.items() if name not in _LEFT_TO_THE_SERVER}
    bounded |= {name: lambda *_: () for name in _LEFT_TO_THE_SERVER}
    extend: Any = validators.extend
    kind: Any = extend(Draft202012Validator, bounded)
    evolve, descend = kind.evolve, kind.descend

    def counted_evolve(validator: Any, **changes: Any) -> Any:
        schema = changes.get("schema")
        _take(5 + _size(schema) // 4)
        if isinstance(schema, dict) and "$schema" in schema:  # it would choose a class that has no budget
            changes["schema"] = {name: value for name, value in schema.items() if name != "$schema"}
        if schema is False:  # the library would put the whole instance into an error, uncounted
            changes["schema"] = {"not": {}}
        return evolve(validator, **changes)

    def counted_descend(validator: Any, instance: Any, schema: Any, *args: Any, **options: Any) -> Iterator[Any]:
        _take(_LEFT.id if isinstance(schema, dict) and "$id" in schema else 3)
        if schema is False:  # its error holds the whole instance
            _take(10 + _size(instance) // 10)
            instance = instance if _chars(instance, ERROR_CHARS) <= ERROR_CHARS else reprlib.repr(instance)
        yield from descend(validator, instance, schema, *args, **options)

    kind.evolve, kind.descend = counted_evolve, counted_descend
    return kind


def _counted(name: str, keyword: Any) -> Any:
    """Return a keyword that takes from the budget what it costs."""

    def check(validator: Any, value: Any, instance: Any, within: Any) -> Iterator[Any]:
        size = _deep_size(value) if name in _COMPARED else _size(value)
        _take(5 + (size + _size(instance)) // 10)
        if name == "const":  # compared in Python
            _take(size)
        elif name == "$ref":
            _take(20 + len(value) // 10)
        elif name == "multipleOf":  # of fractions, where floats do not do
            _take(30)
        for error in keyword(validator, value, instance, within) or ():
            _take(10 + len(error.message) // 100)
            error.message = short(error.message)
            yield error

    return check


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) and not isinstance(value, str) else 0


def _deep_size(value: Any) -> int:
    """Return how many values there are in a value of the schema."""
    size = _LEFT.sizes.get(id(value))
    if size is None:
        size = _LEFT.sizes[id(value)] = _values(value)
    return int(size)


def _values(value: Any) -> int:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, members))


# --- keywords ---


def _matches(pattern: str, text: str) -> bool | None:
    """Return whether a pattern is found in a text; None for one that RE2 does not know, or that takes too long."""
    _take(3)
    regex = _compiled(pattern)
    if regex is None:
        return None
    steps = len(text) * regex.programsize // 150
    if steps > STEPS_LIMIT // 2:
        return None
    _take(steps)
    return regex.search(text.encode("utf-8", "surrogatepass")) is not None


def _compiled(pattern: str) -> Any:
    """Return what `_regex` does. The first time in a check it costs as much as if nothing had been kept."""
    if pattern not in _LEFT.patterns:
        _take(500 + 100 * len(pattern))
        regex = _LEFT.patterns[pattern] = _regex(pattern)
        _take(5_000 if regex is None else regex.programsize)
    return _LEFT.patterns[pattern]


@lru_cache(_PATTERNS_KEPT)
def _regex(pattern: str) -> Any:
    """Return a compiled pattern; None for one that RE2 does not know, or that needs much memory."""
    try:
        return compile_within(pattern, _PATTERN_MEMORY_BYTES)
    except ValueError:
        return None


def _pattern(_validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415 - see above

    if isinstance(instance, str) and _matches(pattern, instance) is False:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    for pattern, within in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, within, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415 - see above

    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    # One whose pattern is not known to RE2 may be covered by it.
    extra = [
        name
        for name in instance
        if name not in schema.get("properties", {}) and all(_matches(one, name) is False for one in patterns)
    ]
    if rest is False and extra:
        shown = ", ".join(map(repr, extra[:MAX_ERRORS]))
        yield ValidationError(f"there is no argument {shown}")
    for name in extra if isinstance(rest, dict) else ():
        yield from validator.descend(instance[name], rest, path=name)


def _enum(validator: Any, members: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import Draft202012Validator, ValidationError  # noqa: PLC0415 - see above

    # To Python 1 equals True, to JSON Schema it does not: the library compares what is equal to Python.
    equal = [one for one in members if one == instance]
    _take(4 * sum(map(_deep_size, equal)))
    if not equal or any(Draft202012Validator.VALIDATORS["enum"](validator, equal, instance, schema)):
        yield ValidationError(f"{instance!r} is not one of {members!r}")
