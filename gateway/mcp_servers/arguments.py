"""Arguments of a server's tool, checked against its pinned schema before they are judged.

The schema is the server's, so a check is bounded: by a number of steps, and by RE2 in place of patterns that backtrack.
What cannot be checked in that way is left to the server, which has to check everything itself.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from pydantic import JsonValue, model_validator

from agent.capabilities.json_schema import MAX_ERRORS, short
from agent.tools.tool import JsonArguments
from gateway.policy.regexes import compile_regex

_STEPS_LIMIT = 50_000
# These compare all members with each other, or walk the schema again for each of them.
_LEFT_TO_THE_SERVER = ("uniqueItems", "unevaluatedItems", "unevaluatedProperties", "format", "$dynamicRef")
Check = Callable[[Any], list[str]]


class _TooManySteps(Exception):
    """A check takes too long."""


@lru_cache(512)
def arguments_of(parameters: str) -> type[JsonArguments]:
    """Return the model of the arguments that a JSON Schema, as JSON text, describes."""
    schema: dict[str, JsonValue] = json.loads(parameters)
    check = _check_of(schema)

    class Arguments(JsonArguments):
        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return {name: value for name, value in copy.deepcopy(schema).items() if name != "$schema"}

        @model_validator(mode="after")
        def _fits(self) -> Arguments:
            if errors := check(self.root):
                raise ValueError("; ".join(errors))
            return self

    return Arguments


def _check_of(schema: Mapping[str, JsonValue]) -> Check:
    """Return what lists the errors in a value."""
    # jsonschema is slow to import, and few gateways have MCP servers.
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - as above
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # noqa: PLC0415 - as above

    steps = 0

    def counted(keyword: Any) -> Any:
        def check(validator: Any, value: Any, instance: Any, within: Any) -> Iterator[Any]:
            nonlocal steps
            steps += 1
            if steps > _STEPS_LIMIT:
                raise _TooManySteps
            yield from keyword(validator, value, instance, within) or ()

        return check

    keywords = {**Draft202012Validator.VALIDATORS, "pattern": _pattern, "patternProperties": _pattern_properties}
    keywords["additionalProperties"] = _additional_properties
    bounded = {name: counted(keyword) for name, keyword in keywords.items() if name not in _LEFT_TO_THE_SERVER}
    bounded |= {name: lambda *_: () for name in _LEFT_TO_THE_SERVER}
    extend: Any = validators.extend
    validator: Any = extend(Draft202012Validator, bounded)(schema, registry=REGISTRY)  # nothing is fetched

    def check(value: Any) -> list[str]:
        nonlocal steps
        steps = 0
        try:
            found = list(islice(validator.iter_errors(value), MAX_ERRORS))
        except Exception as error:  # endless self-reference, a number too large to divide
            return [f"they are too large or too complex to be checked ({type(error).__name__.strip('_')})"]
        return [f"{short(one.json_path)}: {short(one.message)}" for one in found]

    return check


def _matches(pattern: str, text: str) -> bool | None:
    """Return whether a pattern is found in a text; None for one that RE2 does not know."""
    try:
        return compile_regex(pattern).search(text.encode("utf-8", "surrogatepass")) is not None
    except ValueError:
        return None


def _pattern(_validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415 - as above

    if isinstance(instance, str) and _matches(pattern, instance) is False:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    for pattern, within in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, within, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415 - as above

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
