"""Attempts that failed are counted."""

from __future__ import annotations

import asyncio

import pytest

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelNonsense, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, Usage
from agent.models.metered_model import MeteredModel
from agent.models.model import OnDelta, no_deltas
from agent.state import ModelResponse
from tests.unit.agent.fakes import Events, says, state

REQUEST = InferenceRequest("", (Message(role="user", content="x" * 400),), ())
PAID = Usage(input_tokens=7, output_tokens=8, cost_usd=0.5)


def estimated(received: int) -> Usage:
    """Return the estimate for REQUEST and so many tokens of an answer."""
    return Usage(input_tokens=100, output_tokens=received, estimated_tokens=100 + received)


def failing(error: BaseException, usage: Usage | None = None) -> BaseException:
    if usage is not None:
        error.usage = usage  # type: ignore[attr-defined]
    return error


class Writes:
    """A model that writes a text, and then answers or fails, in turn."""

    name = "writes"

    def __init__(self, text: str, *ends: ModelResponse | BaseException) -> None:
        self.text = text
        self.ends = list(ends)
        self.asked = 0

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.asked += 1
        on_delta(self.text)
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, BaseException):
            raise end
        return end


@pytest.mark.parametrize(
    "error, text, counted",
    [
        (failing(ModelUnavailable("dropped"), PAID), "x" * 400, PAID),
        (ModelNonsense("nothing came"), "", Usage()),
        (ModelNonsense("an answer without end"), "x" * 401, estimated(101)),
        (ZeroDivisionError(), "x" * 400, estimated(100)),
        (asyncio.CancelledError(), "x" * 400, estimated(100)),
    ],
)
async def test_an_attempt_that_failed_used_what_its_error_says_or_what_was_heard(
    error: BaseException, text: str, counted: Usage
) -> None:
    metered = MeteredModel(Writes(text, error, error, says("yes")))
    for _ in range(2):
        with pytest.raises(type(error)):
            await metered.infer(REQUEST, no_deltas)
    twice = counted + counted
    assert metered.usage == twice
    await metered.infer(REQUEST, no_deltas)
    assert metered.usage == twice + says("yes").usage


async def test_reasoning_that_is_not_shown_counts_too() -> None:
    class Reasons(Writes):
        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            on_delta("x" * 400, reasoning=True, shown=False)
            return await super().infer(request, on_delta)

    metered = MeteredModel(Reasons("", asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await metered.infer(REQUEST, no_deltas)
    assert metered.usage == estimated(100)


async def no_sleep(_: float) -> None: ...


async def test_a_run_pays_for_the_attempts_that_its_retries_forget() -> None:
    model = Writes("", failing(ModelUnavailable("dropped"), PAID), failing(ModelNonsense("odd"), PAID), says("yes"))
    events = Events()
    final = await Agent(model=model, capabilities=(flow(sleep=no_sleep),)).run(state(), events)
    assert final.messages[-1].content == "yes"
    assert final.usage == PAID + PAID + says("yes").usage
    assert events.of("model_finished")[0]["usage"] == says("yes").usage.model_dump()


async def test_a_model_that_writes_without_end_and_never_answers_is_stopped_by_the_token_limit() -> None:
    model = Writes("x" * 4_000, ModelNonsense("an answer without end"))
    patient = flow(sleep=no_sleep, on_model_error="continue")
    final = await Agent(model=model, capabilities=(patient, limits(output_tokens=3_000))).run(state())
    assert final.stop is not None
    assert final.stop.rule == "max_output_tokens"
    assert model.asked == 3
