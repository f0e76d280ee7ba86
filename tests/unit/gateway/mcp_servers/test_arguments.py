"""Arguments against a server's schema: checked before a call, in bounded time whatever the schema."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agent.messages import ToolCall, ToolResult
from agent.tools.tool import JsonArguments, Tool, ToolContext
from agent.tools.toolbox import Toolbox
from gateway.mcp_servers.arguments import arguments_of

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
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_takes_bounded_time(name: str) -> None:
    schema, arguments = HOSTILE[name]
    began_s = time.process_time()
    prepared(schema, arguments)
    assert time.process_time() - began_s < 10
