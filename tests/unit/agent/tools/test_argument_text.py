"""Arguments are counted before they are parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import Message, ToolCall, storable_message
from agent.state import AgentState
from agent.tools.intake import ARGUMENTS_LIMIT_CHARS, ARGUMENTS_LIMIT_VALUES, NAME_LIMIT_CHARS, ArgumentReader


def read(raw: str, name: str = "t") -> ToolCall:
    return ArgumentReader().call("c", name, raw)


ZEROS = "[" + "0," * ARGUMENTS_LIMIT_VALUES + "0]"
ABSURD = {
    "long": ('{"a": "' + "x" * ARGUMENTS_LIMIT_CHARS + '"}', "the limit is 4,194,304"),
    "numbers": ('{"a": ' + ZEROS + "}", "more than 20,000 values"),
    "lists": ('{"a": [' + "[]," * ARGUMENTS_LIMIT_VALUES + "0]}", "more than 20,000 values"),
    "keys": (
        "{" + ",".join(f'"\\"{n}": 0' for n in range(ARGUMENTS_LIMIT_VALUES + 2)) + "}",
        "more than 20,000 values",
    ),
}


@pytest.mark.parametrize("kind", ABSURD)
def test_what_is_absurd_is_not_even_parsed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_parsing(*_: object, **__: object) -> Any:
        raise AssertionError("it was parsed")

    raw, said = ABSURD[kind]
    monkeypatch.setattr(json, "loads", no_parsing)
    refused = read(raw)
    assert refused.arguments is None
    assert said in refused.problem
    assert len(refused.raw_arguments) == 1000
    assert not ArgumentReader().holds_object(raw)


@pytest.mark.parametrize("depth", [97, 220, 254, 300, 5_000])
def test_what_is_nested_too_deep_says_so_however_deep_it_is(depth: int) -> None:
    assert "nested more than 96 deep" in read('{"a": ' + "[" * depth + "]" * depth + "}").problem


@pytest.mark.parametrize("raw", ['{"a": NaN}', '{"a": [-Infinity]}', '{"a": 1e999}'])
def test_a_number_that_is_none_says_so(raw: str) -> None:
    assert "NaN or Infinity" in read(raw).problem


def test_commas_and_brackets_in_a_text_are_no_values() -> None:
    code = '[{,"\\' * 30_000
    assert read(json.dumps({"content": code})).arguments == {"content": code}


def test_calls_of_one_answer_share_what_one_call_may_hold() -> None:
    raw = '{"a": [' + "0," * (ARGUMENTS_LIMIT_VALUES // 2) + "0]}"
    reader = ArgumentReader()
    first, second, third = (reader.call("c", "t", text) for text in (raw, raw, '{"path": "a"}'))
    assert first.arguments is not None
    assert "all calls of an answer together" in second.problem
    assert third.arguments == {"path": "a"}


@pytest.mark.parametrize("raw", ["{", "[1]", "null", '{"a": 1} {"b": 2}', '{"n": ' + "9" * 5_000 + "}"])
def test_what_is_no_json_object_is_kept_for_the_model_to_see(raw: str) -> None:
    call = read(raw)
    assert (call.arguments, call.problem, call.raw_arguments) == (None, "", raw[:1000])


def test_no_text_is_no_arguments_and_a_name_is_bounded() -> None:
    assert read(" \n").arguments == {}
    assert len(read("{}", "n" * 1_000_000).name) == NAME_LIMIT_CHARS


LEAVES = st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(st.characters())
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES, st.integers(0, 300), st.booleans())
def test_whatever_a_model_writes_the_thread_with_it_can_be_stored_and_read_again(
    value: Any, depth: int, ascii_only: bool
) -> None:
    raw = '{"a": ' + '{"d": [' * (depth // 2) + json.dumps(value, ensure_ascii=ascii_only) + "]}" * (depth // 2) + "}"
    message = storable_message(Message(role="assistant", tool_calls=(read(raw),)))
    kept = AgentState(run_id="r", thread="t", messages=(message,))
    assert AgentState.model_validate_json(kept.model_dump_json()) == kept


@given(st.dictionaries(st.text(), VALUES))
def test_nothing_within_the_bounds_is_lost(arguments: dict[str, Any]) -> None:
    raw = json.dumps(arguments)
    call = read(raw)
    assert call.problem or call.arguments == arguments
    assert bool(call.problem) is ("NaN" in call.problem)
    assert ArgumentReader().holds_object(raw)
