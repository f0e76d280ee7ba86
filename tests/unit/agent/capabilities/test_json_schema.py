"""Whether a value fits a JSON Schema, whatever the value was made for."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, SchemaError
from pydantic import JsonValue

from agent.capabilities.json_schema import checked, errors_of

# Doubles its work with each character of a text that does not match; a minute would be long over before it ends.
_BACKTRACKS: dict[str, JsonValue] = {"type": "string", "pattern": "^(a|a)*$"}


async def test_a_value_that_fits_has_no_errors_and_another_says_where_it_does_not() -> None:
    schema = checked({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert await errors_of(schema, {"n": 1}) == []
    assert await errors_of(schema, {"n": "one"}) == ["$.n: 'one' is not of type 'integer'"]


_WRONG: list[JsonValue] = [
    5,
    "a",
    {"type": "text"},
    {"type": []},
    {"type": ["null", "null"]},
    {"type": ["null", {}, {}]},
    {"required": ["a", "a"]},
    {"required": ["a", 1]},
    {"properties": {"a": {"minLength": -1}}},
    {"properties": {"a": 1}},
    {"items": [{}]},
    {"allOf": []},
    {"anyOf": [{"$defs": {"x": 1}}]},
    {"not": {"multipleOf": 0}},
    {"dependentRequired": {"a": [1]}},
    {"dependencies": {"a": [1]}},
    {"patternProperties": {"(": {}}},
    {"pattern": "("},
    {"$anchor": "9"},
    {"$id": "a#b"},
    {"enum": 1},
    {"additionalProperties": {"if": {"then": 1}}},
]


@pytest.mark.parametrize("schema", _WRONG, ids=str)
def test_a_wrong_schema_is_wrong_where_the_metaschema_says_so(schema: JsonValue) -> None:
    with pytest.raises(SchemaError) as expected:
        Draft202012Validator.check_schema({"properties": {"x": schema}})
    with pytest.raises(
        ValueError, match=f"^{re.escape(f'the JSON Schema is wrong at {expected.value.json_path}: ')}"
    ) as found:
        checked({"properties": {"x": schema}})
    assert str(found.value).endswith(expected.value.message)


def test_a_schema_is_checked_in_a_time_that_grows_with_its_size() -> None:
    mixed: JsonValue = {"properties": {"a": {"type": [{}, "a"] * 6000}}}
    named: JsonValue = {"$defs": {"a": {"$anchor": "x"}, **{f"d{n}": {"$ref": "#x"} for n in range(2500)}}}
    wide: JsonValue = {"properties": {f"p{n}": {} for n in range(5000)}}
    began_s = time.process_time()
    with pytest.raises(ValueError, match="wrong at"):
        checked(mixed)
    checked(named)
    checked(wide)
    assert time.process_time() - began_s < 20


async def test_a_pattern_that_backtracks_without_bound_ends_at_the_time_limit_and_delays_no_one() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    other = asyncio.create_task(others())
    (error,) = await errors_of(checked(_BACKTRACKS), "a" * 64 + "b", limit_s=1)
    other.cancel()
    assert "could not be judged within 1 s" in error
    assert turns > 1


async def test_a_check_that_gets_no_processor_for_longer_than_its_limit_still_answers() -> None:
    before = children()
    checking = asyncio.create_task(errors_of(checked({"type": "integer"}), 1, limit_s=1))
    async with asyncio.timeout(30):
        while not (started := children() - before):
            await asyncio.sleep(0.001)
    (process,) = map(int, started)
    os.kill(process, signal.SIGSTOP)
    await asyncio.sleep(2)
    os.kill(process, signal.SIGCONT)
    assert await checking == []


async def test_a_cancelled_judgement_leaves_no_process() -> None:
    before = children()
    judging = asyncio.create_task(errors_of(checked(_BACKTRACKS), "a" * 64 + "b"))
    async with asyncio.timeout(30):
        while children() == before:
            await asyncio.sleep(0.01)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging
    assert children() == before


def children() -> set[str]:
    """Return the processes that this one has started and not yet waited for."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
