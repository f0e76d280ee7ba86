"""The state is all there is: it round-trips through JSON, and a run goes on from it in another process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.errors import ModelUnavailable
from agent.frozen import storable_text
from agent.hooks.hook import Hook
from agent.messages import Message, ToolCall, ToolResult, Usage, storable_message
from agent.state import (
    AgentState,
    ContinuationDecision,
    ContinuationOutcome,
    CurrentExecution,
    Spent,
    ToolExecution,
    Verdict,
    VerdictKind,
)
from agent.tool_call import JudgedCall
from agent.tools.tool import Capability, ToolContext
from tests.examples import examples
from tests.unit.agent.fakes import Events, SaysInTurn, call, done, says, state, tool

ROOT = Path(__file__).parents[3]

# --- round trip ---

TEXT = st.text() | st.sampled_from(
    ["\0", "\ufeff", "\u202e", "\U0001f469\u200d\U0001f4bb", "e\u0301", '\\ud800"\\', "\u2028"]
)
NUMBERS = st.integers(0, 2**80)
FLOATS = st.floats(0, allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.builds(ToolCall, id=TEXT, name=TEXT, arguments=st.none() | OBJECTS, raw_arguments=TEXT)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXT,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tool_call_id=st.none() | TEXT,
)
USAGE = st.builds(Usage, input_tokens=NUMBERS, output_tokens=NUMBERS, cost_usd=FLOATS)
OUTCOMES = st.builds(
    ContinuationOutcome, decision=st.sampled_from(ContinuationDecision), hook=TEXT, rule=TEXT, reason=TEXT
)
IN_FLIGHT = st.builds(
    CurrentExecution,
    input_messages=st.lists(MESSAGES, max_size=1).map(tuple),
    errors=st.just((RuntimeError("a live object"),)),
    continuation=st.none() | OUTCOMES,
    tool_executions=st.lists(
        st.builds(
            ToolExecution,
            requested=CALLS,
            call=CALLS,
            judged=CALLS.map(JudgedCall.of),
            verdict=st.just(Verdict(kind=VerdictKind.BLOCK, hook="h", rule="r", reason="why")),
            result=st.just(ToolResult(b"\xff\x00")),
        ),
        max_size=1,
    ).map(tuple),
)
STATES = st.builds(
    AgentState,
    run_id=TEXT,
    thread=TEXT,
    agent=TEXT,
    depth=st.integers(0, 3),
    started=st.booleans(),
    system_prompt=TEXT,
    messages=st.lists(MESSAGES, max_size=3).map(tuple),
    metadata=OBJECTS,
    notes=OBJECTS,
    steps=NUMBERS,
    tool_calls=NUMBERS,
    usage=USAGE,
    others=st.builds(Spent, steps=NUMBERS, tool_calls=NUMBERS, usage=USAGE),
    forced_continuations=NUMBERS,
    active_s=FLOATS,
    hooks_s=FLOATS,
    model_s=FLOATS,
    tools_s=FLOATS,
    stop=st.none() | OUTCOMES,
    current=IN_FLIGHT,
)


@examples(150)
@given(STATES)
def test_a_state_round_trips_through_json_without_the_step_in_flight(given_state: AgentState) -> None:
    stored = given_state.model_dump_json()
    assert set(json.loads(stored)) == set(AgentState.model_fields) - {"current", "output"}
    assert AgentState.model_validate_json(stored) == given_state.cleared()
    assert AgentState.model_validate(json.loads(stored)) == given_state.cleared()
    assert "current" not in given_state.model_dump()
    assert "a live object" not in repr(given_state)


# --- in another process ---


def run_process(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.agent.resumed_run", str(directory), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def ended(process: subprocess.CompletedProcess[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the final state and the events of a process that came to its end."""
    assert process.returncode == 0, process.stderr
    reported = json.loads(process.stdout)
    del reported["state"]["hooks_s"]  # what execution_start took is counted in the step it belongs to, or not at all
    return reported["state"], reported["events"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    directory = tmp_path_factory.mktemp("whole")
    return directory, *ended(run_process(directory))


@pytest.mark.parametrize("step", range(1, 7))
def test_a_run_killed_before_any_step_goes_on_in_a_new_process_as_if_nothing_had_been(
    step: int, tmp_path: Path, whole: tuple[Path, dict[str, Any], list[str]]
) -> None:
    stored, final, events = whole
    killed = run_process(tmp_path, "--kill-before", str(step))
    assert killed.returncode == -signal.SIGKILL
    name = f"{step}.json"
    assert (tmp_path / name).read_bytes() == (stored / name).read_bytes()
    resumed, resumed_events = ended(run_process(tmp_path, "--resume-before", str(step)))
    assert resumed == final
    assert resumed["metadata"]["starts"] == resumed["metadata"]["ends"] == 1
    assert resumed_events[0] == "run_resumed"
    assert resumed_events[1:] == events[-len(resumed_events[1:]) :]


def test_the_whole_run_takes_every_step_that_a_kill_can_come_before(
    whole: tuple[Path, dict[str, Any], list[str]],
) -> None:
    stored, final, events = whole
    assert sorted(path.name for path in stored.iterdir()) == [f"{step}.json" for step in range(1, final["steps"] + 1)]
    assert final["steps"] == 6
    assert final["stop"]["hook"] == "finish_reason"
    assert (final["metadata"]["errors"], final["forced_continuations"], final["tool_calls"]) == (2, 1, 5)
    assert events[0] == "run_started"
    for path in stored.iterdir():
        assert "current" not in json.loads(path.read_text(encoding="utf-8"))


# --- what must not get into the state ---


class Keeps(Hook):
    """Keeps the JSON of every state it sees."""

    name = "keeps"

    def __init__(self) -> None:
        self.stored: list[str] = []

    async def before_step(self, state: AgentState) -> AgentState:
        self.stored.append(state.model_dump_json())
        return state

    after_step = before_step
    after_tool_use = before_step
    on_error = before_step
    execution_end = before_step


async def test_the_step_in_flight_is_never_stored_nor_left_after_an_error() -> None:
    keeps = Keeps()
    model = SaysInTurn(says("", call("t")), ModelUnavailable("a live error"))
    agent = Agent(
        model=model, capabilities=(flow(retries=0), Capability("tools", tools=(tool("t", done),))), hooks=(keeps,)
    )
    final = await agent.run(state())
    assert final.current == CurrentExecution()
    assert len(keeps.stored) == 6
    for stored in [*keeps.stored, final.model_dump_json()]:
        assert "current" not in json.loads(stored)
    assert "a live error" not in "".join(keeps.stored[:-1])


HALF = "caf\udce9"


async def test_half_a_surrogate_pair_from_a_model_reaches_the_tool_and_leaves_a_state_that_can_be_stored() -> None:
    seen: list[Any] = []

    async def look(asked: Any, context: ToolContext) -> ToolResult:
        seen.append(asked.model_dump())
        return ToolResult(b"found")

    odd = ToolCall(id="x", name="t", arguments={"path": HALF}, raw_arguments=HALF)
    model = SaysInTurn(says(HALF, odd, call(f"t{HALF}")), says(HALF))
    final = await Agent(model=model, capabilities=(Capability("tools", tools=(tool("t", look),)),)).run(state())
    assert seen[0]["path"] == HALF
    again = AgentState.model_validate_json(final.model_dump_json())
    assert again.messages == final.messages
    kept = final.messages[1].tool_calls[0]
    assert kept.arguments == {"path": "caf\ufffd"}
    assert json.loads(kept.raw_arguments)["path"] == HALF
    assert final.messages[-1].content == "caf\ufffd"
    assert final.messages[2].content == "found"


def circular() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize("write", ["with_metadata", "with_note"])
@pytest.mark.parametrize("value", [HALF, {HALF: 1}, float("nan"), {1, 2}, object, b"bytes", circular()], ids=repr)
async def test_a_hook_that_writes_what_cannot_be_stored_fails_and_nothing_of_it_stays(write: str, value: Any) -> None:
    class Writes(Hook):
        name, on_failure = "writes", "open"

        async def before_step(self, state: AgentState) -> AgentState:
            return getattr(state, write)("key", value)  # type: ignore[no-any-return]

    events = Events()
    final = await Agent(model=SaysInTurn(says("hi")), hooks=(Writes(),)).run(state(), events)
    assert "key" not in final.metadata | final.notes
    assert final.messages[-1].content == "hi"
    (failed,) = events.of("hook_failed")
    assert "is not JSON" in str(failed["error"])
    final.model_dump_json()


def test_a_field_that_the_step_in_flight_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="respones"):
        state().with_current(respones=None)


async def test_a_cancelled_run_leaves_a_state_that_can_be_stored_too() -> None:
    class Stops(Hook):
        async def after_inference(self, state: AgentState) -> AgentState:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)
            return state

    keeps = Keeps()
    with pytest.raises(asyncio.CancelledError):
        await Agent(model=SaysInTurn(says("hi", call("t"))), hooks=(Stops(), keeps)).run(state())
    last = AgentState.model_validate_json(keeps.stored[-1])
    assert last.stop is not None
    assert last.stop.rule == "cancelled"


@given(st.text(st.characters(categories=None)))
def test_any_text_becomes_storable_and_good_text_stays_as_it_is(text: str) -> None:
    kept = storable_text(text)
    kept.encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert kept is text


def test_a_message_that_can_be_stored_is_kept_as_it_is() -> None:
    message = Message(role="assistant", content="hi", tool_calls=(call("t", path="é", n=[1.5, None]),))
    assert storable_message(message) is message
