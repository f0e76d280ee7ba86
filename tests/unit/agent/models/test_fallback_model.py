"""Several models in order, in a run: who is asked, what is charged, and what the events say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.errors import ModelError, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.loop import Host
from agent.messages import Message, Usage
from agent.models.fallback_model import FallbackModel
from agent.models.metered_model import MeteredModel
from agent.models.model import OnDelta, no_deltas
from agent.state import AgentState, ModelResponse
from tests.unit.agent.fakes import Events

REQUEST = InferenceRequest("", (Message(role="user", content="hi"),), ())
SPENT = Usage(input_tokens=5, output_tokens=2)


class Named:
    """A model that fails as often as its list of errors says, and answers then."""

    def __init__(self, name: str, *errors: ModelError, says_first: str = "") -> None:
        self.name = name
        self.asked = 0
        self._errors = list(errors)
        self._says_first = says_first

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.asked += 1
        if self._errors:
            if self._says_first:
                on_delta(self._says_first)
            raise self._errors.pop(0)
        message = Message(role="assistant", content=f"{self.name} says hi")
        return ModelResponse(message=message, finish_reason="stop", usage=Usage(input_tokens=3), model=self.name)


def away(usage: Usage | None = None, retry_after_s: float | None = None) -> ModelUnavailable:
    error = ModelUnavailable("away", retry_after_s=retry_after_s)
    if usage is not None:
        error.usage = usage
    return error


def clock() -> tuple[list[float], Callable[[], float]]:
    now = [100.0]
    return now, lambda: now[0]


async def test_the_next_model_answers_and_rests_are_kept() -> None:
    now, at = clock()
    first, second = Named("first", away(), away(retry_after_s=100)), Named("second")
    model = FallbackModel([first, second], clock=at)
    assert model.name == "first"
    answers = []
    for elapsed_s in (0, 10, 25, 60, 60):
        now[0] += elapsed_s
        answers.append((await model.infer(REQUEST, no_deltas)).model)
    # It rests 30 s after the first failure, and 100 s after the second one, as it asks for.
    assert answers == ["second", "second", "second", "second", "first"]
    assert (first.asked, second.asked) == (3, 4)


async def test_if_all_rest_all_are_asked_and_the_last_error_is_raised() -> None:
    model = FallbackModel([Named("a", *[away()] * 9), Named("b", *[away(), away(), ModelUnavailable("b is away")])])
    for _ in range(2):
        with pytest.raises(ModelUnavailable, match=r"^away$"):
            await model.infer(REQUEST, no_deltas)
    with pytest.raises(ModelUnavailable, match="b is away"):
        await model.infer(REQUEST, no_deltas)
    assert (await model.infer(REQUEST, no_deltas)).model == "b"


@pytest.mark.parametrize("first, second, waits", [(2.0, 300.0, 2.0), (None, 300.0, None), (300.0, None, None)])
async def test_the_shortest_wait_that_a_model_asks_for_counts(
    first: float | None, second: float | None, waits: float | None
) -> None:
    models = [Named("a", away(retry_after_s=first)), Named("b", away(retry_after_s=second))]
    with pytest.raises(ModelUnavailable) as raised:
        await FallbackModel(models).infer(REQUEST, no_deltas)
    assert raised.value.retry_after_s == waits


async def test_a_refusal_asks_no_other_model() -> None:
    second = Named("second")
    with pytest.raises(ModelRefused):
        await FallbackModel([Named("first", ModelRefused("no")), second]).infer(REQUEST, no_deltas)
    assert second.asked == 0


async def test_what_a_failed_attempt_cost_is_counted_though_another_model_answers() -> None:
    metered = MeteredModel(FallbackModel([Named("first", away(SPENT)), Named("second")]))
    await metered.infer(REQUEST, no_deltas)
    assert metered.usage == SPENT + Usage(input_tokens=3)


async def test_a_run_says_that_a_charged_answer_broke_off_and_who_goes_on() -> None:
    events = Events()
    models = FallbackModel([Named("first", away(SPENT), says_first="I was"), Named("second")])
    final = await Agent(model=models, capabilities=[flow(retries=0)]).run(AgentState.start("hi"), events)
    assert final.answer == "second says hi"
    assert final.usage == SPENT + Usage(input_tokens=3)
    told = [event for event in events if event.type.startswith("model_")]
    assert [event.type for event in told] == ["model_delta", "model_failed", "model_finished"]
    failed, finished = told[1].payload, told[2].payload
    assert (failed["model"], failed["error"], failed["next_model"]) == ("first", "away", "second")
    assert failed["usage"] == SPENT.model_dump()
    assert finished["model"] == "second"


@pytest.mark.parametrize("says_first", ["", "I was"])
async def test_the_first_token_is_that_of_the_model_that_answers(says_first: str) -> None:
    now, at = clock()

    class Slow(Named):
        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            now[0] += 30
            try:
                return await super().infer(request, on_delta)
            finally:
                now[0] += 2
                on_delta("" if self.name == "first" else "second says hi")

    events = Events()
    models = FallbackModel([Slow("first", away(), says_first=says_first), Slow("second")])
    await Agent(model=models, capabilities=[flow(retries=0)], host=Host(clock=at)).run(AgentState.start("hi"), events)
    (finished,) = events.of("model_finished")
    assert (finished["first_token_ms"], finished["duration_ms"]) == (32_000, 64_000)


async def test_the_last_models_failure_has_no_next() -> None:
    events = Events()
    models = FallbackModel([Named("first", away()), Named("second", away())])
    final = await Agent(model=models, capabilities=[flow(retries=0)]).run(AgentState.start("hi"), events)
    assert final.stop is not None
    failed = [(event.payload["model"], event.payload["next_model"]) for event in events if event.type == "model_failed"]
    assert failed == [("first", "second"), ("second", "")]


def test_an_order_without_models_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one model"):
        FallbackModel([])
