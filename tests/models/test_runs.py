"""Runs of the agent library with a real server: several steps, and a thread that outgrows the model's window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agent import Agent, AgentState
from agent.capabilities.limits import limits
from agent.capabilities.summarization import SUMMARY, summarization
from agent.errors import ContextLengthExceeded
from agent.hooks.hook import InferenceRequest
from agent.messages import Message
from agent.models.model import Model, OnDelta
from agent.state import ModelResponse
from tests.models.asking import ask, model_of, request
from tests.models.servers import LLAMA_CPP_PYTHON, LLAMA_SERVER, ModelServer, running
from tests.unit.agent.fakes import Events, FakeFiles, allowing

CONTEXT_TOKENS = 1024
TOO_MUCH = "The quick brown fox jumps over the lazy dog. " * 300


@pytest.fixture(scope="module", params=[LLAMA_SERVER, LLAMA_CPP_PYTHON])
def small(
    request: pytest.FixtureRequest, built: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelServer]:
    """Return a server with a small window."""
    directory = tmp_path_factory.mktemp("small")
    with running(request.param, directory, context_tokens=CONTEXT_TOKENS) as server:
        yield server


@dataclass
class CallsThenAnswers:
    """Asks one model after a user's message and another one after a result: one that names a tool only calls."""

    caller: Model
    answerer: Model
    name: str = "calls then answers"

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        asked = self.answerer if request.messages[-1].role == "tool" else self.caller
        return await asked.infer(request, on_delta)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "at-once"])
async def test_runs_of_a_thread_call_tools_and_answer(server: ModelServer, stream: bool) -> None:
    added: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        added.append((a, b))
        return a + b

    events = Events()
    caller = model_of(server, stream=stream, tool_choice=server.choice("add"), max_output_tokens=100)
    async with caller, model_of(server, stream=stream, tool_choice="none", max_output_tokens=100) as answerer:
        model = caller if server.choice("add") is None else CallsThenAnswers(caller, answerer)
        agent = Agent(model=model, tools=[add], hooks=(allowing(),))
        first = await agent.run(AgentState.start("Add 2 and 3, please."), events)
        second = await agent.run(first.next_run("run_2", "Add 4 and 5, please."), events)
    assert len(added) == 2
    assert len(second.messages) == 8
    assert [message.role for message in second.messages[4:]] == ["user", "assistant", "tool", "assistant"]
    assert second.usage.output_tokens > 10
    assert [bool(payload["is_error"]) for payload in events.of("tool_call_finished")] == [False, False]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "at-once"])
async def test_messages_that_do_not_fit_the_window_are_known_as_such(small: ModelServer, stream: bool) -> None:
    with pytest.raises(ContextLengthExceeded, match="the messages do not fit the context window"):
        await ask(model_of(small, stream=stream), request(TOO_MUCH))
    assert (await ask(model_of(small, stream=stream), request("Hello."))).message.content


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "at-once"])
async def test_a_thread_that_outgrew_the_window_goes_on_with_a_summary(small: ModelServer, stream: bool) -> None:
    said = "The quick brown fox jumps over the lazy dog. " * 12
    thread = [Message(role=role, content=said) for _ in range(6) for role in ("user", "assistant")]
    async with model_of(small, stream=stream) as model:
        agent = Agent(
            model=model,
            # The window is configured too large, so only the server's refusal shows that the thread does not fit.
            capabilities=[summarization(model, FakeFiles(), context_window_tokens=2_000), limits(steps=10)],
        )
        task = Message(role="user", content="Go on, in one word.")
        final = await agent.run(AgentState(run_id="run_1", thread="t", messages=(*thread, task)))
    assert final.answer
    assert final.metadata[SUMMARY]["messages"] > 6
