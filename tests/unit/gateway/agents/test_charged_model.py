"""Each request of a run is charged, however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from agent.errors import ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, Usage
from agent.models.metered_model import MeteredModel
from agent.models.model import OnDelta, no_deltas
from agent.models.prices import Prices
from agent.state import ModelResponse
from gateway.agents.charged_model import ChargedModel
from tests.unit.agent.fakes import says

REQUEST = InferenceRequest("", (Message(role="user", content="x" * 400),), (), agent="helper")
PAID = Usage(input_tokens=7, output_tokens=8, cost_usd=0.5)
PRICES = Prices(1_000_000.0, 2_000_000.0)


def estimated(received: int) -> Usage:
    """Return the estimate for REQUEST and so many tokens of an answer, with its cost."""
    cost_usd = 100.0 + 2 * received
    return Usage(input_tokens=100, output_tokens=received, estimated_tokens=100 + received, cost_usd=cost_usd)


@dataclass
class Bill:
    """Charges that remember, and their only attempt."""

    begun: list[tuple[str, str]] = field(default_factory=list)
    estimates: list[Usage] = field(default_factory=list)
    ended: list[Usage] = field(default_factory=list)
    firsts_s: list[float | None] = field(default_factory=list)

    async def begin(self, agent: str, model: str, estimate: Usage) -> Bill:
        self.begun.append((agent, model))
        self.grew(estimate)
        return self

    def grew(self, estimate: Usage) -> None:
        self.estimates.append(estimate)

    def end(self, usage: Usage, first_token_s: float | None) -> None:
        self.ended.append(usage)
        self.firsts_s.append(first_token_s)


class Clock:
    """A clock that a model moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Says:
    """A model that writes pieces of text, one each second, and then answers, fails or waits for ever."""

    pieces: tuple[str, ...]
    end: ModelResponse | BaseException | None
    clock: Clock = field(default_factory=Clock)
    name: str = "says"
    waits: asyncio.Event = field(default_factory=asyncio.Event)

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        for piece in self.pieces:
            self.clock.now_s += 1
            on_delta(piece)
        if self.end is None:
            self.waits.set()
            await asyncio.Event().wait()
        if isinstance(self.end, ModelResponse):
            return self.end
        assert self.end is not None
        raise self.end


def failing(usage: Usage | None = None) -> BaseException:
    error = ModelUnavailable("away")
    error.usage = usage
    return error


async def test_an_answer_costs_what_it_reports() -> None:
    bill, model = Bill(), Says(("", "a", "b"), says("ab").with_(usage=PAID))
    await ChargedModel(model, bill, PRICES, model.clock).infer(REQUEST, no_deltas)
    assert (bill.begun, bill.estimates, bill.ended) == ([("helper", "says")], [estimated(0)], [PAID])
    assert bill.firsts_s == [2.0]


@pytest.mark.parametrize(
    "pieces, error, charged",
    [
        (("x" * 400,), failing(PAID), PAID),
        (("x" * 400,), failing(), estimated(100)),
        ((), failing(), Usage()),
        ((), ZeroDivisionError(), Usage()),
        (("x" * 400,), ZeroDivisionError(), estimated(100)),
    ],
)
async def test_a_failure_costs_what_it_says_or_what_was_heard(
    pieces: tuple[str, ...], error: BaseException, charged: Usage
) -> None:
    bill = Bill()
    metered = MeteredModel(ChargedModel(Says(pieces, error), bill, PRICES))
    with pytest.raises(type(error)):
        await metered.infer(REQUEST, no_deltas)
    assert bill.ended == [charged]
    assert metered.usage == charged


@pytest.mark.parametrize("pieces, charged", [((), estimated(0)), (("x" * 400,), estimated(100))])
async def test_a_cancelled_request_may_have_been_read_and_is_charged(pieces: tuple[str, ...], charged: Usage) -> None:
    bill, model = Bill(), Says(pieces, None)
    metered = MeteredModel(ChargedModel(model, bill, PRICES))
    asked = asyncio.create_task(metered.infer(REQUEST, no_deltas))
    await model.waits.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert bill.ended == [charged]
    # What limits count is what is charged.
    assert metered.usage == charged


async def test_the_estimate_grows_with_the_answer() -> None:
    bill = Bill()
    await ChargedModel(Says(("x" * 500,) * 5, says("x")), bill, None).infer(REQUEST, no_deltas)
    assert [(one.output_tokens, one.cost_usd) for one in bill.estimates] == [(0, 0.0), (375, 0.0)]


async def test_nothing_is_sent_before_it_is_on_record() -> None:
    class Refusing(Bill):
        async def begin(self, agent: str, model: str, estimate: Usage) -> Bill:
            raise ModelUnavailable("the run has ended")

    model = Says((), says("x"))
    bill = Refusing()
    with pytest.raises(ModelUnavailable, match="has ended"):
        await ChargedModel(model, bill, None).infer(REQUEST, no_deltas)
    assert bill.ended == []


async def test_a_long_thread_is_estimated_once_however_much_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as the thread is long: the event loop would do little else during a long answer."""
    looked_at: list[InferenceRequest] = []
    monkeypatch.setattr("gateway.agents.charged_model.request_tokens", lambda request: looked_at.append(request) or 100)
    bill = Bill()
    await ChargedModel(Says(("x" * 2000,) * 9, says("x")), bill, PRICES).infer(REQUEST, no_deltas)
    assert (len(bill.estimates), looked_at) == (10, [REQUEST])
