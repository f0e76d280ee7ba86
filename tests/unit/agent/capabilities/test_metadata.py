"""The agent's own notes on a thread: what it may store, what it may see, and what is none of its business."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agent.agent import Agent
from agent.capabilities.metadata import MAX_DEPTH, MAX_KEYS, MAX_VALUE_BYTES, metadata
from agent.hooks.hook import Hook, NextToolUse
from agent.loop import Host
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, ToolExecution
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import Events, SaysInTurn, call, ran, says, state


class KeepsStates(Hook):
    """What the gateway does at the start of a step: the state as JSON, as it could be stored."""

    name = "keeps_states"

    def __init__(self) -> None:
        self.states: list[str] = []

    async def before_step(self, state: AgentState) -> AgentState:
        self.states.append(state.model_dump_json())
        return state


def agent(model: SaysInTurn, *hooks: Hook, first_call: int = 0) -> Agent:
    ids = iter(f"call-{number}" for number in range(first_call, first_call + 10_000))
    return Agent(
        model=model,
        capabilities=(metadata(),),
        hooks=hooks,
        host=Host(clock=lambda: 0.0, new_call_id=lambda: next(ids)),
    )


def write(key: str, value: Any) -> ToolCall:
    return call("metadata_write", key=key, value=value)


def read(key: str) -> ToolCall:
    return call("metadata_read", key=key)


async def run(*steps: list[ToolCall], hooks: tuple[Hook, ...] = (), **metadata: JsonValue) -> tuple[AgentState, Events]:
    """Run a step for each list of calls, and one with an answer."""
    events = Events()
    model = SaysInTurn(*(says("", *calls) for calls in steps), says("done"))
    return await agent(model, *hooks).run(state(metadata=metadata), events), events


def results(final: AgentState) -> list[str]:
    return [message.content for message in final.messages if message.role == "tool"]


def nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


async def test_a_value_is_written_read_and_listed_in_later_steps() -> None:
    value: JsonValue = {"b": [1, 2.5, None, True], "ü": "é\n"}
    final, _ = await run([write("plan", value)], [read("plan"), call("metadata_list")])
    said = results(final)
    assert said[0].startswith("stored ")
    assert "plan" in said[0]
    assert json.loads(said[1]) == value
    assert json.loads(said[2]) == ["plan"]
    assert final.metadata["plan"] == value


async def test_null_removes_the_key() -> None:
    final, _ = await run([write("a", None)], [read("a"), call("metadata_list")], a=1, b=2)
    said = results(final)
    assert said[0] == "nothing is stored under a now"
    assert "nothing is stored under a" in said[1]
    assert json.loads(said[2]) == ["b"]
    assert "a" not in final.metadata


async def test_the_description_says_that_null_removes() -> None:
    spec = next(spec for spec in Toolbox(metadata().tools).specs() if spec.name == "metadata_write")
    assert "null removes" in spec.description
    assert spec.parameters["required"] == ["key", "value"]


async def test_a_call_without_a_value_removes_nothing() -> None:
    final, _ = await run([call("metadata_write", key="a")], a=1)
    assert "`value` is missing" in results(final)[0]
    assert final.metadata["a"] == 1


async def test_several_writes_of_a_step_count_in_call_order() -> None:
    final, _ = await run([write("a", 1), write("b", 1), write("a", None), write("b", 2)])
    assert "a" not in final.metadata
    assert final.metadata["b"] == 2


async def test_reads_see_what_was_there_before_the_step() -> None:
    final, _ = await run([write("a", 2), read("a")], a=1)
    assert results(final)[1] == "1"


@pytest.mark.parametrize("name", ["todos.list", "files./workspace/a.py", "a b", "", "x" * 65, "a\n", "ü"])
async def test_a_key_that_is_not_the_agents_is_neither_read_nor_written_nor_removed_nor_shown(name: str) -> None:
    final, _ = await run([read(name), write(name, 1), write(name, None), call("metadata_list")], **{name: "secret"})
    *refused, listed = results(final)
    assert all("`key`" in said and "secret" not in said for said in refused)
    assert json.loads(listed) == []
    assert final.metadata == {name: "secret"}


async def test_an_unknown_key_says_how_to_see_the_keys() -> None:
    final, events = await run([read("nope")])
    assert results(final) == ["nothing is stored under nope; metadata_list shows the keys"]
    assert events.of("tool_call_finished")[0]["is_error"] is True


async def test_a_value_of_exactly_the_limit_is_stored_and_one_byte_more_is_refused_with_both_numbers() -> None:
    fits = "é" * ((MAX_VALUE_BYTES - 2) // 2)
    final, _ = await run([write("a", fits), write("b", fits + "x")])
    assert final.metadata == {"a": fits}
    assert f"has {MAX_VALUE_BYTES + 1} bytes as JSON, and {MAX_VALUE_BYTES} is the limit" in results(final)[1]


@pytest.mark.parametrize(
    "value, said",
    [
        (float("nan"), "hold NaN or Infinity"),
        ([float("-inf")], "hold NaN or Infinity"),
        (nested(MAX_DEPTH + 1), f"is nested {MAX_DEPTH + 1} deep, and {MAX_DEPTH} is the limit"),
    ],
)
async def test_a_value_that_would_not_come_back_the_same_is_refused_and_the_run_goes_on(value: Any, said: str) -> None:
    final, events = await run([write("a", value)])
    assert said in results(final)[0]
    assert "a" not in final.metadata
    assert events.of("run_finished")[0]["status"] == "completed"


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}])
async def test_half_of_a_surrogate_pair_is_refused(value: JsonValue) -> None:
    refused = Toolbox(metadata().tools).prepare(write("a", value)).unfit
    assert refused is not None
    assert "cannot be kept as JSON" in refused.text()


async def test_the_deepest_value_is_stored_in_a_state_that_round_trips() -> None:
    final, _ = await run([write("a", nested(MAX_DEPTH))])
    assert final.metadata["a"] == nested(MAX_DEPTH)
    assert AgentState.model_validate_json(final.model_dump_json()) == final


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=20
)


@given(values)
def test_whatever_is_accepted_round_trips_with_the_state(value: JsonValue) -> None:
    asked = write("a", value)
    if Toolbox(metadata().tools).prepare(asked).unfit is None:
        stored = state(metadata={"a": value})
        assert AgentState.model_validate_json(stored.model_dump_json()) == stored


def full(keys: int) -> dict[str, JsonValue]:
    return {f"k{number}": number for number in range(keys)}


async def test_one_key_too_many_is_refused_by_the_tool_and_existing_keys_can_still_be_written() -> None:
    final, _ = await run([write("more", 1), write("k0", "new")], **full(MAX_KEYS), **{"todos.list": []})
    said = results(final)
    assert f"{MAX_KEYS} keys is reached" in said[0]
    assert "writing null" in said[0]
    assert said[1].startswith("stored")
    assert "more" not in final.metadata
    assert final.metadata["k0"] == "new"


async def test_the_tool_itself_refuses_so_that_rings_such_as_the_journal_see_the_truth() -> None:
    class Journals(Hook):
        def __init__(self) -> None:
            self.errors: list[bool] = []

        async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
            result = await next_(tool)
            self.errors.append(result.is_error)
            return result

    journals = Journals()
    await run([write("more", 1)], [write("k0", "new")], hooks=(journals,), **full(MAX_KEYS))
    assert journals.errors == [True, False]


async def test_several_writes_of_one_step_do_not_get_past_the_bound_together() -> None:
    final, events = await run([write("a", 1), write("b", 2), write("a", 3)], **full(MAX_KEYS - 1))
    said = results(final)
    assert [text.startswith("stored") for text in said] == [True, False, True]
    assert "keys is reached" in said[1]
    assert [payload["is_error"] for payload in events.of("tool_call_finished")] == [False, True, False]
    assert len(final.metadata) == MAX_KEYS
    assert final.metadata["a"] == 3


async def test_capabilities_keys_take_no_room_from_the_agent() -> None:
    dotted: dict[str, JsonValue] = {f"files./workspace/{number}": 1 for number in range(2 * MAX_KEYS)}
    final, _ = await run([write("a", 1)], **dotted)
    assert final.metadata["a"] == 1


async def test_what_a_service_stored_is_shown_up_to_a_bound() -> None:
    final, _ = await run([read("big"), call("metadata_list")], **full(MAX_KEYS + 10), big="x" * 100_000)
    big, listed = results(final)
    assert big.endswith("[the first 65536 of 100002 bytes]")
    assert len(big) < 66_000
    assert f"[the first {MAX_KEYS} of {MAX_KEYS + 11} keys]" in listed


async def test_a_blocked_or_failed_write_stores_nothing() -> None:
    class Refuses(Hook):
        priority = -1000

        async def before_tool_use(self, state: AgentState) -> AgentState:
            asked = state.current.tool.call.arguments or {}
            return state.block("refuses", "no", "no") if asked["key"] == "blocked" else state

        async def after_tool_use(self, state: AgentState) -> AgentState:
            asked = state.current.tool.call.arguments or {}
            if asked["key"] == "blocked":
                return state.with_result(ToolResult(b"as if nothing had happened"))
            return state.with_result(ToolResult.error("lost")) if asked["key"] == "failed" else state

    final, _ = await run([write("blocked", 1), write("failed", 1), write("passed", 1)], hooks=(Refuses(),))
    assert final.metadata == {"passed": 1}


@pytest.mark.parametrize("asked", [write("a", 1), read("a"), call("metadata_list")])
async def test_outside_a_run_there_is_no_metadata_and_the_result_says_so(asked: ToolCall) -> None:
    result = await ran(Toolbox(metadata().tools), asked)
    assert result.is_error
    assert "no run" in result.text()


async def test_a_run_resumed_from_any_stored_step_goes_on_alike() -> None:
    responses = [says("", write("a", {"n": 1.5})), says("", read("a")), says("", write("a", None)), says("bye")]
    model, keeper = SaysInTurn(*responses), KeepsStates()
    final = await agent(model, keeper).run(state())
    assert len(keeper.states) == len(responses)
    for step, stored in enumerate(keeper.states):
        again = SaysInTurn(*responses[step:])
        resumed = agent(again, KeepsStates(), first_call=step)  # one call a step
        assert await resumed.run(AgentState.model_validate_json(stored)) == final
        assert again.requests == model.requests[step:]
