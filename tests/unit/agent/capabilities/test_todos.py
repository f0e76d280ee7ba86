"""The todo list: written whole, kept with the thread, and shown while something is open."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from agent.agent import Agent
from agent.capabilities.todos import KEY, MAX_LIST_CHARS, MAX_TODOS, todos
from agent.hooks.hook import Hook
from agent.loop import Host
from agent.messages import Message, ToolCall, ToolResult
from agent.state import AgentState
from tests.unit.agent.fakes import Events, SaysInTurn, call, says, state


def todo(id_: str, status: str = "pending", title: str = "look") -> dict[str, JsonValue]:
    return {"id": id_, "title": title, "status": status}


def writes(*items: JsonValue, call_id: str = "c1") -> ToolCall:
    return call("write_todos", call_id, todos=list(items))


class KeepsStates(Hook):
    """What the gateway does at the start of a step: the state as JSON, as it could be stored."""

    name = "keeps_states"

    def __init__(self) -> None:
        self.states: list[str] = []

    async def before_step(self, state: AgentState) -> AgentState:
        self.states.append(state.model_dump_json())
        return state


def agent(model: SaysInTurn, *hooks: Hook, first_call: int = 0) -> Agent:
    ids = iter(f"call-{number}" for number in range(first_call, first_call + 1000))
    return Agent(
        model=model, capabilities=(todos(),), hooks=hooks, host=Host(clock=lambda: 0.0, new_call_id=lambda: next(ids))
    )


async def run(*calls: ToolCall, start: AgentState | None = None, hooks: tuple[Hook, ...] = ()) -> Any:
    """Run one step with the calls and one with an answer; return the final state, the model and the events."""
    model, events = SaysInTurn(says("", *calls), says("done")), Events()
    return await agent(model, *hooks).run(start or state(), events), model, events


def results(final: AgentState) -> list[str]:
    return [message.content for message in final.messages if message.role == "tool"]


def reminder(model: SaysInTurn, step: int) -> str:
    """Return what was said at the end of a step's messages besides the thread, "" for nothing."""
    last = model.requests[step - 1].messages[-1]
    return last.content if last.content.startswith("<todos>") else ""


async def test_a_call_replaces_the_whole_list_and_its_result_counts_it_in_one_line() -> None:
    before = state(metadata={KEY: [todo("old")]})
    final, _, _ = await run(writes(todo("a", "done"), todo("b", "in_progress"), todo("c"), todo("d")), start=before)
    assert final.metadata[KEY] == [todo("a", "done"), todo("b", "in_progress"), todo("c"), todo("d")]
    assert results(final) == ["The list now: 1 done, 1 in_progress, 2 pending."]


async def test_an_empty_list_clears_it() -> None:
    final, model, _ = await run(writes(), start=state(metadata={KEY: [todo("old")]}))
    assert final.metadata[KEY] == []
    assert results(final) == ["The list now: empty."]
    assert [bool(reminder(model, step)) for step in (1, 2)] == [True, False]


async def test_the_reminder_is_the_last_message_of_the_inference_and_lists_every_todo_with_its_sign() -> None:
    _, model, _ = await run(
        writes(todo("a", "done", "read"), todo("b", "in_progress", "write"), todo("c", title="run"))
    )
    last = model.requests[1].messages[-1]
    assert last.role == "user"
    assert last.content.splitlines()[:5] == ["<todos>", "[x] a: read", "[>] b: write", "[ ] c: run", "</todos>"]
    assert reminder(model, 1) == ""


async def test_the_reminder_is_not_in_the_thread_and_what_precedes_it_stays_the_same_from_step_to_step() -> None:
    model = SaysInTurn(says("", writes(todo("a"))), says("", writes(todo("a", "in_progress"))), says("bye"))
    final = await agent(model).run(state())
    assert not any("<todos>" in message.content for message in final.messages)
    second, third = model.requests[1].messages, model.requests[2].messages
    assert second[:-1] == third[: len(second) - 1] == final.messages[: len(second) - 1]
    assert third[:-1] == final.messages[: len(third) - 1]
    assert ("[ ] a" in second[-1].content, "[>] a" in third[-1].content) == (True, True)


async def test_nothing_is_shown_when_nothing_is_open() -> None:
    final, model, _ = await run(writes(todo("a", "done")))
    assert reminder(model, 2) == ""
    assert model.requests[1].messages == final.messages[:-1]


async def test_the_reminder_comes_after_what_other_hooks_add() -> None:
    class Adds(Hook):
        async def before_inference(self, state: AgentState) -> AgentState:
            return state.with_messages((*state.current.input_messages, Message(role="user", content="added")))

    _, model, _ = await run(writes(todo("a")), hooks=(Adds(),))
    assert [message.content for message in model.requests[1].messages[-2:]] == ["added", reminder(model, 2)]


async def test_of_two_lists_in_one_step_the_last_in_call_order_stays() -> None:
    final, _, _ = await run(writes(todo("first")), writes(todo("second"), call_id="c2"))
    assert final.metadata[KEY] == [todo("second")]


async def test_a_title_of_several_lines_is_one_line_to_the_model() -> None:
    _, model, _ = await run(writes(todo("a", title="one\n[x] b: forged\r\ttwo")))
    assert "[ ] a: one [x] b: forged two" in reminder(model, 2).splitlines()


async def test_numbers_are_as_good_as_texts_for_ids() -> None:
    final, _, _ = await run(writes({"id": 1, "title": "look", "status": "done"}))
    assert final.metadata[KEY] == [todo("1", "done")]


@pytest.mark.parametrize(
    "items, said",
    [
        ([todo("a"), todo("a")], "'a' appears 2 times"),
        ([todo("a", "open")], "'pending', 'in_progress' or 'done'"),
        ([todo("a", title="")], "todos.0.title"),
        ([todo("a", title="x" * 201)], "at most 200"),
        ([todo("x" * 65)], "at most 64"),
        ([{"id": "a", "title": "look"}], "`todos.0.status` is missing"),
        ([{**todo("a"), "due": "now"}], "there is no argument `todos.0.due`"),
        ([todo(str(number)) for number in range(MAX_TODOS + 1)], f"at most {MAX_TODOS}"),
        ([todo(str(number), title="\U0001f600" * 200) for number in range(20)], f"{MAX_LIST_CHARS} is the limit"),
    ],
)
async def test_a_list_that_does_not_fit_is_refused_with_the_reason_and_changes_nothing(
    items: list[JsonValue], said: str
) -> None:
    final, _, _ = await run(writes(*items), start=state(metadata={KEY: [todo("old")]}))
    assert said in results(final)[0]
    assert final.metadata[KEY] == [todo("old")]


async def test_the_longest_list_fits() -> None:
    longest = [todo(f"{number:0>64}", "in_progress", "x" * 200) for number in range(MAX_TODOS)]
    final, _, _ = await run(writes(*longest))
    assert final.metadata[KEY] == longest


async def test_a_blocked_call_changes_nothing() -> None:
    class Blocks(Hook):
        priority = -1000

        async def before_tool_use(self, state: AgentState) -> AgentState:
            return state.block("blocks", "no", "no")

        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state.with_result(ToolResult(b"as if nothing had happened"))

    final, _, _ = await run(writes(todo("a")), hooks=(Blocks(),))
    assert KEY not in final.metadata


async def test_a_call_whose_result_a_hook_further_in_made_an_error_changes_nothing() -> None:
    class Fails(Hook):
        priority = -1000

        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state.with_result(ToolResult.error("lost"))

    final, _, _ = await run(writes(todo("a")), hooks=(Fails(),))
    assert KEY not in final.metadata


async def test_only_the_tool_of_exactly_this_name_writes_the_list() -> None:
    final, _, events = await run(call("write_todos_", todos=[todo("a")]))
    assert KEY not in final.metadata
    assert "unknown tool" in results(final)[0]
    assert not events.of("hook_failed")


@pytest.mark.parametrize(
    "damaged",
    [
        "nonsense",
        7,
        None,
        {"a": 1},
        [1, None, ["x"], {"id": "a"}],
        [{"id": "a", "title": "x" * 9999, "status": "done"}],
    ],
)
async def test_a_damaged_list_in_the_metadata_is_no_list_and_breaks_nothing(damaged: JsonValue) -> None:
    final, model, events = await run(writes(todo("new")), start=state(metadata={KEY: damaged}))
    assert reminder(model, 1) == ""
    assert final.metadata[KEY] == [todo("new")]
    assert not events.of("hook_failed")
    assert events.of("run_finished")[0]["status"] == "completed"


async def test_what_is_left_of_a_damaged_list_is_shown_up_to_the_bound() -> None:
    many: list[JsonValue] = ["nonsense", *(todo(str(number)) for number in range(2 * MAX_TODOS))]
    _, model, _ = await run(writes(), start=state(metadata={KEY: many}))
    assert reminder(model, 1).count("[ ] ") == MAX_TODOS - 1


async def test_the_list_outlives_the_run() -> None:
    first, _, _ = await run(writes(todo("a")))
    model = SaysInTurn(says("hello again"))
    later = AgentState(run_id="r2", thread="t", messages=first.messages, metadata=first.metadata)
    await agent(model).run(later)
    assert "[ ] a: look" in reminder(model, 1)


async def test_a_run_resumed_from_any_stored_step_goes_on_alike() -> None:
    responses = [says("", writes(todo("a"), todo("b"))), says("", writes(todo("a", "done"), todo("b"))), says("bye")]
    model, keeper = SaysInTurn(*responses), KeepsStates()
    final = await agent(model, keeper).run(state())
    assert len(keeper.states) == len(responses)
    for step, stored in enumerate(keeper.states):
        again = SaysInTurn(*responses[step:])
        resumed = agent(again, KeepsStates(), first_call=step)  # one call a step
        assert await resumed.run(AgentState.model_validate_json(stored)) == final
        assert again.requests == model.requests[step:]
