"""Models: one client for equal settings, none left open, and only so many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from agent.errors import ModelUnavailable
from agent.hooks.hook import InferenceRequest, Progress
from agent.messages import Message, Usage
from agent.models.metered_model import MeteredModel
from agent.models.model import OnDelta, no_deltas
from agent.models.openai_model import OpenAIModel
from agent.state import ModelResponse
from gateway.agents.models import Models, ModelSlots
from gateway.config.model_settings import ModelSettings, OneModelSettings
from gateway.errors import Misconfigured
from tests.unit.agent.fakes import says
from tests.unit.gateway.agents.test_charged_model import Bill
from tests.unit.gateway.telemetry.seen import watching

REQUEST = InferenceRequest("", (Message(role="user", content="hi"),), ())


async def test_equal_settings_share_a_client_and_all_are_closed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def close(self: OpenAIModel) -> None:
        closed.append(self.name)

    async def infer(self: OpenAIModel, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        return says(self.name)

    monkeypatch.setattr(OpenAIModel, "close", close)
    monkeypatch.setattr(OpenAIModel, "infer", infer)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    models = Models()
    one = models.of(ModelSettings(name="a", base_url="http://127.0.0.1:1/v1"))
    same = models.of(ModelSettings(name="a", base_url="http://127.0.0.1:1/v1"))
    other = models.of(ModelSettings(name="b", base_url="http://127.0.0.1:1/v1"))
    models.of(ModelSettings(name="c", base_url="http://127.0.0.1:1/v1"))  # is never asked, and has no connections
    assert (one.name, other.name) == ("a", "b")
    for model in (one, same, other):
        assert (await model.infer(REQUEST, no_deltas)).message.content == model.name
    await models.close()
    assert closed == ["a", "b"]  # the first two shared a client


async def test_a_model_without_a_key_is_reported_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    models = Models()
    with pytest.raises(Misconfigured, match="NO_SUCH_KEY"):
        models.of(ModelSettings(api_key_env="NO_SUCH_KEY"))
    await models.close()


async def test_requests_past_the_limit_wait_for_their_turn_whichever_model_they_are_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_endpoint: list[asyncio.Future[None]] = []

    async def infer(self: OpenAIModel, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        at_endpoint.append(asyncio.get_running_loop().create_future())
        await at_endpoint[-1]
        return says(self.name)

    monkeypatch.setattr(OpenAIModel, "infer", infer)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    models = Models(requests_limit=2)
    asked = [
        asyncio.create_task(models.of(ModelSettings(name=name)).infer(REQUEST, no_deltas))  # type: ignore[arg-type]
        for name in "abcde"
    ]
    await asyncio.sleep(0)
    assert len(at_endpoint) == 2
    asked[2].cancel()  # while it waits
    at_endpoint[0].set_exception(ConnectionError("gone"))  # a failure makes room too
    at_endpoint[1].cancel()  # and so does who gives up
    await asyncio.wait(asked[:3])
    assert len(at_endpoint) == 4
    for answer in at_endpoint[2:]:
        answer.set_result(None)
    assert [response.message.content for response in await asyncio.gather(*asked[3:])] == ["d", "e"]
    assert asked[2].cancelled()
    assert isinstance(asked[0].exception(), ConnectionError)
    await models.close()


async def test_who_listens_hears_of_a_wait_and_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_endpoint: list[asyncio.Future[None]] = []

    async def infer(self: OpenAIModel, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        at_endpoint.append(asyncio.get_running_loop().create_future())
        await at_endpoint[-1]
        return says(self.name)

    heard: list[str] = []

    @contextmanager
    def on_wait(reason: str) -> Iterator[None]:
        heard.append(reason)
        yield
        heard.append("over")

    monkeypatch.setattr(OpenAIModel, "infer", infer)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    models = Models(requests_limit=1)
    model = models.of(ModelSettings(name="a"))
    request = replace(REQUEST, progress=Progress(waiting=on_wait))
    first = asyncio.create_task(model.infer(request, no_deltas))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert heard == []
    second = asyncio.create_task(model.infer(request, no_deltas))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert heard == ["this tenant has as many inferences under way as it may (concurrent_inferences: 1)"]
    at_endpoint[0].set_result(None)
    await first
    assert heard[1:] == ["over"]
    at_endpoint[1].set_result(None)
    await second
    await models.close()


async def test_a_models_own_limit_holds_for_all_tenants_together(monkeypatch: pytest.MonkeyPatch) -> None:
    at_endpoint: list[str] = []
    free = asyncio.Event()

    async def infer(self: OpenAIModel, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        at_endpoint.append(self.name)
        await free.wait()
        return says(self.name)

    monkeypatch.setattr(OpenAIModel, "infer", infer)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    slots = ModelSlots()
    one, two = Models(slots=slots), Models(slots=slots)
    narrow = ModelSettings(name="narrow", concurrent_requests=1)
    asked = [
        asyncio.create_task(models.of(settings).infer(REQUEST, no_deltas))  # type: ignore[arg-type]
        for models, settings in ((one, narrow), (two, narrow), (two, ModelSettings(name="wide")))
    ]
    await asyncio.sleep(0.01)
    assert at_endpoint == ["narrow", "wide"]
    free.set()
    await asyncio.gather(*asked)
    assert at_endpoint == ["narrow", "wide", "narrow"]
    await one.close()
    await two.close()


async def test_a_fallback_has_slots_charges_and_measurements_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    at_endpoint: list[str] = []
    free = asyncio.Event()

    async def infer(self: OpenAIModel, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        at_endpoint.append(self.name)
        if self.name == "first":
            on_delta("x" * 400)
            await asyncio.sleep(0)
            raise ModelUnavailable("away")
        await free.wait()
        return says(self.name).with_(usage=Usage(input_tokens=7))

    monkeypatch.setattr(OpenAIModel, "infer", infer)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    seen, bill = watching(), Bill()
    models = Models(telemetry=seen.telemetry)
    settings = ModelSettings(
        name="first", concurrent_requests=1, fallbacks=(OneModelSettings(name="second"),)
    )  # it inherits the limit
    metered = [MeteredModel(models.of(settings, bill)) for _ in range(2)]
    asked = [asyncio.create_task(model.infer(REQUEST, no_deltas)) for model in metered]
    await asyncio.sleep(0.01)
    # The first one's slot is free again, and the second one's is taken.
    assert sorted(at_endpoint) == ["first", "first", "second"]
    free.set()
    await asyncio.gather(*asked)
    lost = Usage(input_tokens=1, output_tokens=100, estimated_tokens=101)
    assert [model.usage for model in metered] == [lost + Usage(input_tokens=7)] * 2
    assert sorted(model for _, model in bill.begun) == ["first", "first", "second", "second"]
    assert sum(bill.ended, Usage()) == sum((model.usage for model in metered), Usage())
    timed = seen.points("gen_ai.client.operation.duration")
    counts = {(labels["gen_ai.request.model"], labels.get("error.type")): point.count for labels, point in timed}
    assert counts == {("first", "ModelUnavailable"): 2, ("second", None): 2}
    await models.close()
