"""A large tool set behind one tool: what is shown, what is found, what is blocked, and what is left to others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field, JsonValue

from agent.agent import Agent
from agent.capabilities.tool_registry import LOADED, tool_registry
from agent.hooks.hook import Hook
from agent.loop import Host
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.state import AgentState, ToolExecution
from agent.tools.runner import ToolRunner
from agent.tools.tool import Capability, Tool
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import Events, SaysInTurn, call, done, ran, says, state


class Recipient(BaseModel):
    address: str = Field(description="where to")


def offers(*described: tuple[str, str]) -> Capability:
    return Capability("many", tools=tuple(Tool(name, text, Recipient, done) for name, text in described))


MANY = offers(
    ("read_file", "Give the lines of a file."),
    ("sendEmail", "Deliver a message to a person."),
    ("list_invoices", "Show what customers owe."),
    ("pay_invoice", "Transfer money for one of them; sends an email to the payee."),
    ("http_get", "Ask a web server for a page."),
)


class KeepsStates(Hook):
    """What the gateway does at the start of a step: the state as JSON, as it could be stored."""

    name = "keeps_states"

    def __init__(self) -> None:
        self.states: list[str] = []

    async def before_step(self, state: AgentState) -> AgentState:
        self.states.append(state.model_dump_json())
        return state


class Removes(Hook):
    """Takes a tool away from the model, as a skill does."""

    name = "removes"

    def __init__(self, name: str, priority: int = 0) -> None:
        self.tool, self.priority = name, priority

    async def before_inference(self, state: AgentState) -> AgentState:
        return state.with_tools(tuple(spec for spec in state.current.tools if spec.name != self.tool))


def agent(
    model: SaysInTurn,
    *hooks: Hook,
    always: Sequence[str] = ("read_file",),
    many: Capability = MANY,
    first_call: int = 0,
) -> Agent:
    ids = iter(f"call-{number}" for number in range(first_call, first_call + 1000))
    return Agent(
        model=model,
        capabilities=(many, tool_registry(always=always)),
        hooks=hooks,
        host=Host(clock=lambda: 0.0, new_call_id=lambda: next(ids)),
    )


def finds(query: str, **limit: JsonValue) -> ToolCall:
    return call("find_tools", query=query, **limit)


def uses(name: str) -> ToolCall:
    return call(name, address="a")


async def run(*steps: list[ToolCall], hooks: tuple[Hook, ...] = (), **settings: Any) -> Any:
    """Run a step for each list of calls and one with an answer; return the final state, the model and the events."""
    start = settings.pop("start", state())
    model, events = SaysInTurn(*(says("", *calls) for calls in steps), says("done")), Events()
    return await agent(model, *hooks, **settings).run(start, events), model, events


def shown(model: SaysInTurn, step: int) -> list[str]:
    return [spec.name for spec in model.requests[step - 1].tools]


def results(final: AgentState) -> list[str]:
    return [message.content for message in final.messages if message.role == "tool"]


def found(text: str) -> list[str]:
    """Return the names in a result of find_tools, the best match first."""
    answer, _ = json.JSONDecoder().raw_decode(text)
    assert answer["loaded"] == [spec["name"] for spec in answer["tools"]]
    return list(answer["loaded"])


async def search(query: str, many: Capability = MANY, **limit: JsonValue) -> list[str]:
    final, _, _ = await run([finds(query, **limit)], many=many)
    return found(results(final)[0])


async def test_only_always_and_find_tools_are_shown_at_first() -> None:
    _, model, _ = await run(always=("read_file", "http_get", "no_such_tool"))
    assert shown(model, 1) == ["read_file", "http_get", "find_tools"]


async def test_what_is_found_is_described_and_shown_from_the_next_step_on_in_the_executors_order() -> None:
    final, model, _ = await run([finds("http page")], [finds("email", limit=1)], [uses("sendEmail")])
    answer, _ = json.JSONDecoder().raw_decode(results(final)[0])
    spec = next(spec for spec in model.requests[1].tools if spec.name == "http_get")
    assert answer["tools"] == [
        {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    ]
    assert [shown(model, step) for step in (1, 2, 3, 4)] == [
        ["read_file", "find_tools"],
        ["read_file", "http_get", "find_tools"],
        ["read_file", "sendEmail", "http_get", "find_tools"],
        ["read_file", "sendEmail", "http_get", "find_tools"],
    ]
    assert results(final)[2] == "done"
    assert final.notes[LOADED] == ["http_get", "sendEmail"]


async def test_a_hidden_tool_is_blocked_with_the_way_out_and_the_shown_ones_are_not() -> None:
    final, _, events = await run([uses("pay_invoice"), uses("read_file")])
    blocked, passed = events.of("tool_call_finished")
    assert (blocked["outcome"], blocked["rule"]) == ("blocked", "not_loaded")
    assert "pay_invoice is not loaded; call find_tools first" in results(final)[0]
    assert passed["outcome"] == "completed"


@pytest.mark.parametrize("order", [1, -1])
async def test_a_tool_found_in_the_same_step_is_not_loaded_yet(order: int) -> None:
    calls = [finds("email", limit=1), uses("sendEmail")][::order]
    final, _, _ = await run(calls, [uses("sendEmail")])
    blocked = results(final)[:2][::order][1]
    assert "in a step after that" in blocked
    assert results(final)[2] == "done"


async def test_two_searches_of_a_step_both_load() -> None:
    final, model, _ = await run([finds("http"), finds("email", limit=1)])
    assert final.notes[LOADED] == ["http_get", "sendEmail"]
    assert {"http_get", "sendEmail"} < set(shown(model, 2))


async def test_a_tool_that_does_not_exist_gets_the_toolboxs_own_error() -> None:
    final, _, events = await run([uses("no_such_tool")])
    assert results(final)[0].startswith("unknown tool 'no_such_tool'")
    assert events.of("tool_call_finished")[0]["rule"] != "not_loaded"


@pytest.mark.parametrize(
    "query, first",
    [
        ("email", "sendEmail"),  # in the name counts more than in the description
        ("SEND", "sendEmail"),
        ("files", "read_file_again"),
        ("reading", "read_file_again"),
        ("invoices", "list_invoices"),  # both have it in the name: the order they are in
        ("paying an invoice", "pay_invoice"),
        ("pages on servers", "http_get"),
        ("customer", "list_invoices"),
    ],
)
async def test_the_best_match_comes_first(query: str, first: str) -> None:
    many = Capability("many", tools=(*MANY.tools, *offers(("read_file_again", "As it says.")).tools))
    assert (await search(query, many))[0] == first


@pytest.mark.parametrize(
    "forms",
    [
        ["file", "files", "filing", "filed"],
        ["query", "queries"],
        ["write", "writes", "writing"],
        ["process", "processes", "processing"],
        ["run", "runs", "running"],
        ["box", "boxes"],
    ],
)
async def test_forms_of_a_word_find_each_other(forms: list[str]) -> None:
    for form in forms:
        many = offers(("read_file", "x"), ("wanted", f"This will {form} it."), ("other", "Status of a bus."))
        assert [await search(asked, many) for asked in forms] == [["wanted"]] * len(forms)


async def test_common_words_match_nothing() -> None:
    assert await search("is the use of a tool to this and that") == []


async def test_at_most_limit_tools_are_loaded_five_unless_asked_and_the_result_says_how_many_more_match() -> None:
    many = offers(("read_file", "x"), *((f"email_{number}", "Sends.") for number in range(9)))
    assert len(await search("email", many)) == 5
    final, model, _ = await run([finds("email", limit=2)], many=many)
    assert found(results(final)[0]) == ["email_0", "email_1"]
    assert "7 more match" in results(final)[0]
    assert shown(model, 2) == ["read_file", "email_0", "email_1", "find_tools"]


async def test_what_is_shown_already_is_not_found_again() -> None:
    final, _, _ = await run([finds("email", limit=1)], [finds("email")], [finds("lines of a file")])
    assert found(results(final)[1]) == ["pay_invoice"]
    assert found(results(final)[2]) == []


async def test_a_search_without_a_match_names_what_there_is() -> None:
    final, model, _ = await run([finds("zebra")])
    assert found(results(final)[0]) == []
    assert "there are sendEmail, list_invoices, pay_invoice, http_get]" in results(final)[0]
    assert shown(model, 2) == ["read_file", "find_tools"]


async def test_a_search_where_nothing_is_hidden_says_so() -> None:
    final, _, _ = await run([finds("file")], many=offers(("read_file", "x")))
    assert "all tools are already shown" in results(final)[0]


@pytest.mark.parametrize("arguments", [{"query": ""}, {"query": "x" * 401}, {"query": "a", "limit": 21}, {}])
async def test_a_search_that_does_not_fit_is_refused_and_loads_nothing(arguments: dict[str, JsonValue]) -> None:
    final, _, events = await run([call("find_tools", **arguments)])
    assert events.of("tool_call_finished")[0]["is_error"] is True
    assert LOADED not in final.notes


@pytest.mark.parametrize("priority", [1000, 0, -100, -1000])
async def test_a_tool_that_another_hook_removed_is_not_shown_again(priority: int) -> None:
    hooks = (Removes("http_get", priority), Removes("read_file", priority))
    start = state(notes={LOADED: ["http_get", "sendEmail"]})
    _, model, _ = await run(hooks=hooks, start=start)
    assert shown(model, 1) == ["sendEmail", "find_tools"]


async def test_a_tool_that_another_hook_removed_is_not_found_until_it_is_back() -> None:
    class RemovesAtFirst(Removes):
        def matches(self, state: AgentState) -> bool:
            return state.steps == 1

    final, _, _ = await run([finds("http")], [finds("http")], hooks=(RemovesAtFirst("http_get"),))
    assert found(results(final)[0]) == []
    assert "http_get" not in results(final)[0]
    assert found(results(final)[1]) == ["http_get"]


async def test_a_removed_tool_is_blocked_all_the_same() -> None:
    _, _, events = await run([uses("http_get")], hooks=(Removes("http_get"),))
    assert events.of("tool_call_finished")[0]["rule"] == "not_loaded"


async def test_a_tool_that_another_hook_adds_is_left_alone() -> None:
    class Adds(Hook):
        async def before_inference(self, state: AgentState) -> AgentState:
            return state.with_tools((*state.current.tools, ToolSpec("final_answer", "", {})))

    _, model, _ = await run(hooks=(Adds(),))
    assert shown(model, 1) == ["read_file", "find_tools", "final_answer"]


async def test_a_blocked_search_loads_nothing() -> None:
    class Blocks(Hook):
        priority = -1000

        async def before_tool_use(self, state: AgentState) -> AgentState:
            return state.block("blocks", "no", "no")

        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state.with_result(ToolResult(b'{"loaded": ["sendEmail"]}'))

    final, _, _ = await run([finds("email")], hooks=(Blocks(),))
    assert LOADED not in final.notes


async def test_a_search_whose_result_a_hook_further_in_made_an_error_loads_nothing() -> None:
    class Fails(Hook):
        priority = -1000

        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state.with_result(ToolResult(b'{"loaded": ["sendEmail"]}', is_error=True))

    final, _, _ = await run([finds("email")], hooks=(Fails(),))
    assert LOADED not in final.notes


async def test_a_result_that_was_cut_or_changed_on_its_way_loads_only_what_is_hidden() -> None:
    class Cuts(Hook):
        async def around_tool_use(self, tool: ToolExecution, next_: Any) -> ToolResult:
            result = await next_(tool)
            content = result.content.replace(b'"loaded": [', b'"loaded": [7, "read_file", "rm", ')
            return ToolResult(content[:80] + b"\n[... left out ...]")

    final, _, _ = await run([finds("email")], hooks=(Cuts(),))
    assert "left out" in results(final)[0]
    assert final.notes[LOADED] == ["sendEmail", "pay_invoice"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"loaded": [}', b'{"loaded": ["a" "b"]}', b'{"loaded": 7}'])
async def test_a_result_that_is_nonsense_loads_nothing_and_breaks_nothing(content: bytes) -> None:
    class Replaces(Hook):
        async def around_tool_use(self, tool: ToolExecution, next_: Any) -> ToolResult:
            return ToolResult(content)

    final, _, events = await run([finds("email")], hooks=(Replaces(),))
    assert not final.notes.get(LOADED)
    assert not events.of("hook_failed")


@pytest.mark.parametrize("damaged", ["nonsense", 7, {"a": 1}, [1, None, ["sendEmail"]]])
async def test_damaged_notes_are_no_notes_and_break_nothing(damaged: JsonValue) -> None:
    notes = {LOADED: damaged, "tool_registry.hidden": damaged, "tool_registry.withheld": damaged}
    final, model, events = await run([finds("email", limit=1)], start=state(notes=notes))
    assert [shown(model, step) for step in (1, 2)] == [
        ["read_file", "find_tools"],
        ["read_file", "sendEmail", "find_tools"],
    ]
    assert final.notes[LOADED] == ["sendEmail"]
    assert not events.of("hook_failed")


async def test_steps_that_load_nothing_leave_the_notes_as_they_are() -> None:
    class Watches(Hook):
        priority = -1000

        def __init__(self) -> None:
            self.hidden: list[JsonValue] = []

        async def after_step(self, state: AgentState) -> AgentState:
            self.hidden.append(state.notes["tool_registry.hidden"])
            return state

    watches = Watches()
    await run([uses("read_file")], [uses("read_file")], hooks=(watches,))
    assert len(watches.hidden) == 3
    assert all(hidden is watches.hidden[0] for hidden in watches.hidden)


async def test_a_service_that_calls_a_tool_by_itself_is_not_kept_from_it() -> None:
    one = agent(SaysInTurn(says("")))
    events = Events()
    await ToolRunner(one.hooks, one.executor, events).run(state(), [uses("pay_invoice")])
    assert events.of("tool_call_finished")[0]["outcome"] == "completed"


@pytest.mark.parametrize("loaded, outcome", [([], "blocked"), (["pay_invoice"], "completed")])
async def test_a_half_done_step_is_judged_by_the_notes_alone(loaded: list[JsonValue], outcome: str) -> None:
    # Its before_step is not repeated: the note of what is hidden may be older than the one of what was loaded.
    one, events = agent(SaysInTurn(says(""))), Events()
    notes: dict[str, JsonValue] = {"tool_registry.hidden": ["pay_invoice"], LOADED: loaded}
    await ToolRunner(one.hooks, one.executor, events).run(state(notes=notes), [uses("pay_invoice")])
    assert events.of("tool_call_finished")[0]["outcome"] == outcome


async def test_outside_a_run_a_search_says_why_it_finds_nothing() -> None:
    result = await ran(Toolbox(tool_registry().tools), finds("email"))
    assert result.is_error
    assert "no run" in result.text()


async def test_a_description_of_any_length_costs_a_bounded_search() -> None:
    many = offers(("read_file", "x"), ("long", "word " * 100_000 + "needle"), ("near", "needle"))
    assert await search("needle", many) == ["near"]


async def test_a_run_resumed_from_any_stored_step_goes_on_alike() -> None:
    asked = [uses("http_get"), finds("http"), uses("http_get"), finds("email", limit=1), uses("sendEmail")]
    responses = [*(says("", each) for each in asked), says("bye")]
    model, keeper = SaysInTurn(*responses), KeepsStates()
    final = await agent(model, keeper).run(state())
    assert [re.split(r"[ \n]", text)[0] for text in results(final)][::2] == ["Blocked", "done", "done"]
    assert len(keeper.states) == len(responses)
    for step, stored in enumerate(keeper.states):
        again = SaysInTurn(*responses[step:])
        resumed = agent(again, KeepsStates(), first_call=step)  # one call a step
        assert await resumed.run(AgentState.model_validate_json(stored)) == final
        assert again.requests == model.requests[step:]
