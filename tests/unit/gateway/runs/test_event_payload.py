"""Any payload becomes strict JSON that a store takes and a watcher can be sent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from gateway.cli.run_view import RunView
from gateway.runs.run_log import PAYLOAD_LIMIT_CHARS, payload_json

_TEXTS = st.text(st.characters(codec=None), max_size=5)  # halves of surrogate pairs, too
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


def _strictly(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text.encode()
    loaded = json.loads(text, parse_constant=refuse)
    assert isinstance(loaded, dict)
    return loaded


@given(st.dictionaries(_TEXTS, _VALUES, max_size=3))
def test_any_payload_is_strict_json_in_utf_8(payload: dict[str, JsonValue]) -> None:
    _strictly(payload_json(payload))


def test_what_is_storable_stays_as_it_is() -> None:
    payload: dict[str, JsonValue] = {"text": "NaN \0 \N{ROCKET} Infinity", "n": [1, 2.5, None, True], "x": {"y": {}}}
    assert _strictly(payload_json(payload)) == payload


def test_a_number_that_is_not_finite_becomes_null_and_half_a_character_is_replaced() -> None:
    payload: dict[str, JsonValue] = {"a": [math.nan, math.inf, -math.inf], "b": "x\ud800y", "c": "\ud83d\ude80"}
    assert _strictly(payload_json(payload)) == {"a": [None] * 3, "b": "x\ufffdy", "c": "\N{ROCKET}"}


def _nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("bad", [object(), _nested(100_000), 10**5000], ids=["object", "deep", "number"])
def test_an_entry_that_is_no_json_is_named_and_the_others_stay(bad: Any) -> None:
    assert _strictly(payload_json({"status": "failed", "bad": bad})) == {"status": "failed", "not_stored": ["bad"]}


def _large() -> dict[str, dict[str, JsonValue]]:
    call: dict[str, JsonValue] = {"id": "c1", "name": "write_file", "arguments": {"path": "a", "content": "x" * 30_000}}
    many: dict[str, JsonValue] = {f"{n:x}": 0 for n in range(200_000)}
    return {
        "tool_call_started": {"call_id": "c1", "name": "execute", "arguments": {"command": "true", **many}},
        "model_finished": {"text": "y" * 10**6, "tool_calls": [call] * 128},
        "tool_call_finished": {"call_id": "c1", "name": "execute", "content": "\0" * 2 * 10**6, "evicted": None},
        "state_changed": {"metadata": {"todos.list": [{"title": "t" * 4000}] * 400}},
        "run_finished": {
            "status": "failed",
            "stop": {"hook": "h", "rule": "r", "reason": "z" * 3 * 10**6},
            "answer": "y" * 10**6,
        },
    }


@pytest.mark.parametrize("event_type", _large())
def test_a_payload_that_is_too_long_is_cut_and_keeps_its_shape(event_type: str) -> None:
    payload = _large()[event_type]
    text = payload_json(payload)
    assert len(text) <= PAYLOAD_LIMIT_CHARS
    assert "[cut: " in text
    shown = _strictly(text)
    assert {key: type(value) for key, value in shown.items()} == {key: type(value) for key, value in payload.items()}
    assert all(shown[key] == value for key, value in payload.items() if len(json.dumps(value)) < 1000)
    RunView().feed(event_type, shown)


def test_of_a_text_that_is_too_long_the_beginning_is_there_with_its_length() -> None:
    shown = _strictly(payload_json({"call_id": "c1", "content": "ab" * 1_000_000}))
    assert shown["content"].startswith("abab")
    assert shown["content"].endswith("... [cut: 2000000 characters]")
    assert len(shown["content"]) > 100_000


def test_entries_that_stay_too_long_also_when_cut_are_named() -> None:
    wide: JsonValue = [["w" * 9] * 900] * 900
    assert _strictly(payload_json({"status": "x", "wide": wide})) == {"status": "x", "not_stored": ["wide"]}
