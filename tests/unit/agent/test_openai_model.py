"""The real client against the scripted server, over real HTTP, with what goes wrong there."""

from __future__ import annotations

import re

import pytest

from agent.capabilities.filesystem import filesystem
from agent.capabilities.flow import flow
from agent.errors import ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hook import InferenceRequest
from agent.loop import Agent
from agent.messages import Message
from agent.openai_model import OpenAIModel
from agent.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from agent.state import ModelResponse
from tests.unit.agent.fakes import Events, FakeFiles, allowing, state

REQUEST = InferenceRequest("be brief", (Message(role="user", content="hello"),), ())
BOTH = pytest.mark.parametrize("stream", [True, False])


async def ask(turn: Turn, *, stream: bool = True, deltas: list[str] | None = None) -> ModelResponse:
    async with ScriptedModelServer([turn]) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="sk-secret", stream=stream, timeout_s=5)
        try:
            return await model.infer(REQUEST, (deltas if deltas is not None else []).append)
        finally:
            await model.close()


@BOTH
async def test_text_arrives_whole_with_usage(stream: bool) -> None:
    deltas: list[str] = []
    response = await ask(Turn(say="a long enough answer é"), stream=stream, deltas=deltas)
    assert response.message.content == "".join(deltas) == "a long enough answer é"
    assert response.finish_reason == "stop"
    assert response.usage.output_tokens > 0
    assert (len(deltas) > 1) is stream


@BOTH
async def test_parallel_calls_are_put_together_from_fragments_and_missing_ids_are_made(stream: bool) -> None:
    calls = [Call("a", {"path": "x" * 40}), Call("b", {"n": [1, 2, {"k": "é"}]}, id=""), Call("c", "")]
    response = await ask(Turn(calls=calls), stream=stream)
    got = response.message.tool_calls
    assert [(call.name, call.arguments) for call in got] == [
        ("a", {"path": "x" * 40}),
        ("b", {"n": [1, 2, {"k": "é"}]}),
        ("c", {}),
    ]
    assert all(call.id for call in got)


@pytest.mark.parametrize("raw", ['{"a": ', "[1]", '"text"', "{'a': 1}"])
async def test_arguments_that_are_no_json_object_are_kept_raw(raw: str) -> None:
    (call,) = (await ask(Turn(calls=[Call("a", raw)]))).message.tool_calls
    assert (call.arguments, call.raw_arguments) == (None, raw)


@pytest.mark.parametrize(
    "fault, stream, error",
    [
        (Fault("drop"), True, ModelUnavailable),
        (Fault("drop"), False, ModelUnavailable),
        (Fault("nonsense"), True, ModelNonsense),
        (Fault("nonsense"), False, ModelNonsense),
        (Fault("empty"), True, ModelNonsense),
        (Fault("empty"), False, ModelNonsense),
        (Fault("status", status=500), True, ModelUnavailable),
        (Fault("status", status=429), True, ModelUnavailable),
        (Fault("status", status=401), True, ModelRefused),
        (Fault("status", status=404), True, ModelRefused),
    ],
)
async def test_each_fault_is_one_clear_error_that_names_the_endpoint_and_not_the_key(
    fault: Fault, stream: bool, error: type[ModelError]
) -> None:
    with pytest.raises(error, match=re.escape("http://127.0.0.1:")) as raised:
        await ask(Turn(say="x", fault=fault), stream=stream)
    assert type(raised.value) is error
    assert "sk-secret" not in str(raised.value)


async def test_nobody_there_is_unavailable_and_says_what_to_check() -> None:
    model = OpenAIModel("m", base_url="http://user:sk-secret@127.0.0.1:1/v1", api_key="k")
    with pytest.raises(ModelUnavailable, match="check base_url") as raised:
        await model.infer(REQUEST, print)
    assert "sk-secret" not in str(raised.value)


async def test_a_proxy_of_the_environment_is_not_used_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert (await ask(Turn(say="hi"))).message.content == "hi"


async def run_script(turns: list[Turn], files: FakeFiles) -> tuple[ScriptedModelServer, Events]:
    events = Events()

    async def no_sleep(_: float) -> None: ...

    async with ScriptedModelServer(turns) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="k", timeout_s=5)
        agent = Agent(
            model=model,
            capabilities=(flow(sleep=no_sleep), filesystem(files)),
            hooks=(allowing(),),
            system_prompt="you are tested",
        )
        await agent.run(state(), events)
        await model.close()
    return server, events


async def test_a_whole_run_over_http_through_faults_with_expectations_met() -> None:
    turns = [
        Turn(expect=["do it"], say="I look.", calls=[Call("ls", {}), Call("read_file", {"path": "a.txt"})]),
        Turn(
            expect=[re.compile(r'"name": "a\.txt"'), ["hello", lambda text: "bye" not in text]],
            calls=lambda received: [
                Call("edit_file", {"path": "a.txt", "old_text": received[1].strip(), "new_text": "bye"})
            ],
            fault=Fault("drop", times=2),
        ),
        Turn(expect=["replaced 1 match"], calls=[Call("write_file", "{not json")]),
        Turn(expect=["not a JSON object: {not json"], say="done", fault=Fault("status", times=1)),
    ]
    files = FakeFiles({"/workspace/a.txt": b"hello"})
    server, events = await run_script(turns, files)
    assert server.failures == []
    assert events[-1].payload["status"] == "completed"
    assert events[-1].payload["answer"] == "done"
    assert files.files == {"/workspace/a.txt": b"bye"}
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "you are tested"}
    assert "".join(str(payload["text"]) for payload in events.of("model_delta")).startswith("I look.")


@pytest.mark.parametrize(
    "expectation", ["good bye", re.compile("good ?bye"), lambda text: "good bye is missing", lambda text: text == "x"]
)
async def test_an_expectation_that_is_not_met_fails_the_run_loudly(expectation: object) -> None:
    turns = [Turn(calls=[Call("read_file", {"path": "a.txt"})]), Turn(expect=[expectation], say="fine")]  # type: ignore[list-item]
    server, events = await run_script(turns, FakeFiles({"/workspace/a.txt": b"hello"}))
    assert len(server.failures) == 1
    end = events[-1].payload
    assert end["status"] == "failed"
    assert "the script's turn 1: message 0" in str(end["stop"])
    assert "hello" in str(end["stop"])


async def test_a_script_that_is_at_its_end_says_so() -> None:
    server, events = await run_script([Turn(calls=[Call("ls", {})])], FakeFiles())
    assert "the script has 1 turns only" in server.failures[0]
    assert events[-1].payload["status"] == "failed"
