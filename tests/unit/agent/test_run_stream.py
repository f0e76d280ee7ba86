"""A run as a stream: its reader may be slow, gone or broken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.agent import Agent, RunStream, stream
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.events import PIECES, Event, merged
from agent.hooks.hook import InferenceRequest
from agent.loop import Host
from agent.messages import Message, ToolResult
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse
from agent.tools.tool import Capability, ToolContext
from tests.unit.agent.fakes import Events, SaysInTurn, call, done, says, state, tool


def agent(model: Any, *tools: Any) -> Agent:
    return Agent(
        model=model,
        capabilities=(limits(steps=10**6, tool_calls=10**6), flow(), Capability("tools", tools=tools)),
        host=Host(new_call_id=iter(f"call_{n}" for n in range(10**6)).__next__),
    )


def two_steps() -> SaysInTurn:
    return SaysInTurn(says("looking", call("t"), call("t")), says("all is well"))


async def prints(asked: Any, context: ToolContext) -> ToolResult:
    assert context.on_output is not None
    context.on_output("stdout", b"some output")
    return ToolResult(b"done")


class Streams:
    """A model that says many long pieces, and lets others work between them."""

    name = "streams"

    def __init__(self, pieces: int, piece: str = "x" * 4096) -> None:
        self.pieces, self.piece = pieces, piece

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        for _ in range(self.pieces):
            on_delta(self.piece)
            await asyncio.sleep(0)
        return says(self.piece * self.pieces)


class Waits:
    """A model that waits until the test releases it."""

    name = "waits"

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.asked.set()
        await self.go_on.wait()
        return says("at last")


def without_times(event: Event) -> tuple[str, dict[str, object]]:
    return event.type, {key: value for key, value in event.payload.items() if not key.endswith("_ms")}


async def read(run: RunStream) -> list[Event]:
    return [event async for event in run]


async def test_the_events_and_the_final_state_are_those_of_a_plain_run() -> None:
    sink = Events()
    plain = await agent(two_steps(), tool("t", prints)).run(state(), sink)
    async with stream(agent(two_steps(), tool("t", prints)), state()) as run:
        events = await read(run)
        final = await run.state()
    kept, expected = ([without_times(e) for e in seen if e.type not in PIECES] for seen in (events, sink))
    assert kept == expected
    assert (final.messages, final.stop, final.usage) == (plain.messages, plain.stop, plain.usage)


async def test_an_event_is_there_as_soon_as_it_happened() -> None:
    model = Waits()
    async with stream(agent(model), state()) as run:
        first, second = await anext(run), await anext(run)
        assert (first.type, second.type) == ("run_started", "step_started")
        assert not model.go_on.is_set()
        model.go_on.set()
        assert [event.type for event in await read(run)][-1] == "run_finished"


async def test_a_reader_that_comes_when_all_is_over_finds_everything_and_pieces_joined() -> None:
    async with stream(agent(Streams(200, "0123456789" * 410)), state()) as run:
        await run.state()
        events = await read(run)
        assert await read(run) == []
    deltas = [event.payload["text"] for event in events if event.type == "model_delta"]
    assert 1 < len(deltas) < 200
    assert all(len(str(text)) <= 16_384 for text in deltas)
    whole = next(event.payload["text"] for event in events if event.type == "model_finished")
    shown = "".join(str(text) for text in deltas)
    assert str(whole).startswith(shown[:200_000])
    assert [event.type for event in events if event.type not in PIECES] == [
        "run_started",
        "step_started",
        "model_finished",
        "step_finished",
        "run_finished",
    ]


async def test_a_slow_reader_loses_no_event_but_pieces_and_sees_them_in_order() -> None:
    steps = 40
    sink = Events()
    said = [says(f"step {n}", call("t", n=n)) for n in range(steps)]
    await agent(SaysInTurn(*said, says("end")), tool("t", prints)).run(state(), sink)
    events = []
    async with stream(agent(SaysInTurn(*said, says("end")), tool("t", prints)), state()) as run:
        async for event in run:
            events.append(event)
            for _ in range(20):
                await asyncio.sleep(0)
    kept, expected = ([without_times(e) for e in seen if e.type not in PIECES] for seen in (events, sink))
    assert kept == expected


async def test_past_a_thousand_waiting_events_pieces_are_dropped_and_nothing_else() -> None:
    steps = 400
    said = [says(f"step {n}", call("t", n=n)) for n in range(steps)]
    async with stream(agent(SaysInTurn(*said, says("end")), tool("t", prints)), state()) as run:
        final = await run.state()
        events = await read(run)
    assert final.steps == steps + 1
    types = [event.type for event in events]
    assert types.count("model_finished") == types.count("step_finished") == steps + 1
    assert types.count("tool_call_finished") == steps
    assert types.count("tool_output") < steps
    first_thousand, later = types[:1000], types[1000:]
    assert PIECES & set(first_thousand)
    assert not PIECES & set(later)


async def test_a_reader_that_leaves_stops_nothing_and_the_context_waits_for_the_end() -> None:
    ran = []

    async def notes(asked: Any, context: ToolContext) -> ToolResult:
        await asyncio.sleep(0)
        ran.append(context.call_id)
        return ToolResult(b"")

    async with stream(agent(two_steps(), tool("t", notes)), state()) as run:
        async for _ in run:
            break
        assert ran == []
    assert len(ran) == 2
    assert (await run.state()).steps == 2


async def test_a_reader_that_fails_gets_its_error_and_the_run_its_end() -> None:
    async def fails(run: RunStream) -> None:
        async for _ in run:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with stream(agent(two_steps(), tool("t", done)), state()) as run:
            await fails(run)
    final = await run.state()
    assert final.stop is not None
    assert final.stop.hook == "finish_reason"


async def test_cancel_ends_the_run_and_its_last_events_and_state_still_come() -> None:
    model = Waits()
    async with stream(agent(model), state()) as run:
        await model.asked.wait()
        run.cancel()
        run.cancel()
        events = await read(run)
        final = await run.state()
    assert (events[-1].type, events[-1].payload["status"]) == ("run_finished", "cancelled")
    assert final.stop is not None
    assert final.stop.rule == "cancelled"


async def test_a_run_cancelled_before_it_began_reports_its_end_too() -> None:
    model = SaysInTurn(says("hi"))
    async with stream(agent(model), state()) as run:
        run.cancel()
        events = await read(run)
    assert [event.type for event in events] == ["run_started", "run_finished"]
    assert events[-1].payload["status"] == "cancelled"
    assert model.requests == []


async def test_cancelling_the_task_inside_the_context_ends_the_run_first() -> None:
    model = Waits()
    streams = []

    async def use() -> None:
        async with stream(agent(model), state()) as run:
            streams.append(run)
            async for _ in run:
                pass

    task = asyncio.ensure_future(use())
    await model.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
    final = await streams[0].state()
    assert final.stop is not None
    assert final.stop.rule == "cancelled"


async def test_cancelling_the_task_that_waits_in_leaving_ends_the_run_too() -> None:
    model = Waits()

    async def use() -> None:
        async with stream(agent(model), state()):
            pass

    task = asyncio.ensure_future(use())
    await model.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_giving_up_waiting_for_the_state_does_not_stop_the_run() -> None:
    model = Waits()
    async with stream(agent(model), state()) as run:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await run.state()
        model.go_on.set()
        final = await run.state()
    assert final.messages[-1].content == "at last"


async def test_a_stream_runs_once_and_only_inside_its_context() -> None:
    run = stream(agent(two_steps(), tool("t", done)), state())
    with pytest.raises(RuntimeError, match="async with"):
        await run.state()
    async with run:
        pass
    with pytest.raises(RuntimeError, match="has been started"):
        await run.__aenter__()


@pytest.mark.parametrize(
    "later, joined",
    [
        (Event("tool_output", {"call_id": "a", "stream": "stdout", "text": "2"}), "12"),
        (Event("tool_output", {"call_id": "b", "stream": "stdout", "text": "2"}), None),
        (Event("tool_output", {"call_id": "a", "stream": "stderr", "text": "2"}), None),
        (Event("tool_output", {"call_id": "a", "stream": "stdout", "text": "2", "within": "w"}), None),
        (Event("tool_output", {"call_id": "a", "stream": "stdout", "text": "2" * 16_384}), None),
        (Event("model_delta", {"call_id": "a", "stream": "stdout", "text": "2"}), None),
    ],
)
def test_pieces_are_joined_only_when_they_are_of_one_text(later: Event, joined: str | None) -> None:
    earlier = Event("tool_output", {"call_id": "a", "stream": "stdout", "text": "1"})
    both = merged(earlier, later)
    assert (both and both.payload["text"]) == joined
    assert earlier.payload["text"] == "1"


def test_reasoning_is_joined_with_reasoning_alone() -> None:
    thought = Event("reasoning_delta", {"text": "a"})
    both = merged(thought, thought)
    assert both == Event("reasoning_delta", {"text": "aa"})
    assert merged(thought, Event("model_delta", {"text": "a"})) is None
    assert merged(Event("model_delta", {"text": "a"}), thought) is None


def test_events_that_are_no_pieces_are_never_joined() -> None:
    event = Event("hook_failed", {"text": "the same"})
    assert merged(event, event) is None


async def test_a_message_said_before_is_part_of_the_state_that_comes_back() -> None:
    given = AgentState(run_id="r", thread="t", messages=(Message(role="user", content="hello"),))
    async with stream(agent(SaysInTurn(says("hi"))), given) as run:
        final = await run.state()
    assert [message.content for message in final.messages] == ["hello", "hi"]
