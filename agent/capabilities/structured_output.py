"""A final answer that is one JSON value and fits a schema: asked for, checked, asked for again with the errors, stored.

The schema is a pydantic model class or a JSON Schema (Draft 2020-12); no $ref in it is ever fetched. What is stored, in
the thread's metadata under VALUE, is the value as the model wrote it, so a default that it left out is not there.

Together with self_critique this hook judges first: it is further in, and a critique of an answer that does not fit
would be wasted. An answer that the critique sends back is judged here again. Both count as forced continuations.

A `pattern` of the schema is a Python regular expression over what a model wrote. One that backtracks without bound
("(a+)+$") can bring the whole process to a stand, and no timeout ends that: whoever writes the schema answers for it.
Other keywords that cost much, uniqueItems over thousands of objects, run in a thread and into this hook's timeout.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from jsonschema import Draft202012Validator, SchemaError
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from pydantic import BaseModel, JsonValue, ValidationError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema

from agent.capability import Capability
from agent.hook import Hook
from agent.messages import Message
from agent.state import AgentState

VALUE = "structured_output.value"
"""Where the value is in the thread's metadata."""

MAX_VALUE_CHARS = 64 * 1024
"""Of the value as JSON in ASCII: whoever keeps the thread bounds its values too."""
MAX_SCHEMA_CHARS = 64 * 1024
MAX_DEPTH = 64
MAX_ERRORS = 10

_RETRIES = "structured_output.retries"
_NAME = "structured_output"
_ERROR_CHARS = 300
_ANSWER_CHARS = 4 * MAX_VALUE_CHARS
_STARTS = 200
_FENCE = re.compile(r"^```(?:json|JSON)?[ \t\r]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_START = re.compile(r"[{\[]")
# What begins like this and is no JSON is broken JSON, not prose; a part of it that is whole is not the answer.
_MEANT = re.compile(r"""\{\s*["}]|\[\s*["\[{\]\d-]""")

_Errors = Callable[[JsonValue], list[str]]


class StructuredOutput(Hook):
    """Lets a run end with an answer that fits, and asks `retries` times for one that does."""

    name = _NAME
    # Further in than flow, so that its word on the stop is the first, and than self_critique, which looks at it. At
    # before_inference it comes last: what the answer must look like stands at the end of the system prompt.
    priority = -20
    timeout_s = 10.0

    def __init__(self, schema: Mapping[str, JsonValue], errors_in: _Errors, retries: int) -> None:
        self.retries = retries
        self._errors_in = errors_in
        self._instruction = (
            "Your final answer, the one message in which you call no tool, must be exactly one JSON value that fits "
            f"this JSON Schema, and nothing else: no text around it, no code fence.\n{json.dumps(schema)}"
        )

    async def execution_start(self, state: AgentState) -> AgentState:
        return state.without_metadata(VALUE)  # of an earlier run of the thread

    async def before_inference(self, state: AgentState) -> AgentState:
        before = state.current.system_prompt
        return state.with_system_prompt(f"{before}\n\n{self._instruction}" if before else self._instruction)

    async def after_step(self, state: AgentState) -> AgentState:
        response = state.current.response
        if response is None or response.message.tool_calls:
            return state
        # In a thread: a large answer takes a while to judge, and other runs must not wait for it.
        value, errors = await asyncio.to_thread(self._judged, response.message.content)
        if not errors:
            state = state.with_metadata(VALUE, value)
            return state.allow_stop(self.name, "valid", "the answer fits the schema")
        # An earlier answer may have fitted and been sent back by another hook: it is not this run's answer.
        state = state.without_metadata(VALUE)
        seen = state.notes.get(_RETRIES, 0)
        used = seen if isinstance(seen, int) else 0
        if used >= self.retries:
            reason = f"{used + 1} answers did not fit the schema, {self.retries} retries are allowed; {errors[0]}"
            return state.forbid_continuation(self.name, "retries", reason)
        said = "\n".join(f"- {error}" for error in errors)
        request = Message(
            role="user",
            content=f"Your answer does not fit the JSON Schema that it must fit:\n{said}\n"
            "Answer again with exactly one JSON value that fits, and nothing else.",
        )
        state = state.say(request).with_note(_RETRIES, used + 1)
        reason = f"the answer does not fit the schema, retry {used + 1} of {self.retries}: {errors[0]}"
        return state.request_continuation(self.name, "invalid", reason)

    def _judged(self, answer: str) -> tuple[JsonValue, list[str]]:
        """Return the value in an answer and no errors, or what is wrong with it."""
        try:
            value = json_in(answer)
            if len(json.dumps(value)) > MAX_VALUE_CHARS:
                raise ValueError(f"the value has more than {MAX_VALUE_CHARS} characters as JSON: make it shorter")
            errors = self._errors_in(value)
        except ValueError as error:
            return None, [_short(str(error))]
        return value, errors


def json_in(answer: str) -> JsonValue:
    """Return the one JSON value of an answer: alone, in a code fence, or an object or array with prose around it.

    Raises ValueError that tells a model what is wrong. The value always comes back the same from stored JSON.
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
    """A text is no JSON; another part of it may be."""


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _decoded(text: str) -> JsonValue:
    try:
        return cast(JsonValue, _DECODER.decode(text.strip()))
    except (ValueError, RecursionError) as error:
        raise _NotJson(str(error)) from None


def _fenced(text: str) -> Iterator[JsonValue]:
    """Yield the values of the code fences that hold one."""
    for fence in islice(_FENCE.finditer(text), _STARTS):
        with suppress(_NotJson):
            yield _decoded(fence[1])


def _embedded(text: str) -> Iterator[JsonValue]:
    """Yield the objects and arrays that stand in a text, the outermost ones; none from where broken JSON begins."""
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
    """Return a value that state and storage can keep. Raises ValueError for another."""
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
        if not level:
            break
    else:
        raise ValueError(f"the value is nested more than {MAX_DEPTH} deep")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e999 is infinite, "\ud800" half a character
    except ValueError as error:
        raise ValueError(f"the value cannot be kept as JSON: {error}") from None
    return value


def _short(text: str) -> str:
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


def _model_errors(model: type[BaseModel]) -> _Errors:
    def errors_in(value: JsonValue) -> list[str]:
        try:
            # As JSON, so that a strict model takes what JSON has no type for, such as a date.
            model.model_validate_json(json.dumps(value))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ERRORS]
            return [_short(f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}") for one in found]
        except Exception as error:  # a validator of the model's author, on a value that he did not think of
            return [_short(f"the value was refused: {type(error).__name__}: {error}")]
        return []

    return errors_in


def _schema_errors(schema: dict[str, JsonValue]) -> _Errors:
    validator: Any = Draft202012Validator(schema, registry=REGISTRY)  # the specifications alone: nothing is fetched

    def errors_in(value: JsonValue) -> list[str]:
        try:
            found = list(islice(validator.iter_errors(value), MAX_ERRORS))
        except Exception as error:  # a schema that refers to itself without end, a number too large to divide
            return [_short(f"the value could not be judged: {type(error).__name__}: {error}")]
        return [f"{_short(one.json_path)}: {_short(one.message)}" for one in found]

    return errors_in


def _checked(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a copy of a schema that is one. Raises ValueError that says where it is not."""
    try:
        text = json.dumps(dict(schema), allow_nan=False)
        copy: dict[str, JsonValue] = json.loads(text)
        if len(text) > MAX_SCHEMA_CHARS:
            raise ValueError(f"it has {len(text)} characters as JSON, {MAX_SCHEMA_CHARS} at most are taken")
        Draft202012Validator.check_schema(copy)
        root = DRAFT202012.create_resource(copy)
        _check_references(root, REGISTRY.with_resource(root.id() or "", root).resolver(root.id() or ""))
    except SchemaError as error:
        raise ValueError(f"the JSON Schema is wrong at {error.json_path}: {_short(error.message)}") from None
    except RecursionError:
        raise ValueError("the JSON Schema is nested too deep") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the JSON Schema cannot be taken: {_short(str(error))}") from None
    return copy


def _check_references(resource: Any, resolver: Any) -> None:
    """Raise ValueError for a reference to something that is neither in the schema nor in the specifications."""
    contents: Schema = resource.contents
    for keyword in ("$ref", "$dynamicRef"):
        reference = contents.get(keyword) if isinstance(contents, Mapping) else None
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                raise ValueError(
                    f"its {keyword} {reference!r} leads nowhere: put what it means under $defs, nothing is fetched"
                ) from None
    for inner in resource.subresources():
        _check_references(inner, resolver.in_subresource(inner))


def structured_output(schema: type[BaseModel] | Mapping[str, JsonValue], *, retries: int = 2) -> Capability:
    """Return what holds the final answer to a schema. Raises ValueError for a bad schema, and says where it is bad."""
    if retries < 0:
        raise ValueError(f"retries is {retries}: it is 0 or more")
    if isinstance(schema, type):
        try:
            shown = schema.model_json_schema()
        except Exception as error:  # pydantic has several errors for types that JSON cannot say
            raise ValueError(f"{schema.__name__} has no JSON Schema: {error}") from error
        hook = StructuredOutput(shown, _model_errors(schema), retries)
    else:
        checked = _checked(schema)
        hook = StructuredOutput(checked, _schema_errors(checked), retries)
    return Capability(_NAME, hooks=(hook,))
