"""A request that waits for its turn: an event says so, and the wait is not the model's time."""

from __future__ import annotations

from contextlib import nullcontext

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.errors import ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest, NextInference
from agent.loop import Host
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse
from tests.unit.agent.fakes import Events, says, state


class Clock:
    """A clock that only waits and work move."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Queued:
    """Waits before each request, if anybody listens or not, and then works."""

    name = "queued"

    def __init__(self, clock: Clock, *waits_s: float, fail: int = 0) -> None:
        self.waits_s = list(waits_s)
        self.fail = fail
        self.clock = clock

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        wait_s = self.waits_s.pop(0)
        with request.progress.waiting("2 are under way") if wait_s else nullcontext():
            self.clock.now_s += wait_s
        self.clock.now_s += 1
        if self.fail:
            self.fail -= 1
            raise ModelUnavailable("away")
        return says("done")


async def run(model: Queued, *hooks: Hook) -> tuple[AgentState, Events]:
    events = Events()
    agent = Agent(model=model, capabilities=(flow(backoff_s=0),), hooks=hooks, host=Host(clock=model.clock))
    return await agent.run(state(), events), events


async def test_a_wait_is_an_event_and_a_time_of_its_own() -> None:
    final, events = await run(Queued(Clock(), 36.0))
    assert events.of("model_waiting") == [{"step": 1, "reason": "2 are under way"}]
    assert (final.model_s, final.model_wait_s, final.hooks_s, final.active_s) == (1, 36, 0, 37)
    for type_ in ("step_finished", "run_finished"):
        (reported,) = events.of(type_)
        assert (reported["model_ms"], reported["model_wait_ms"], reported["hooks_ms"]) == (1000, 36_000, 0)
    (answered,) = events.of("model_finished")
    assert answered["duration_ms"] == 1000
    kinds = [event.type for event in events]
    assert kinds.index("step_started") < kinds.index("model_waiting") < kinds.index("model_finished")


async def test_the_waits_of_each_attempt_are_counted() -> None:
    final, events = await run(Queued(Clock(), 5.0, 0.0, 7.0, fail=2))
    assert len(events.of("model_waiting")) == 2
    assert (final.model_s, final.model_wait_s, final.hooks_s) == (3, 12, 0)


async def test_a_model_that_is_free_is_not_waited_for() -> None:
    final, events = await run(Queued(Clock(), 0.0))
    assert events.of("model_waiting") == []
    assert (final.model_s, final.model_wait_s) == (1, 0)


async def test_a_ring_and_a_hook_cannot_change_the_time_of_a_wait() -> None:
    class Slow(Hook):
        name = "slow"

        async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
            clock.now_s += 2
            return await next_(request)

        async def after_step(self, state: AgentState) -> AgentState:
            return state.with_(model_wait_s=99.0).with_current(model_wait_s=99.0)

    clock = Clock()
    final, _ = await run(Queued(clock, 4.0), Slow())
    assert (final.model_s, final.model_wait_s, final.hooks_s) == (1, 4, 2)
