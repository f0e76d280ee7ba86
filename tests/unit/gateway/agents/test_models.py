"""Models: one client for equal settings, none left open, and only so many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from agent.hooks.hook import InferenceRequest, Progress
from agent.messages import Message
from agent.models.model import OnDelta, no_deltas
from agent.models.openai_model import OpenAIModel
from agent.state import ModelResponse
from gateway.agents.models import Models, ModelSlots
from gateway.config.model_settings import ModelSettings
from gateway.errors import Misconfigured
from tests.unit.agent.fakes import says

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
