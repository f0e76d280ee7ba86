"""The scripted model in this process: the same turns as the server plays, and the same errors as an endpoint's."""

from __future__ import annotations

import pytest

from agent.agent import Agent
from agent.errors import ContextLengthExceeded, ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Message
from agent.models.model import no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.scripted_model import Call, Fault, ScriptedModel, Turn
from agent.models.scripted_model_server import ScriptedModelServer
from agent.state import ModelResponse
from tests.unit.agent.fakes import state
from tests.unit.agent.models.asking import Deltas

ASKED = InferenceRequest("You help.", (Message(role="user", content="go"),), ())


async def test_the_model_answers_and_records_as_the_server_does() -> None:
    turns = [Turn(expect=["go"], say="Look.", calls=[Call("ls", {"path": "a"}, "c1"), Call("ls", "{nope", "c2")])]
    reported = Deltas()
    here = ScriptedModel(turns, name="m")
    answer = await here.infer(ASKED, reported)
    async with (
        ScriptedModelServer(turns) as server,
        OpenAIModel("m", base_url=server.base_url, api_key="k", stream=False) as there,
    ):
        theirs = await there.infer(ASKED, reported)
    without_usage = {"usage"}
    assert answer.model_dump(exclude=without_usage) == theirs.model_dump(exclude=without_usage)
    assert (answer.usage.input_tokens > 0, reported.text) == (True, ["Look.", "Look."])
    sent = {key: value for key, value in server.requests[0].items() if key in here.requests[0]}
    assert here.requests == [sent]


@pytest.mark.parametrize(
    "fault, error, said",
    [
        (Fault("drop"), ModelUnavailable, "the connection was dropped"),
        (Fault("nonsense"), ModelNonsense, "nonsense"),
        (Fault("empty"), ModelNonsense, "empty"),
        (Fault("status", status=401), ModelRefused, "check the API key"),
        (Fault("status", status=413, body="too long"), ContextLengthExceeded, "context window"),
        (Fault("status", status=503, headers={"Retry-After": "7"}), ModelUnavailable, "try again in 7 s"),
    ],
)
async def test_a_fault_is_the_error_that_an_endpoint_would_be_and_then_the_turn_is_played(
    fault: Fault, error: type[ModelError], said: str
) -> None:
    model = ScriptedModel([Turn(say="hi", fault=fault)])

    async def ask() -> ModelResponse:
        return await model.infer(ASKED, no_deltas)

    with pytest.raises(error, match=said):
        await ask()
    assert (await ask()).message.content == "hi"
    assert not model.failures


async def test_what_a_turn_expects_and_does_not_get_ends_the_run_and_is_named() -> None:
    model = ScriptedModel([Turn(expect=["something else"], say="hi")])
    final = await Agent(model=model).run(state())
    assert final.stop is not None
    assert "expected the text 'something else'" in final.stop.reason
    assert model.failures == [final.stop.reason]


async def test_a_request_past_the_last_turn_is_a_failure() -> None:
    model = ScriptedModel([])
    with pytest.raises(ModelRefused, match="the script has 0 turns only"):
        await model.infer(ASKED, no_deltas)
    assert len(model.failures) == 1
