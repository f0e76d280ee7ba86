"""Summaries in place of the old part of a thread."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.agent import Agent
from agent.capabilities import summarization as module
from agent.capabilities.filesystem import filesystem
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.capabilities.summarization import FAILED, MEASURED, SUMMARY, summarization
from agent.capabilities.todos import todos
from agent.errors import ContextLengthExceeded, ModelRefused, ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest
from agent.loop import Host
from agent.messages import Message, ToolResult, Usage
from agent.models import token_estimates
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse
from agent.tools.tool import Capability
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.agent.fakes import Events, FakeFiles, SaysInTurn, allowing, call, done, says, state, tool

WINDOW = 1000  # tokens: a summary is due from 850 on, which is 3,400 characters
TOO_LONG = ContextLengthExceeded("the request has too many tokens")


async def big(*_: object) -> ToolResult:
    """A tool with a result of 100 tokens."""
    return ToolResult(b"r" * 400)


TOOLS = Capability("tools", tools=(tool("t", done), tool("big", big)))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def agent_of(
    model: Any, *capabilities: Capability, hooks: tuple[Hook, ...] = (), steps: int = 50, first_call: int = 0
) -> Agent:
    bounds = limits(steps=steps, output_tokens=10**9, tool_calls=10**6, repeated_calls=10**6, execution_time_s=1e9)
    numbers = itertools.count(first_call)
    return Agent(
        model=model,
        capabilities=(*capabilities, TOOLS, bounds),
        hooks=(*hooks, allowing()),
        host=Host(new_call_id=lambda: f"call_{next(numbers)}"),
    )


async def run(
    model: Any, capability: Capability, of: AgentState | None = None, **settings: Any
) -> tuple[AgentState, Events]:
    events = Events()
    return await agent_of(model, capability, **settings).run(of or state(), events), events


def thread_of(count: int, chars: int = 400) -> AgentState:
    """Return a thread of `count` messages, each of `chars` characters that begin with its number."""
    return state(messages=tuple(user(f"{number}:".ljust(chars, "x")) for number in range(1, count + 1)))


def small(model: Any, files: Any, window: int = WINDOW) -> Capability:
    return summarization(model, files, context_window_tokens=window)


def summary_in(final: AgentState) -> dict[str, Any]:
    found = final.metadata[SUMMARY]
    assert isinstance(found, dict)
    return found


def whole(messages: tuple[Message, ...]) -> bool:
    """Return whether each tool message has its call before it, and each call its result after it."""
    asked: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in asked:
                return False
            asked.remove(message.tool_call_id)
        elif asked:
            return False
        asked += [one.id for one in message.tool_calls]
    return not asked


# --- when and what ---


@pytest.mark.parametrize("over, summaries", [(0, 0), (1, 1)])
async def test_a_summary_is_due_over_85_percent_of_the_window(over: int, summaries: int, tmp_path: Path) -> None:
    model, summariser = SaysInTurn(says("done")), SaysInTurn(says("s"))
    agent = agent_of(model, small(summariser, LocalFS(tmp_path)))
    tools = token_estimates.prompt_tokens("", agent.executor.specs())
    thread = state(messages=(*(user("x" * 400),) * 7, user("y" * 4 * (850 + over - 700 - tools))))
    final = await agent.run(thread)
    assert len(summariser.requests) == summaries
    assert (model.requests[0].messages == thread.messages) is not bool(summaries)
    assert (SUMMARY in final.metadata) is bool(summaries)


async def test_over_85_percent_the_old_part_is_shown_as_a_summary_and_the_thread_stays_whole(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(says("done")), SaysInTurn(says("all that was"))
    thread = thread_of(40)
    final, _ = await run(model, small(summariser, LocalFS(tmp_path)), thread)
    shown = model.requests[0].messages
    assert shown[1:] == thread.messages[-4:]
    assert (shown[0].role, "all that was" in shown[0].content) == ("user", True)
    assert final.messages[:40] == thread.messages
    file = "/workspace/.airlock/history/r1-40.md"
    assert summary_in(final) == {"text": "all that was", "messages": 36, "file": file}
    assert file in shown[0].content
    history = (tmp_path / ".airlock/history/r1-40.md").read_text()
    assert all(message.content in history for message in thread.messages)
    assert "## 40. user" in history


async def test_two_messages_stay_at_least(tmp_path: Path) -> None:
    model = SaysInTurn(says("done"))
    thread = thread_of(5, 1600)
    await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path)), thread)
    assert model.requests[0].messages[1:] == thread.messages[-2:]


async def test_the_model_is_asked_for_under_2000_words_and_shown_the_old_part_as_text(tmp_path: Path) -> None:
    summariser = SaysInTurn(says("s"))
    messages = (
        user("find it"),
        Message(role="assistant", content="looking", tool_calls=(call("grep", "c7", pattern="needle ä"),)),
        Message(role="tool", content="y" * 4000, tool_call_id="c7"),
        user("newest but one"),
        user("newest"),
    )
    await run(SaysInTurn(says("done")), small(summariser, LocalFS(tmp_path)), state(messages=messages))
    (request,) = summariser.requests
    assert "under 2,000 words" in request.system_prompt
    assert request.tools == ()
    (asked,) = request.messages
    assert asked.role == "user"
    assert "## 2. assistant\n\nlooking\n\n```json\n" in asked.content
    assert '{"id": "c7", "name": "grep", "arguments": {"pattern": "needle ä"}}' in asked.content
    assert "## 3. tool (result of c7)" in asked.content
    assert "newest" not in asked.content


async def test_the_request_for_a_summary_fits_the_window(tmp_path: Path) -> None:
    summariser = SaysInTurn(says("s"))
    messages = [user(f"{number}:" + "y" * 3000) for number in range(300)]
    await run(SaysInTurn(says("done")), small(summariser, LocalFS(tmp_path)), state(messages=tuple(messages)))
    (asked,) = summariser.requests[0].messages
    assert len(asked.content) <= WINDOW * 4 * 0.7
    assert "left out" in asked.content


async def test_a_request_for_a_summary_that_is_too_long_is_made_shorter(tmp_path: Path) -> None:
    summariser = SaysInTurn(TOO_LONG, TOO_LONG, says("s"))
    final, events = await run(SaysInTurn(says("done")), small(summariser, LocalFS(tmp_path)), thread_of(40))
    lengths = [len(request.messages[0].content) for request in summariser.requests]
    assert lengths[0] > 1.5 * lengths[1] > 1.5 * 1.5 * lengths[2]
    assert summary_in(final)["text"] == "s"
    assert events.of("hook_failed") == []


async def test_what_was_written_into_files_is_shortened_in_the_request_only(tmp_path: Path) -> None:
    summariser = SaysInTurn(says("s"))
    bulk = "b" * 30_000
    calls = (
        call("write_file", "c0", path="a.py", content=5),
        call("write_file", "c1", path="a.py", content=bulk),
        call("edit_file", "c2", path="a.py", old_text=bulk, new_text=bulk),
        call("other", "c3", content="o" * 9_000),
    )
    results = tuple(Message(role="tool", content="ok", tool_call_id=one.id) for one in calls)
    messages = (user("go"), Message(role="assistant", tool_calls=calls), *results, user("x"), user("y"))
    final, _ = await run(
        SaysInTurn(says("done")), small(summariser, LocalFS(tmp_path), 20_000), state(messages=messages)
    )
    (asked,) = summariser.requests[0].messages
    assert len(asked.content) < 3 * 2_000 + 9_000 + 1_000
    assert 3 * 1_900 < asked.content.count("b") < 3 * 2_000
    assert "o" * 9_000 in asked.content
    assert final.messages[1].tool_calls == calls
    assert (tmp_path / ".airlock/history/r1-8.md").read_text().count(bulk) == 3


@pytest.mark.parametrize(
    "said, most_words, most_chars",
    [("word " * 9_000, 2_000, 20_000), ("x" * 900_000, 1, 20_000), ("ä" * 900_000, 1, 20_000)],
)
async def test_a_summary_of_absurd_length_is_cut(said: str, most_words: int, most_chars: int, tmp_path: Path) -> None:
    final, _ = await run(SaysInTurn(says("done")), small(SaysInTurn(says(said)), LocalFS(tmp_path)), thread_of(40))
    text = summary_in(final)["text"]
    assert len(text.split()) == most_words
    assert len(text) <= most_chars
    assert len(json.dumps(final.metadata[SUMMARY])) < 65_536  # what is kept of a value with the thread


# --- never a call without its result ---

GROUPS = st.lists(st.integers(min_value=0, max_value=12), min_size=3, max_size=25)


@given(groups=GROUPS)
def test_no_tool_call_is_ever_parted_from_its_results(groups: list[int], tmp_path_factory: Any) -> None:
    messages = [user("the task " * 400)]
    for number, size in enumerate(groups):
        calls = tuple(call("t", f"c{number}_{index}") for index in range(size))
        messages.append(Message(role="assistant", content="z" * 300, tool_calls=calls))
        messages += [Message(role="tool", content="done", tool_call_id=one.id) for one in calls]
    turns = [says("", *(call("t"),) * (size % 5 + 1)) for size in groups]
    model = SaysInTurn(*turns, says("done"))
    final = asyncio.run(
        agent_of(model, small(SaysInTurn(says("s" * 100)), FakeFiles())).run(state(messages=tuple(messages)))
    )
    assert whole(final.messages)
    for request in model.requests:
        assert whole(request.messages)
        assert len(request.messages) >= 3  # the summary and two at least
    assert any(request.messages[0].content.startswith("[The first") for request in model.requests)


# --- one after another ---


async def test_a_later_summary_covers_the_earlier_one_and_what_came_since(tmp_path: Path) -> None:
    model = SaysInTurn(*[says(f"step {number}", call("big", n=number)) for number in range(6)], says("done"))
    summariser = SaysInTurn(says("first summary"), says("second summary"))
    final, _ = await run(model, small(summariser, LocalFS(tmp_path)), thread_of(40))
    assert len(summariser.requests) == 2
    asked = summariser.requests[1].messages[0].content
    assert "first summary" in asked
    assert "\n1:xx" not in asked
    assert "37:xx" in asked
    assert "step 0" in asked
    kept = summary_in(final)
    assert kept["text"] == "second summary"
    last = model.requests[-1].messages
    assert "second summary" in last[0].content
    assert "first summary" not in last[0].content
    assert last[1:] == final.messages[kept["messages"] : -1]
    assert (tmp_path / kept["file"].removeprefix("/workspace/")).read_text().count("## 1. user") == 1


async def test_between_two_summaries_each_step_shows_the_one_there_is(tmp_path: Path) -> None:
    model = SaysInTurn(says("", call("t")), says("", call("t")), says("done"))
    final, _ = await run(model, small(SaysInTurn(says("the past")), LocalFS(tmp_path)), thread_of(40))
    for number, request in enumerate(model.requests):
        assert request.messages[0] == model.requests[0].messages[0]
        assert request.messages[1:] == final.messages[36 : 40 + 2 * number]


async def test_the_next_run_of_the_thread_begins_with_the_summary(tmp_path: Path) -> None:
    capability = small(SaysInTurn(says("the past")), LocalFS(tmp_path))
    first, _ = await run(SaysInTurn(says("done")), capability, thread_of(40))
    model, summariser = SaysInTurn(says("again")), SaysInTurn(says("never"))
    thread = AgentState(
        run_id="r2", thread="t", messages=(*first.messages, user("and now")), metadata=dict(first.metadata)
    )
    await run(model, small(summariser, LocalFS(tmp_path)), thread)
    assert summariser.requests == []
    assert "the past" in model.requests[0].messages[0].content
    assert model.requests[0].messages[1:] == thread.messages[36:]


@pytest.mark.parametrize(
    "kept",
    [
        "nonsense",
        {"text": "s"},
        {"text": "s", "messages": 0, "file": ""},
        {"text": "s", "messages": -1, "file": ""},
        {"text": "s", "messages": 99, "file": ""},
        {"text": 3, "messages": 1, "file": ""},
    ],
)
async def test_what_is_no_summary_of_this_thread_is_not_shown(kept: Any, tmp_path: Path) -> None:
    model, thread = SaysInTurn(says("done")), thread_of(3).with_metadata(SUMMARY, kept)
    _, events = await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path)), thread)
    assert model.requests[0].messages == thread.messages
    assert events.of("hook_failed") == []


async def test_what_other_hooks_add_for_one_step_stays_in_its_place(tmp_path: Path) -> None:
    model = SaysInTurn(says("done"))
    thread = thread_of(40).with_metadata("todos.list", [{"id": "1", "title": "open one", "status": "pending"}])
    agent = agent_of(model, todos(), small(SaysInTurn(says("s")), LocalFS(tmp_path)))
    await agent.run(thread)
    shown = model.requests[0].messages
    assert shown[1:5] == thread.messages[-4:]
    assert "open one" in shown[5].content
    assert len(shown) == 6


async def test_messages_that_a_hook_further_out_laid_are_left_alone(tmp_path: Path) -> None:
    class Lays(Hook):
        priority = 10_000

        async def before_inference(self, state: AgentState) -> AgentState:
            return state.with_messages((user("only this"),))

    model = SaysInTurn(says("done"))
    await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path)), thread_of(40), hooks=(Lays(),))
    assert model.requests[0].messages == (user("only this"),)


# --- failures ---


@pytest.mark.parametrize("error", [ModelRefused("bad key"), ModelUnavailable("away"), TOO_LONG, ZeroDivisionError("x")])
async def test_a_summary_that_fails_changes_nothing_else_and_is_reported(error: Exception, tmp_path: Path) -> None:
    model, thread = SaysInTurn(says("done")), thread_of(40)
    final, events = await run(model, small(SaysInTurn(error), LocalFS(tmp_path)), thread)
    assert model.requests[0].messages == thread.messages
    assert final.metadata == {FAILED: f"{type(error).__name__}: {error}"}
    assert final.messages[:-1] == thread.messages
    assert list(tmp_path.iterdir()) == []
    (changed,) = events.of("state_changed")
    assert (changed["hook"], changed["metadata"]) == ("summarization", final.metadata)
    assert events[-1].payload["answer"] == "done"


class Hangs:
    name = "hangs"

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_summary_that_hangs_costs_its_timeout_and_no_more(tmp_path: Path) -> None:
    capability = summarization(Hangs(), LocalFS(tmp_path), context_window_tokens=WINDOW, timeout_s=0.01)
    _, events = await run(SaysInTurn(says("done")), capability, thread_of(40))
    assert "longer than 0.01 s" in str(events.of("state_changed")[0]["metadata"])
    assert events[-1].payload["answer"] == "done"


async def test_a_later_summary_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    model = SaysInTurn(*[says("", call("big")) for _ in range(12)], says("done"))
    summariser = SaysInTurn(says("the first"), ModelRefused("bad key"))
    final, _ = await run(model, small(summariser, LocalFS(tmp_path)), thread_of(40))
    assert final.metadata[FAILED] == "ModelRefused: bad key"
    assert summary_in(final)["text"] == "the first"
    for request in model.requests:
        assert "the first" in request.messages[0].content
    assert model.requests[-1].messages[1:] == final.messages[36:-1]


async def test_a_driver_that_raises_what_no_driver_should_leaves_the_earlier_summary_and_pauses(tmp_path: Path) -> None:
    class Exits:
        name = "exits"
        requests = 0

        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            self.requests += 1
            if self.requests == 1:
                return says("the first")
            raise SystemExit

    model, exits = SaysInTurn(*[says("", call("big")) for _ in range(19)], says("done")), Exits()
    final, _ = await run(model, small(exits, LocalFS(tmp_path)), thread_of(40))
    assert summary_in(final)["text"] == "the first"
    assert all("the first" in request.messages[0].content for request in model.requests)
    assert 1 < exits.requests < 10


async def test_a_failing_summary_is_not_tried_at_each_step(tmp_path: Path) -> None:
    model = SaysInTurn(*[says("", call("t")) for _ in range(39)], says("done"))
    summariser = SaysInTurn(ModelRefused("bad key"))
    await run(model, small(summariser, LocalFS(tmp_path)), thread_of(40))
    assert len(model.requests) == 40
    assert len(summariser.requests) == 5  # at steps 1, 3, 7, 15 and 31


async def test_a_summary_without_a_word_changes_nothing_but_was_paid_for(tmp_path: Path) -> None:
    model, thread = SaysInTurn(says("done")), thread_of(40)
    final, _ = await run(model, small(SaysInTurn(says("  \n", output_tokens=30)), LocalFS(tmp_path)), thread)
    assert model.requests[0].messages == thread.messages
    assert SUMMARY not in final.metadata
    assert final.usage.output_tokens == 31


async def test_without_a_place_for_the_history_the_summary_happens_and_says_so(tmp_path: Path) -> None:
    (tmp_path / ".airlock").write_text("a file where a directory should be")
    model = SaysInTurn(says("done"))
    final, events = await run(model, small(SaysInTurn(says("the past")), LocalFS(tmp_path)), thread_of(40))
    assert summary_in(final) == {"text": "the past", "messages": 36, "file": ""}
    assert "could not be written to a file" in model.requests[0].messages[0].content
    assert events.of("hook_failed") == []


class StuckFiles(FakeFiles):
    async def write(self, path: str, data: Any) -> Any:
        await asyncio.Event().wait()


async def test_files_that_do_not_answer_cost_the_summary_its_history_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_WRITE_TIMEOUT_S", 0.01)
    final, events = await run(SaysInTurn(says("done")), small(SaysInTurn(says("s")), StuckFiles()), thread_of(40))
    assert summary_in(final)["file"] == ""
    assert events.of("hook_failed") == []


async def test_the_loop_has_turns_while_a_long_thread_is_written_down() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    seen: list[int] = []

    class Seeing(SaysInTurn):
        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            seen.append(turns)
            return await super().infer(request, on_delta)

    class SeeingFiles(FakeFiles):
        async def write(self, path: str, data: Any) -> Any:
            seen.append(turns)
            return await super().write(path, data)

    thread, files = thread_of(40, 100_000), SeeingFiles()
    summarizer: Any = small(Seeing(says("s")), files).hooks[0]
    with_others = asyncio.create_task(others())
    final = await summarizer.before_inference(thread)
    with_others.cancel()
    asked, written = seen
    assert min(asked, written - asked) >= 30
    (history,) = files.files.values()
    assert (
        history
        == "\n\n".join(f"## {n}. user\n\n{m.content}" for n, m in enumerate(thread.messages, 1)).encode() + b"\n"
    )
    assert summary_in(final)["file"] == "/workspace/.airlock/history/r1-40.md"


async def test_the_history_is_where_it_belongs_whatever_the_run_is_called(tmp_path: Path) -> None:
    thread = thread_of(40).with_(run_id="../../etc/" + "x" * 500)
    final, _ = await run(SaysInTurn(says("done")), small(SaysInTurn(says("s")), LocalFS(tmp_path)), thread)
    (written,) = (tmp_path / ".airlock/history").iterdir()
    assert summary_in(final)["file"] == f"/workspace/.airlock/history/{written.name}"
    unnamed, _ = await run(
        SaysInTurn(says("done")), small(SaysInTurn(says("s")), LocalFS(tmp_path)), thread_of(40).with_(run_id="")
    )
    assert summary_in(unnamed)["file"] == "/workspace/.airlock/history/t-40.md"


async def test_the_model_can_read_the_history_with_its_own_tools(tmp_path: Path) -> None:
    files = LocalFS(tmp_path)
    model = SaysInTurn(says("", call("grep", pattern="^7:", path="/workspace/.airlock/history")), says("done"))
    agent = agent_of(model, filesystem(files), small(SaysInTurn(says("s")), files))
    final = await agent.run(thread_of(40))
    assert "/r1-40.md:" in final.messages[-2].content
    assert "7:xxx" in final.messages[-2].content


async def test_half_of_a_surrogate_pair_in_the_thread_breaks_neither_the_summary_nor_the_file(tmp_path: Path) -> None:
    thread = thread_of(40)
    broken = state(messages=(user("\ud800"), *thread.messages))
    summariser = SaysInTurn(says("s \udfff"))
    final, events = await run(SaysInTurn(says("done")), small(summariser, LocalFS(tmp_path)), broken)
    summariser.requests[0].messages[0].content.encode()
    summary_in(final)["text"].encode()
    assert summary_in(final)["file"]
    assert events.of("hook_failed") == []


async def test_what_does_not_fit_after_a_summary_either_goes_to_the_model_as_it_is(tmp_path: Path) -> None:
    model = SaysInTurn(says("", call("t")), says("", call("t")), says("done"))
    summariser = SaysInTurn(says("s"))
    thread = state(messages=(user("a"), user("b" * 9_000), user("c" * 9_000)))
    final, _ = await run(model, small(summariser, LocalFS(tmp_path)), thread)
    assert model.requests[0].messages[1:] == thread.messages[1:]
    assert final.messages[-1].content == "done"


# --- a request that was too long ---


async def test_a_request_that_is_too_long_is_summarised_and_asked_again(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(TOO_LONG, says("done")), SaysInTurn(says("the past"))
    thread = thread_of(40)
    final, events = await run(model, small(summariser, LocalFS(tmp_path), 128_000), thread)
    assert model.requests[0].messages == thread.messages
    assert "the past" in model.requests[1].messages[0].content
    assert model.requests[1].messages[1:] == thread.messages[-2:]  # 5 % now, not 10 %
    assert events[-1].payload["status"] == "completed"
    assert final.messages[:-1] == thread.messages  # the model does not see it


async def test_a_request_that_was_too_long_corrects_the_estimate(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(TOO_LONG, says("done")), SaysInTurn(says("the past"))
    final, _ = await run(model, small(summariser, LocalFS(tmp_path), 10_000), thread_of(40))
    measured = final.notes[MEASURED]
    assert isinstance(measured, dict)
    assert measured["tokens"] > 1.5 * measured["estimated"]  # 10,000 at least, where we thought of 4,000
    assert len(summariser.requests[0].messages[0].content) < 10_000 * 4 * 0.7 / 2 / 1.5


async def test_one_refusal_leads_to_one_summary_also_when_the_next_request_fails_otherwise(tmp_path: Path) -> None:
    model = SaysInTurn(TOO_LONG, ModelUnavailable("away"), says("done"))
    summariser = SaysInTurn(says("first"), says("never"))
    patient = flow(retries=0, on_model_error="continue")
    agent = agent_of(model, small(summariser, LocalFS(tmp_path), 128_000), patient)
    await agent.run(thread_of(100))
    assert len(summariser.requests) == 1
    assert model.requests[2].messages == model.requests[1].messages


async def test_twice_in_a_row_and_no_more(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(TOO_LONG), SaysInTurn(says("the past"))
    final, events = await run(model, small(summariser, LocalFS(tmp_path), 128_000), thread_of(100))
    kept = [len(request.messages) for request in model.requests]
    assert kept == [100, 1 + 5, 1 + 2]
    assert len(summariser.requests) == 2
    assert events[-1].payload["status"] == "failed"
    assert final.stop is not None
    assert "too many tokens" in final.stop.reason


async def test_where_nothing_can_be_left_out_the_error_is_left_alone(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(TOO_LONG, says("never")), SaysInTurn(says("s"))
    _, events = await run(model, small(summariser, LocalFS(tmp_path)), thread_of(2))
    assert (len(model.requests), summariser.requests) == (1, [])
    assert events[-1].payload["status"] == "failed"


async def test_a_request_that_went_well_in_between_begins_the_count_again(tmp_path: Path) -> None:
    model = SaysInTurn(TOO_LONG, TOO_LONG, *[says("", call("big")) for _ in range(4)], TOO_LONG, says("done"))
    _, events = await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path), 128_000), thread_of(100))
    assert len(model.requests) == 8
    assert events[-1].payload["status"] == "completed"


async def test_a_request_that_was_too_long_is_not_asked_the_same_way_when_the_summary_fails(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(TOO_LONG), SaysInTurn(ModelRefused("bad key"))
    _, events = await run(model, small(summariser, LocalFS(tmp_path), 128_000), thread_of(40))
    assert len(model.requests) == 3  # two tries for a summary, both reported, then the error
    assert len(events.of("state_changed")) == 2
    assert events[-1].payload["status"] == "failed"


async def test_other_refusals_are_not_ours(tmp_path: Path) -> None:
    model, summariser = SaysInTurn(ModelRefused("bad key"), says("never")), SaysInTurn(says("s"))
    _, events = await run(model, small(summariser, LocalFS(tmp_path), 128_000), thread_of(40))
    assert (len(model.requests), summariser.requests) == (1, [])
    assert events[-1].payload["status"] == "failed"


# --- counting ---


async def test_what_the_summary_used_counts(tmp_path: Path) -> None:
    summariser = SaysInTurn(
        says("s").model_copy(update={"usage": Usage(input_tokens=70, output_tokens=9, cost_usd=2.5)})
    )
    final, _ = await run(SaysInTurn(says("done")), small(summariser, LocalFS(tmp_path)), thread_of(40))
    assert final.usage == Usage(input_tokens=71, output_tokens=10, cost_usd=2.5)


@pytest.mark.parametrize("then, spent", [(says("s"), 2 + 2 * 9), (ModelRefused("bad key"), 1 + 2 * 9)])
async def test_what_summaries_that_failed_used_counts(
    then: ModelResponse | Exception, spent: int, tmp_path: Path
) -> None:
    refused = ContextLengthExceeded("too many tokens")
    refused.usage = Usage(output_tokens=9)
    thread = thread_of(40).with_(metadata={FAILED: "the one before"})
    final, _ = await run(SaysInTurn(says("done")), small(SaysInTurn(refused, refused, then), LocalFS(tmp_path)), thread)
    assert final.usage.output_tokens == spent
    assert (FAILED in final.metadata) is isinstance(then, Exception)


class Reports:
    """A model that calls `big` at each step and reports `factor` times a quarter of the characters."""

    name = "reports"

    def __init__(self, factor: float, steps: int) -> None:
        self.factor = factor
        self.steps = steps
        self.requests: list[InferenceRequest] = []

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.requests.append(request)
        chars = sum(len(message.content) for message in request.messages)
        response = says("done") if len(self.requests) == self.steps else says("", call("big"))
        return response.model_copy(update={"usage": Usage(input_tokens=int(self.factor * chars / 4))})


async def test_what_the_endpoint_reports_decides_when_a_summary_is_due(tmp_path: Path) -> None:
    longest = {}
    for factor in (0.0, 0.5, 1.0, 3.0):
        model = Reports(factor, 120)
        await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path), 8_000), steps=200)
        longest[factor] = max(sum(len(message.content) for message in request.messages) for request in model.requests)
    assert longest[1.0] == pytest.approx(longest[0.0], rel=0.1)
    assert longest[3.0] < 0.45 * longest[1.0]
    assert longest[0.5] > 1.5 * longest[1.0]
    assert longest[0.0] < 8_000 * 4 * 0.85


async def test_what_other_hooks_add_to_a_request_is_counted(tmp_path: Path) -> None:
    class Reminds(Hook):
        async def before_inference(self, state: AgentState) -> AgentState:
            return state.with_messages((*state.current.input_messages, user("z" * 4_000)))

    counted = []
    for hooks in ((), (Reminds(),)):
        capability = small(SaysInTurn(says("s")), LocalFS(tmp_path))
        final, _ = await run(SaysInTurn(says("done")), capability, thread_of(40), hooks=hooks)
        measured = final.notes[MEASURED]
        assert isinstance(measured, dict)
        counted.append(measured["estimated"])
    assert counted[1] == counted[0] + 1_000


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    counted: list[Message] = []
    real: Callable[[Message], int] = token_estimates.message_tokens

    def count(message: Message) -> int:
        counted.append(message)
        return real(message)

    monkeypatch.setattr(token_estimates, "message_tokens", count)
    return counted


async def test_a_step_counts_as_many_messages_at_the_500th_step_as_at_the_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = counting(monkeypatch)
    per_step: list[int] = []

    class Marks(Hook):
        async def before_step(self, state: AgentState) -> AgentState:
            per_step.append(len(counted))
            return state

    model = SaysInTurn(*[says("", call("t")) for _ in range(499)], says("done"))
    final, _ = await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path), 10**6), hooks=(Marks(),), steps=1000)
    assert len(final.messages) == 1000
    steps = [after - before for before, after in itertools.pairwise(per_step)]
    assert len(set(steps[2:])) == 1
    assert steps[-1] <= 6  # the two messages that are new, at each of three looks


async def test_a_long_thread_is_counted_once_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = counting(monkeypatch)
    marks: list[int] = []

    class Marks(Hook):
        async def after_step(self, state: AgentState) -> AgentState:
            marks.append(len(counted))
            return state

    model = SaysInTurn(*[says("", call("t")) for _ in range(20)], says("done"))
    await run(model, small(SaysInTurn(says("s")), LocalFS(tmp_path), 10**6), thread_of(1000), hooks=(Marks(),))
    steps = [after - before for before, after in itertools.pairwise(marks)]
    assert marks[0] >= 1000
    assert max(steps) <= 6


# --- in another process ---


@pytest.mark.parametrize("first", [says("", call("big")), TOO_LONG], ids=["estimate", "too_long"])
async def test_a_run_resumed_from_json_at_any_step_goes_on_the_same(first: Any, tmp_path: Path) -> None:
    turns = [first, *[says(f"step {number}", call("big", n=number)) for number in range(14)], says("done")]
    stored: list[str] = []

    class Stores(Hook):
        priority = 10**6

        async def before_step(self, state: AgentState) -> AgentState:
            stored.append(state.model_dump_json())
            return state

    summaries = [says(f"summary {number}") for number in range(9)]
    model, summariser = SaysInTurn(*turns), SaysInTurn(*summaries)
    final, _ = await run(model, small(summariser, LocalFS(tmp_path), 1_400), thread_of(10), hooks=(Stores(),))
    assert len(summariser.requests) >= 2
    assert len(stored) == 16

    for step, text in enumerate(stored):
        before = AgentState.model_validate_json(text)
        written = 0 if SUMMARY not in before.metadata else int(summary_in(before)["text"].split()[1]) + 1
        again, rest = SaysInTurn(*turns[step:]), SaysInTurn(*summaries[written:])
        first_call = max(0, step - (first is TOO_LONG))
        agent = agent_of(again, small(rest, LocalFS(tmp_path), 1_400), first_call=first_call)
        resumed = await agent.run(before)
        assert again.requests == model.requests[step:]
        assert rest.requests == summariser.requests[written:]
        assert resumed.messages == final.messages
        assert resumed.metadata == final.metadata
        assert resumed.notes[MEASURED] == final.notes[MEASURED]


def test_a_window_is_more_than_nothing() -> None:
    with pytest.raises(ValueError, match="context_window_tokens is 0"):
        summarization(SaysInTurn(), FakeFiles(), context_window_tokens=0)
