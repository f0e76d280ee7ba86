"""Spans around inference and tools, and a recorder that cannot break the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast

import pytest

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.tracing import Attribute, RecordedSpan, Recorder, Span, tracing
from agent.errors import ModelRefused, ModelUnavailable
from agent.hooks.hook import Hook
from agent.messages import ToolResult, Usage
from agent.state import AgentState, ToolExecution
from agent.tools.tool import Capability
from tests.unit.agent.fakes import Events, ListRecorder, SaysInTurn, allowing, call, done, says, state, tool


async def no_sleep(_: float) -> None:
    """Backoff without waiting."""


async def fails(*_: object) -> ToolResult:
    return ToolResult.error("no such thing", outcome="timed_out")


async def long(*_: object) -> ToolResult:
    return ToolResult("é".encode() * 100_000)


TOOLS = Capability("tools", tools=(tool("t", done), tool("bad", fails), tool("long", long)))


async def run(recorder: Recorder | None, model: SaysInTurn, *hooks: Hook) -> tuple[AgentState, Events]:
    events = Events()
    agent = Agent(
        model=model,
        capabilities=(TOOLS, flow(sleep=no_sleep), tracing(recorder)),
        hooks=(*hooks, allowing()),
    )
    return await agent.run(state(), events), events


async def test_without_a_recorder_there_is_no_hook_at_all() -> None:
    assert tracing() == Capability("tracing")


async def test_an_inference_is_a_span_with_counts_lengths_names_and_usage() -> None:
    recorder = ListRecorder()
    await run(recorder, SaysInTurn(says("x" * 900, call("t"), call("bad"), output_tokens=7), says("done")))
    chats = [span for span in recorder.spans if span.name == "chat"]
    assert chats[0].attributes == {
        "message_count": 1,
        "content_length_chars": 900,
        "content": "x" * 500,
        "tool_call_count": 2,
        "tool_call_names": ("t", "bad"),
        "finish_reason": "tool_calls",
        **Usage(input_tokens=1, output_tokens=7).model_dump(),
    }
    assert (chats[1].attributes["message_count"], chats[1].attributes["content"]) == (4, "done")


async def test_a_tool_call_is_a_span_with_arguments_output_and_outcome() -> None:
    recorder = ListRecorder()
    calls = says("", call("t", path="y" * 900), call("bad"), call("long"))
    final, _ = await run(recorder, SaysInTurn(calls, says("done")))
    spans = {span.attributes["tool_name"]: span for span in recorder.spans if span.name == "execute_tool"}
    assert spans["t"].attributes == {
        "tool_name": "t",
        "tool_call_id": final.messages[1].tool_calls[0].id,
        "arguments": '{"path":"' + "y" * 491,
        "output_length_bytes": 4,
        "output": "done",
        "outcome": "completed",
    }
    assert spans["bad"].attributes["outcome"] == "timed_out"
    assert spans["bad"].attributes["error"] == "no such thing"
    assert (spans["long"].attributes["output_length_bytes"], spans["long"].attributes["output"]) == (200_000, "é" * 500)


async def test_the_span_is_around_all_attempts_and_says_how_they_ended() -> None:
    recorder = ListRecorder()
    await run(recorder, SaysInTurn(ModelUnavailable("away"), says("back")))
    assert [span.attributes.get("content") for span in recorder.spans] == ["back"]
    recorder = ListRecorder()
    await run(recorder, SaysInTurn(ModelRefused("bad key")))
    (span,) = recorder.spans
    assert span.attributes == {"message_count": 1, "error": "bad key"}
    assert span.duration_s is not None


async def test_a_span_ends_when_the_run_is_cancelled_within_it() -> None:
    recorder, waiting = ListRecorder(), asyncio.Event()

    async def hangs(*_: object) -> ToolResult:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    hanging = Capability("hanging", tools=(tool("hang", hangs),))
    agent = Agent(model=SaysInTurn(says("", call("hang"))), capabilities=(hanging, tracing(recorder)))
    task = asyncio.ensure_future(agent.run(state()))
    async with asyncio.timeout(5):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    span = recorder.spans[-1]
    assert (span.name, span.attributes["error"]) == ("execute_tool", "CancelledError")
    assert span.duration_s is not None


async def test_the_rings_are_outside_of_all_others() -> None:
    class Replaces(Hook):
        priority = 1000

        async def around_tool_use(self, tool: ToolExecution, next_: Any) -> ToolResult:
            await next_(tool)
            return ToolResult(b"replaced")

    recorder = ListRecorder()
    await run(recorder, SaysInTurn(says("", call("t")), says("done")), Replaces())
    assert recorder.spans[1].attributes["output"] == "replaced"


async def test_the_time_of_a_span_is_what_passed_within_it() -> None:
    times = iter([10.0, 12.5])
    recorder = ListRecorder(clock=lambda: next(times))
    await run(recorder, SaysInTurn(says("done")))
    assert [span.duration_s for span in recorder.spans] == [2.5]


class Broken:
    """A recorder that fails in one place."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.failed = 0

    def at(self, where: str) -> None:
        if where == self.where:
            self.failed += 1
            raise RuntimeError(f"the recorder is broken at {where}")

    def span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        self.at("span")
        return self.context()

    @contextmanager
    def context(self) -> Iterator[Span]:
        self.at("enter")
        try:
            yield cast(Span, self)
        finally:
            self.at("exit")

    def set(self, **attributes: Attribute) -> None:
        self.at("set")


@pytest.mark.parametrize("where", ["span", "enter", "set", "exit"])
async def test_a_recorder_that_fails_breaks_nothing_and_nothing_happens_twice(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, model = Broken(where), SaysInTurn(says("", call("t")), says("done"))
    final, events = await run(recorder, model)
    assert recorder.failed == 3
    assert events[-1].payload["answer"] == "done"
    assert (len(model.requests), final.tool_calls) == (2, 1)
    assert events.of("hook_failed") == []
    assert f"the recorder is broken at {where}" in caplog.text


@pytest.mark.parametrize("where", ["span", "enter", "set", "exit"])
async def test_a_recorder_that_fails_hides_no_error_of_the_model(where: str) -> None:
    final, _ = await run(Broken(where), SaysInTurn(ModelRefused("bad key")))
    assert final.stop is not None
    assert final.stop.reason == "bad key"


@pytest.mark.parametrize("given", [lambda *_: None, lambda *_: 7])
async def test_a_recorder_that_gives_no_span_breaks_nothing(given: Callable[..., Any]) -> None:
    class Odd:
        span = given

    _, events = await run(cast(Recorder, Odd()), SaysInTurn(says("done")))
    assert events[-1].payload["answer"] == "done"


async def test_a_recorder_cannot_swallow_an_error() -> None:
    class Swallows:
        @contextmanager
        def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[Span]:
            with suppress(ModelRefused):
                yield RecordedSpan(name)

    final, _ = await run(Swallows(), SaysInTurn(ModelRefused("bad key")))
    assert final.stop is not None
    assert final.stop.reason == "bad key"
