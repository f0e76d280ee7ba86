"""Arguments against a server's schema: checked before a call, in bounded time whatever the schema."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import re2

from agent.messages import ToolCall, ToolResult
from agent.tools.tool import JsonArguments, Tool, ToolContext
from agent.tools.toolbox import Toolbox
from gateway.mcp_servers.arguments import arguments_of
from gateway.mcp_servers.schema_check import SchemaCheck
from gateway.support.heavy_work import at_once

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "n": {"type": "integer", "maximum": 9}},
    "required": ["name"],
    "additionalProperties": False,
}


async def _run(_: JsonArguments, __: ToolContext) -> ToolResult:
    return ToolResult(b"")


def prepared(schema: dict[str, Any], arguments: dict[str, Any]) -> Any:
    box = Toolbox([Tool("s/t", "d", arguments_of(json.dumps(schema)), _run)])
    return box.prepare(ToolCall(id="1", name="s/t", arguments=arguments))


@pytest.mark.parametrize(
    "arguments, wrong",
    [
        ({}, "'name' is a required property"),
        ({"name": 5}, "is not of type 'string'"),
        ({"name": "A"}, "does not match"),
        ({"name": "a", "n": 10}, "maximum of 9"),
        ({"name": "a", "other": 1}, "no argument 'other'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_reason(arguments: dict[str, Any], wrong: str) -> None:
    unfit = prepared(SCHEMA, arguments).unfit
    assert unfit is not None
    assert wrong in unfit.text()


def test_arguments_that_fit_are_judged_and_taken_as_they_were_sent() -> None:
    sent = {"name": "a", "n": 5}
    judged = prepared(SCHEMA, sent)
    assert judged.unfit is None
    assert judged.call.arguments == sent
    # Names that a pydantic model has for itself are names like any other.
    odd = {"copy": 1, "model_fields": [1.5], "root": {"json": None}, "__class__": "x", "path": "relative"}
    judged = prepared({"type": "object"}, odd)
    assert json.loads(judged.canonical) == odd


def test_the_model_is_shown_the_pinned_schema() -> None:
    box = Toolbox([Tool("s/t", "d", arguments_of(json.dumps(SCHEMA)), _run)])
    assert box.specs()[0].parameters == SCHEMA


DOUBLING = {
    "type": "object",
    "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)} | {"40": {}},
    "$ref": "#/$defs/0",
}
HOSTILE = {
    "doubling references": (DOUBLING, {}),
    "itself": ({"type": "object", "$ref": "#"}, {}),
    "backtracking": ({"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 5000 + "!"}),
    "look-ahead": ({"type": "object", "patternProperties": {"(?=(a+)+$)b": False}}, {"a" * 5000: 1}),
    "wide": (
        {"type": "object", "additionalProperties": {"anyOf": [{"const": n} for n in range(900)]}},
        dict.fromkeys(map(str, range(900)), -1),
    ),
    "unique": (
        {"type": "object", "properties": {"a": {"uniqueItems": True}}},
        {"a": [{"x": n} for n in range(20_000)]},
    ),
    "patterns by names": (
        {"type": "object", "patternProperties": {f"^p{n}[a-z]*$": {} for n in range(300)}},
        {f"x{n}": 1 for n in range(15_000)},
    ),
    "a long enum": (
        {"type": "object", "properties": {"a": {"items": {"enum": list(range(9000))}}}},
        {"a": [8999] * 10_000},
    ),
    "nothing allowed, many times": (
        {"type": "object", "properties": {"a": {"anyOf": [False] * 9000}}},
        {"a": "\u00e9" * 1_000_000},
    ),
    "wrong, many times": (
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}] * 3000}}},
        {"a": "\u00e9" * 1_000_000},
    ),
    "unknown keywords": (
        {"type": "object", "properties": {"a": {"items": {f"x{n}": {} for n in range(5000)}}}},
        {"a": [1] * 19_000},
    ),
    "a pattern with many states": (
        {"type": "object", "properties": {"a": {"pattern": "(?i)(.*.*.*.*)(a|b|c|[^d]){50}$"}}},
        {"a": "a" * 4_000_000},
    ),
    "anchors": (
        {
            "type": "object",
            "properties": {"a": {"items": {"$ref": "#x"}}},
            "$defs": {"x": {"$anchor": "x"}} | {f"d{n}": {} for n in range(4000)},
        },
        {"a": [1] * 2000},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_schema_takes_bounded_time(name: str) -> None:
    schema, arguments = HOSTILE[name]
    began_s = time.process_time()
    judged = prepared(schema, arguments)
    if judged.model is not None:
        await judged.model.late_errors(at_once)
    assert time.process_time() - began_s < 20


async def late_errors(schema: dict[str, Any], arguments: dict[str, Any]) -> tuple[list[str], int]:
    """Return the errors that are found once a call is allowed, and in how many turns."""
    turns = 0

    async def work(function: Any, /, *args: Any) -> Any:
        nonlocal turns
        turns += 1
        return function(*args)

    judged = prepared(schema, arguments)
    assert judged.unfit is None
    return await judged.model.late_errors(work), turns


async def test_what_is_large_or_takes_long_is_checked_in_a_turn_of_its_tenant() -> None:
    integer = {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}}
    assert await late_errors(integer, {"a": [1] * 9}) == ([], 0)
    assert await late_errors(integer, {"a": [1] * 9000}) == ([], 1)
    assert await late_errors(integer, {"a": [*[1] * 9000, "x"]}) == (["$.a[9000]: 'x' is not of type 'integer'"], 1)
    wide = {"type": "object", "properties": {"a": {"items": {"allOf": [{}] * 1000}}}}
    assert await late_errors(wide, {"a": [1] * 20}) == ([], 1)
    named = {"type": "object", "properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", "minimum": 1}}}
    assert await late_errors(named, {"a": 0}) == (["$.a: 0 is less than the minimum of 1"], 1)


async def test_an_error_does_not_repeat_what_was_sent() -> None:
    for schema in (
        {"type": "integer"},
        {"allOf": [False]},
        {"enum": [1]},
        {"pattern": "^b"},
        {"not": {"type": "string"}},
    ):
        errors, _ = await late_errors({"type": "object", "properties": {"a": schema}}, {"a": "a" * 500_000})
        assert len(errors) == 1
        assert len(errors[0]) < 500


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"]
)
def test_no_part_of_a_schema_chooses_a_validator_of_its_own(draft: str) -> None:
    # RE2 knows \z; Python, whose patterns may backtrack for ever, does not.
    own = {"$schema": draft, "pattern": "^a\\z"}
    referring = {
        "$schema": draft,
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/own"}},
        "$defs": {"own": own},
    }
    within = {"$schema": draft, "type": "object", "properties": {"a": {"anyOf": [own, {"$ref": "#"}]}}}
    for schema in ({"type": "object", "properties": {"a": own}}, referring, within):
        assert prepared(schema, {"a": "a"}).unfit is None
        assert prepared(schema, {"a": "c"}).unfit is not None


def test_a_member_of_an_enum_is_equal_as_json() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, "b", [False], None]}}}
    for fits in (1, 1.0, "b", [False], None):
        assert prepared(schema, {"a": fits}).unfit is None
    for other in (True, "c", [0], 0, {}):
        assert "is not one of" in prepared(schema, {"a": other}).unfit.text()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The patterns that RE2 has compiled from now on."""
    patterns: list[bytes] = []
    compile_ = re2.compile

    def counted(pattern: bytes, *given: Any) -> Any:
        patterns.append(pattern)
        return compile_(pattern, *given)

    monkeypatch.setattr(re2, "compile", counted)
    return patterns


def test_a_pattern_is_compiled_once_even_if_re2_does_not_know_it(compiled: list[bytes]) -> None:
    for pattern in ("once[a-z]", "(?=once)"):
        check = SchemaCheck(json.dumps({"patternProperties": {pattern: False}, "additionalProperties": False}))
        for _ in range(2):
            check.errors(dict.fromkeys(map(str, range(100)), 1))
    assert compiled == [b"once[a-z]", b"(?=once)"]


def test_patterns_that_take_long_to_compile_are_few(compiled: list[bytes]) -> None:
    for pattern in ("(\\pL{30}){30}", "\\pL{25}", "(?=%s)" % ("a" * 50)):
        compiled.clear()
        check = SchemaCheck(json.dumps({"patternProperties": {f"{pattern}{number}": True for number in range(900)}}))
        assert check.errors_at_once({"a": 1}) is None
        assert len(compiled) <= 2
        assert "too complex" in check.errors({"a": 1})[0]
        assert len(compiled) <= 60


class _Text(str):
    """Counts how often it is shown."""

    __slots__ = ()
    shown = 0

    def __repr__(self) -> str:
        _Text.shown += 1
        return super().__repr__()


@pytest.mark.parametrize(
    "schema",
    [{"oneOf": [True] + [False] * 3_000}, {"allOf": [{"not": False}] * 3_000}, {"allOf": [{"if": False}] * 3_000}],
)
def test_what_nothing_fits_is_not_shown_again_and_again(schema: dict[str, Any]) -> None:
    _Text.shown = 0
    SchemaCheck(json.dumps(schema)).errors({"a": _Text("a" * 300_000)})
    assert _Text.shown <= 200


def test_nothing_fits_a_schema_that_is_false() -> None:
    fits: dict[str, Any] = {"oneOf": [True, False], "anyOf": [False, True], "not": False, "if": False, "then": False}
    assert SchemaCheck(json.dumps(fits)).errors_at_once({}) == []
    for schema in ({"oneOf": [False]}, {"contains": False}, {"if": False, "else": False}):
        assert len(SchemaCheck(json.dumps(schema)).errors_at_once([1]) or ()) == 1


class _Number(float):
    """Counts how often it is divided."""

    divided = 0

    def __truediv__(self, other: float) -> float:
        _Number.divided += 1
        return super().__truediv__(other)


def test_divisions_that_take_long_are_few() -> None:
    _Number.divided = 0
    schema = {"items": {"multipleOf": 5e-324, "allOf": [{"multipleOf": 5e-324}] * 5}}
    assert "too complex" in SchemaCheck(json.dumps(schema)).errors([_Number(1.7e308)] * 10_000)[0]
    assert 0 < _Number.divided < 10_000


def test_what_is_too_deep_for_the_stack_of_the_event_loop_is_checked_in_a_thread() -> None:
    either = {"anyOf": [{"type": "string"}, {"allOf": [{"$ref": "#/$defs/tree"}]}]}
    tree = {"type": "object", "additionalProperties": {"$ref": "#/$defs/either"}}
    check = SchemaCheck(json.dumps({"$defs": {"either": either, "tree": tree}, "$ref": "#/$defs/tree"}))
    value: Any = "a"
    for _ in range(35):
        value = {"a": value}

    def errors(frames: int) -> list[str] | None:
        return errors(frames - 1) if frames else check.errors_at_once(value)

    assert errors(300) is None
    with ThreadPoolExecutor() as threads:
        assert threads.submit(check.errors, value).result() == []
