"""Cancelling a run: wherever it is, whatever stands in the way, its end is reported once and its record is whole."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.agent import Agent
from agent.cancellation import Cancellation, to_the_end
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelUnavailable
from agent.events import Event
from agent.hooks.engine import POINTS
from agent.hooks.hook import Hook, InferenceRequest, NextInference, NextToolUse
from agent.loop import Run
from agent.messages import ToolResult
from agent.models.model import OnDelta
from agent.state import AgentState, CurrentExecution, ModelResponse, ToolExecution
from agent.tools.tool import Capability, ToolContext
from tests.unit.agent.fakes import Events, SaysInTurn, call, says, state, tool

RINGS = ("around_inference", "around_tool_use")
PLACES = (
    *POINTS,
    *(f"{ring}, {when}" for ring in RINGS for when in ("going in", "coming out")),
    "model",
    "model, asked again",
    "tool",
    "one of three tools",
)
# What is under way there is brought to its end first, so that each call and the run itself are accounted for.
FINISHED_FIRST = ("after_tool_use", "execution_end")

Pause = Callable[[str], Awaitable[None]]


async def pass_on(place: str) -> None:
    """A pause that is none."""


class Pauses(Hook):
    """Pauses at every point and in every ring, on the way in and on the way out."""

    name = "pauses"

    def __init__(self, pause: Pause) -> None:
        self.pause = pause

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        await self.pause("around_inference, going in")
        response = await next_(request)
        await self.pause("around_inference, coming out")
        return response

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        await self.pause("around_tool_use, going in")
        result = await next_(tool)
        await self.pause("around_tool_use, coming out")
        return result


class Accounts(Hook):
    """Keeps what must be accounted for, at the very end of the order."""

    mandatory = True

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.finished: list[str] = []
        self.ends: list[AgentState] = []

    async def after_tool_use(self, state: AgentState) -> AgentState:
        self.finished.append(state.current.tool.call.id)
        return state.with_metadata("finished", list(self.finished))

    async def execution_end(self, state: AgentState) -> AgentState:
        self.ends.append(state)
        return state


def _pausing(point: str) -> Any:
    async def at(self: Pauses, given: AgentState) -> AgentState:
        await self.pause(point)
        return given

    return at


for _point in POINTS:
    setattr(Pauses, _point, _pausing(_point))


class Model:
    """Fails once, calls one tool, then three at once, then answers."""

    name = "model"

    def __init__(self, pause: Pause, *, three: bool) -> None:
        self.pause, self.asked, self.three = pause, 0, three

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.asked += 1
        await self.pause("model" if self.asked == 1 else "model, asked again")
        if self.asked == 1:
            raise ModelUnavailable("away for a moment")
        calls = 0 if self.asked > 2 else 3 if self.three else 1
        on_delta("thinking")
        return says(f"answer {self.asked}", *(call("t", n=n) for n in range(calls)))


class Scene:
    """A run with everything in it, and who watches it."""

    def __init__(self, pause: Pause = pass_on, sink: Callable[[Event], None] | None = None, *, three: bool) -> None:
        self.events = Events()
        self.inner, self.outer = Accounts(-9), Accounts(9)
        self.model = Model(pause, three=three)

        async def work(asked: Any, context: ToolContext) -> ToolResult:
            await pause("one of three tools" if three and asked.n == 1 else "tool")
            return ToolResult(b"done")

        agent = Agent(
            model=self.model,
            capabilities=(
                flow(retries=0, on_model_error="continue"),
                limits(),
                Capability("tools", tools=(tool("t", work),)),
            ),
            hooks=(self.inner, Pauses(pause), self.outer),
        )

        def both(event: Event) -> None:
            self.events(event)
            if sink is not None:
                sink(event)

        self.run = Run(agent, state(), both)

    def begun(self) -> tuple[int, int, int]:
        """Return how much was begun: steps, questions to the model, tool calls."""
        steps, calls = (len(self.events.of(type_)) for type_ in ("step_started", "tool_call_started"))
        return steps, self.model.asked, calls

    def check(self, status: str = "cancelled") -> None:
        """Check all that must hold, however the run ended."""
        types = [event.type for event in self.events]
        assert types.count("run_finished") == 1
        assert types[-1] == "run_finished"
        assert self.events[-1].payload["status"] == status
        started, finished = (self.events.of(f"tool_call_{what}") for what in ("started", "finished"))
        ids = [payload["call_id"] for payload in started]
        assert [payload["call_id"] for payload in finished] == ids
        assert self.inner.finished == self.outer.finished == ids
        assert types.count("step_started") == types.count("step_finished")
        assert len(self.inner.ends) == len(self.outer.ends) == 1
        assert self.inner.ends[0].current == CurrentExecution()  # the first one: a failure after it is reported there
        assert self.run.state.current == CurrentExecution()
        assert self.run.state.stop is not None
        if status == "cancelled":
            assert self.run.state.stop.rule == "cancelled"
        assert self.run.state.metadata.get("finished", []) == ids
        assert self.run.state.tool_calls == len(ids)
        well_formed(self.run.state)
        assert asyncio.all_tasks() == {asyncio.current_task()}


def well_formed(final: AgentState) -> None:
    """Check that each tool call is answered once, in order, right after it was asked."""
    open_calls: list[str | None] = []
    for message in final.messages:
        if message.role == "tool":
            assert message.tool_call_id == open_calls.pop(0)
        else:
            assert open_calls == []
            open_calls = [asked.id for asked in message.tool_calls]
    assert open_calls == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize("place", PLACES)
async def test_cancelling_there_ends_the_run_with_everything_accounted_for(place: str) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def pause(here: str) -> None:
        if here == place:
            inside.set()
            await gate.wait()

    scene = Scene(pause, three="three" in place)
    task = asyncio.create_task(scene.run.run())
    await inside.wait()
    before = scene.begun()
    task.cancel()
    if place in FINISHED_FIRST:
        gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    scene.check()
    assert scene.begun() == before


@pytest.mark.parametrize("place", [place for place in PLACES if place not in FINISHED_FIRST])
async def test_who_swallows_the_cancellation_does_not_keep_the_run_alive(place: str) -> None:
    inside = asyncio.Event()
    swallowed: list[str] = []

    async def pause(here: str) -> None:
        if here == place and not swallowed:
            inside.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(here)

    scene = Scene(pause, three="three" in place)
    task = asyncio.create_task(scene.run.run())
    await inside.wait()
    before = scene.begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert swallowed == [place]
    scene.check()
    assert scene.begun() == before


@pytest.mark.parametrize("place", [place for place in PLACES if place not in FINISHED_FIRST])
async def test_who_answers_the_cancellation_with_an_error_does_not_keep_the_run_alive(place: str) -> None:
    inside = asyncio.Event()

    async def pause(here: str) -> None:
        if here == place:
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise RuntimeError("not now")

    scene = Scene(pause, three="three" in place)
    task = asyncio.create_task(scene.run.run())
    await inside.wait()
    before = scene.begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    scene.check()
    assert scene.begun() == before


@pytest.mark.parametrize("three", [False, True])
async def test_cancelling_from_the_sink_at_any_event_ends_the_run_well(three: bool) -> None:
    # A sink is called while the run itself works: the cancellation is delivered at its next wait, wherever that is.
    async def pause(here: str) -> None:
        await asyncio.sleep(0)

    for number in itertools.count():
        countdown = itertools.count()
        task: asyncio.Task[AgentState] | None = None

        def cancel(event: Event) -> None:
            if next(countdown) == number and task is not None:  # noqa: B023 - used up within this round
                task.cancel()  # noqa: B023

        scene = Scene(pause, cancel, three=three)
        task = asyncio.create_task(scene.run.run())
        await asyncio.wait({task})
        if not task.cancelled():
            assert number >= len(scene.events)
            scene.check("completed")
            break
        if scene.events[-1].type == "run_finished" and number == len(scene.events) - 1:
            continue  # all was over; nothing was left to end
        scene.check()
    assert number > 15


@pytest.mark.parametrize("three", [False, True])
async def test_cancelling_after_any_number_of_turns_of_the_event_loop_ends_the_run_well(three: bool) -> None:
    async def pause(here: str) -> None:
        await asyncio.sleep(0)

    for turns in itertools.count(1):
        scene = Scene(pause, three=three)
        task = asyncio.create_task(scene.run.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            scene.check("completed")
            break
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        scene.check()
    assert turns > 30


async def test_a_run_that_never_waits_for_anything_can_be_cancelled_between_steps() -> None:
    scene = Scene(three=False)
    task = asyncio.create_task(scene.run.run())
    await until(lambda: len(scene.events.of("step_finished")) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    scene.check()
    assert len(scene.events.of("step_started")) == 1


async def test_results_that_were_there_when_the_run_was_cancelled_stay_in_the_thread() -> None:
    inside = asyncio.Event()

    async def pause(here: str) -> None:
        if here == "one of three tools":
            inside.set()
            await asyncio.Event().wait()

    scene = Scene(pause, three=True)
    task = asyncio.create_task(scene.run.run())
    await inside.wait()
    for _ in range(5):  # the two others are done without waiting
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    answers = [message.content for message in scene.run.state.messages if message.role == "tool"]
    assert answers == ["done", "the call was cancelled", "done"]


@pytest.mark.parametrize("place", PLACES)
async def test_something_cancelled_elsewhere_is_a_failure_there_and_never_the_end_of_the_process_or_run(
    place: str,
) -> None:
    struck: list[str] = []

    async def pause(here: str) -> None:
        if here == place and not struck:
            struck.append(here)
            await cancelled_elsewhere()

    scene = Scene(pause, three="three" in place)
    final = await scene.run.run()
    assert struck == [place]
    assert final.stop is not None
    assert final.stop.rule != "cancelled"
    scene.check(str(scene.events[-1].payload["status"]))
    assert scene.events[-1].payload["status"] in ("completed", "failed")


async def test_a_model_that_answers_a_cancellation_with_a_model_error_is_not_asked_again() -> None:
    inside, asked = asyncio.Event(), []

    class Refuses:
        name = "refuses"

        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            asked.append(1)
            inside.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ModelUnavailable("the connection was closed") from None
            raise AssertionError

    task = asyncio.create_task(Agent(model=Refuses(), capabilities=(flow(backoff_s=0.0),)).run(state()))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked == [1]


def cancelled_elsewhere() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_tool_that_waited_for_something_cancelled_has_a_cancelled_result(calls: int) -> None:
    async def waits(asked: Any, context: ToolContext) -> ToolResult:
        await cancelled_elsewhere()
        raise AssertionError

    events = Events()
    model = Model(pass_on, three=calls == 3)
    agent = Agent(model=model, capabilities=(flow(backoff_s=0.0), Capability("tools", tools=(tool("t", waits),))))
    final = await agent.run(state(), events)
    assert [payload["outcome"] for payload in events.of("tool_call_finished")] == ["cancelled"] * calls
    assert final.messages[-1].content == "answer 3"


async def test_a_model_that_waited_for_something_cancelled_is_asked_again() -> None:
    asked = []

    async def pause(_: str) -> None:
        asked.append(1)
        if len(asked) == 3:
            await cancelled_elsewhere()

    final = await Agent(model=Model(pause, three=False), capabilities=(flow(backoff_s=0.0),)).run(state())
    assert len(asked) == 4
    assert final.messages[-1].content == "answer 4"


async def test_a_tool_that_swallows_the_cancellation_of_the_last_step_does_not_make_it_a_usual_end() -> None:
    inside = asyncio.Event()

    class Enough(Hook):
        async def after_step(self, state: AgentState) -> AgentState:
            return state.forbid_continuation("enough", "one_step", "one step is enough")

    async def swallows(asked: Any, context: ToolContext) -> ToolResult:
        inside.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ToolResult(b"half")

    events = Events()
    agent = Agent(
        model=SaysInTurn(says("", call("t"))),
        capabilities=(Capability("tools", tools=(tool("t", swallows),)),),
        hooks=(Enough(),),
    )
    task = asyncio.create_task(agent.run(state(), events))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events[-1].payload["status"] == "cancelled"
    assert events.of("tool_call_finished")[0]["content"] == "half"


async def test_a_second_cancellation_ends_the_hooks_of_the_end_as_well() -> None:
    inside = asyncio.Event()

    async def pause(here: str) -> None:
        if here == "execution_end":
            inside.set()
            await asyncio.Event().wait()

    scene = Scene(pause, three=False)
    task = asyncio.create_task(scene.run.run())
    await inside.wait()
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.type for event in scene.events].count("run_finished") == 1
    assert scene.events[-1].payload["status"] == "cancelled"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_run_inside_a_task_that_was_cancelled_before_is_not_cancelled_again() -> None:
    async def cleans_up() -> AgentState:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await Scene(three=False).run.run()
        raise AssertionError

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    final = await task
    assert final.stop is not None
    assert final.stop.hook == "finish_reason"


async def test_work_brought_to_its_end_raises_its_own_error_only_when_not_cancelled() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await to_the_end(fails())
    task = asyncio.create_task(to_the_end(fails()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_still_to_be_delivered_is_raised_where_watching_begins() -> None:
    async def cancels_itself() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await Cancellation.watch()
        raise AssertionError

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancels_itself())
