"""A final answer that fits a schema."""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict

from agent.agent import Agent
from agent.capabilities.structured_output import MAX_VALUE_CHARS, VALUE, json_in, structured_output
from agent.errors import ModelRefused
from agent.hooks.hook import Hook
from agent.messages import Message
from agent.state import AgentState
from agent.tools.tool import Capability
from tests.unit.agent.fakes import Events, SaysInTurn, allowing, call, done, says, state, tool

NUMBER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0}, "why": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = Capability("tools", tools=(tool("t", done),))


async def run(model: SaysInTurn, capability: Capability, of: AgentState | None = None) -> tuple[AgentState, Events]:
    events = Events()
    agent = Agent(model=model, capabilities=(capability, TOOLS), hooks=(allowing(),), system_prompt="You count.")
    return await agent.run(of or state(), events), events


async def test_an_answer_that_fits_is_stored_and_ends_the_run() -> None:
    model = SaysInTurn(says("", call("t")), says('{"n": 3}'))
    final, _ = await run(model, structured_output(NUMBER))
    assert final.metadata[VALUE] == {"n": 3}
    assert final.stop is not None
    assert (final.stop.hook, final.stop.rule) == ("structured_output", "valid")
    assert AgentState.model_validate_json(final.model_dump_json()).metadata[VALUE] == {"n": 3}


async def test_the_model_reads_the_schema_in_each_step_after_the_system_prompt() -> None:
    model = SaysInTurn(says("", call("t")), says('{"n": 3}'))
    final, _ = await run(model, structured_output(NUMBER))
    for request in model.requests:
        assert request.system_prompt.startswith("You count.")
        assert request.system_prompt.endswith(json.dumps(NUMBER))
    assert final.system_prompt == "You count."


@pytest.mark.parametrize(
    "answer",
    [
        '  {"n": 3}\n',
        '```json\n{"n": 3}\n```',
        'Here you are:\n```json\n{"n": 3}\n```\nI used {braces} and [brackets].',
        '```\n{"n": 3}\n```',
        '```json\r\n{"n": 3}\r\n```',
        'The answer is {"n": 3}, as [the page] says.',
    ],
)
async def test_a_fence_or_prose_around_one_value_is_accepted(answer: str) -> None:
    final, _ = await run(SaysInTurn(says(answer)), structured_output(NUMBER))
    assert final.metadata[VALUE] == {"n": 3}
    assert final.steps == 1


@pytest.mark.parametrize(
    "answer, problem",
    [
        ("", "empty"),
        ("three", "not JSON"),
        ('{"n": 3} or {"n": 4}', "more than one"),
        ('```json\n{"n": 3}\n```\nor\n```json\n{"n": 4}\n```', "more than one"),
        ('{"n": 3, "list": [{"n": 3}], oops}', "not JSON"),  # a part of broken JSON is not the answer
        ('the list: [1, 2, {"n": 3}', "not JSON"),
        ('{"n": NaN}', "NaN"),
        ('{"n": 1e999}', "cannot be kept"),
        ('{"n": "\\ud800"}', "cannot be kept"),
        ("9" * 5000, "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[" * 70 + "]" * 70, "nested more than 64 deep"),
        ("x" * 300_000, "characters"),
    ],
)
def test_what_is_not_one_json_value_is_refused(answer: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        json_in(answer)


async def test_an_answer_that_does_not_fit_is_asked_for_again_with_its_errors() -> None:
    model = SaysInTurn(says('{"n": -1, "x": 1}'), says('{"n": 1}'))
    final, _ = await run(model, structured_output(NUMBER))
    asked = model.requests[1].messages[-1]
    assert asked.role == "user"
    assert "$.n: -1 is less than the minimum of 0" in asked.content
    assert "'x' was unexpected" in asked.content
    assert final.metadata[VALUE] == {"n": 1}
    assert (final.forced_continuations, final.notes["structured_output.retries"]) == (1, 1)


@pytest.mark.parametrize("retries", [0, 2])
async def test_after_the_retries_the_run_is_stopped_with_numbers_and_the_last_error(retries: int) -> None:
    model = SaysInTurn(says('{"n": "three"}'))
    final, events = await run(model, structured_output(NUMBER, retries=retries))
    assert len(model.requests) == retries + 1
    assert events[-1].payload["status"] == "stopped"
    assert final.stop is not None
    assert (final.stop.hook, final.stop.rule) == ("structured_output", "retries")
    assert f"{retries + 1} answers did not fit the schema, {retries} retries" in final.stop.reason
    assert "'three' is not of type 'integer'" in final.stop.reason
    assert VALUE not in final.metadata


async def test_a_value_of_an_earlier_run_is_never_taken_for_this_ones() -> None:
    first, _ = await run(SaysInTurn(says('{"n": 1}')), structured_output(NUMBER))
    again = first.with_(run_id="r2", started=False, steps=0, messages=(*first.messages, Message(role="user")))
    second, _ = await run(SaysInTurn(says("sorry")), structured_output(NUMBER, retries=0), again)
    assert first.metadata[VALUE] == {"n": 1}
    assert VALUE not in second.metadata
    third, _ = await run(SaysInTurn(ModelRefused("bad key")), structured_output(NUMBER), again)
    assert VALUE not in third.metadata


async def test_a_value_that_another_hook_sent_back_is_not_the_answer() -> None:
    class SendsBack(Hook):
        async def should_continue(self, state: AgentState) -> AgentState:
            return state.request_continuation("sends_back", "more", "more") if state.steps == 1 else state

    agent = Agent(
        model=SaysInTurn(says('{"n": 1}'), says("oh")),
        capabilities=(structured_output(NUMBER, retries=0),),
        hooks=(SendsBack(),),
    )
    final = await agent.run(state())
    assert final.steps == 2
    assert VALUE not in final.metadata


async def test_the_errors_reported_are_few_and_short() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    model = SaysInTurn(says(json.dumps(["x" * 5_000] * 12)), says("[]"))
    await run(model, structured_output(schema))
    asked = model.requests[1].messages[-1].content
    assert asked.count("\n- ") == 10
    assert len(asked) < 5_000


async def test_a_value_too_large_to_be_kept_with_the_thread_does_not_fit() -> None:
    model = SaysInTurn(says(json.dumps(["é" * (MAX_VALUE_CHARS // 6 + 1)])), says("[]"))
    final, _ = await run(model, structured_output({"type": "array"}))
    assert "make it shorter" in model.requests[1].messages[-1].content
    assert final.metadata[VALUE] == []


async def test_a_value_may_be_anything_that_json_has() -> None:
    for value in (0, False, None, "text", [], {}):
        final, _ = await run(SaysInTurn(says(json.dumps(value))), structured_output({}))
        assert final.metadata[VALUE] == value
        assert VALUE in final.metadata


class Meeting(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    on: date
    who: list[str] = []


async def test_a_pydantic_model_is_a_schema_too() -> None:
    model = SaysInTurn(says('{"on": "soon", "at": 3}'), says('{"on": "2026-02-28"}'))
    final, _ = await run(model, structured_output(Meeting))
    assert json.dumps(Meeting.model_json_schema()) in model.requests[0].system_prompt
    asked = model.requests[1].messages[-1].content
    assert "- on: Input should be a valid date" in asked
    assert "- at: Extra inputs are not permitted" in asked
    assert final.metadata[VALUE] == {"on": "2026-02-28"}


async def test_a_validator_that_crashes_is_an_error_of_the_answer() -> None:
    class Crashes(BaseModel):
        n: Annotated[int, AfterValidator(lambda n: 1 // n)]

    model = SaysInTurn(says('{"n": 0}'), says('{"n": 1}'))
    final, events = await run(model, structured_output(Crashes))
    assert "ZeroDivisionError" in model.requests[1].messages[-1].content
    assert events.of("hook_failed") == []
    assert final.metadata[VALUE] == {"n": 1}


async def test_a_number_that_no_float_holds_is_judged_without_a_crash() -> None:
    model = SaysInTurn(says("9" * 400), says("3"))
    final, events = await run(model, structured_output({"multipleOf": 1.5}))
    assert events.of("hook_failed") == []
    assert final.metadata[VALUE] == 3


@pytest.mark.parametrize(
    "schema, problem",
    [
        ({"type": "objekt"}, r"wrong at \$\.type"),
        ({"properties": {"a": {"minimum": "x"}}}, r"wrong at \$\.properties\.a\.minimum"),
        ({"pattern": "("}, r"wrong at \$\.pattern"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "leads nowhere"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"const": {1, 2}}, "cannot be taken"),
        ({"const": float("nan")}, "cannot be taken"),
        ({"description": "x" * 100_000}, "100019 characters"),
    ],
)
def test_a_bad_schema_is_refused_where_it_is_bad(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        structured_output(schema)


def test_a_schema_nested_without_measure_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3_000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="nested too deep"):
        structured_output(schema)


async def test_references_within_the_schema_and_to_the_specification_are_followed() -> None:
    schema: dict[str, Any] = {
        "$id": "https://example.com/tree",
        "$defs": {"node": {"$anchor": "n", "type": "object", "properties": {"kids": {"items": {"$ref": "tree#n"}}}}},
        "properties": {
            "tree": {"$ref": "#/$defs/node"},
            "schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        },
    }
    model = SaysInTurn(says('{"tree": {"kids": [{"kids": [3]}]}}'), says('{"schema": {"type": 3}}'), says("{}"))
    await run(model, structured_output(schema))
    assert "$.tree.kids[0].kids[0]: 3 is not of type 'object'" in model.requests[1].messages[-1].content
    assert "$.schema.type: 3 is not valid" in model.requests[2].messages[-1].content


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jsonschema's, when it does fetch
async def test_nothing_is_ever_fetched_for_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda asked, *_, **__: fetched.append(asked))
    # Where no keyword leads, a reference is not seen before an answer is judged.
    hidden = {"x-parts": {"a": {"$ref": "http://127.0.0.1:9/x"}}, "$ref": "#/x-parts/a"}
    final, events = await run(SaysInTurn(says("1")), structured_output(hidden, retries=0))
    assert fetched == []
    assert events.of("hook_failed") == []
    assert final.stop is not None
    assert "could not be judged" in final.stop.reason
    assert "Unresolvable: http://127.0.0.1:9/x" in final.stop.reason


async def test_a_schema_that_never_ends_refuses_the_answer_and_nothing_crashes() -> None:
    endless = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    final, events = await run(SaysInTurn(says("1")), structured_output(endless, retries=0))
    assert events.of("hook_failed") == []
    assert final.stop is not None
    assert "RecursionError" in final.stop.reason


async def test_a_schema_changed_by_its_owner_later_does_not_change_the_capability() -> None:
    schema: dict[str, Any] = {"properties": {"n": {"type": "integer"}}}
    capability = structured_output(schema)
    schema["properties"]["n"]["type"] = "string"
    final, _ = await run(SaysInTurn(says('{"n": 3}')), capability)
    assert final.metadata[VALUE] == {"n": 3}


def test_retries_are_not_negative() -> None:
    with pytest.raises(ValueError, match="retries is -1"):
        structured_output({}, retries=-1)
