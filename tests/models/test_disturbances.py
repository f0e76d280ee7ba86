"""A real server in trouble: a client that leaves, a server that restarts or is away, and one that cuts answers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import Agent, AgentState
from agent.capabilities.flow import flow
from agent.errors import ModelUnavailable
from tests.models.asking import ask, model_of, request
from tests.models.servers import LLAMA_CPP_PYTHON, LLAMA_SERVER, ModelServer, running

# Answers that would take minutes.
_ENDLESS = request("Count from one to ten thousand, in words, and leave out none.")
_LONG_TOKENS = 4_000
_SOON_S = 60
_SLOTS = 2
_END_TOKEN = "2"


@pytest.fixture(params=[LLAMA_SERVER, LLAMA_CPP_PYTHON])
def own(request: pytest.FixtureRequest, built: None, tmp_path: Path) -> Iterator[ModelServer]:
    """Return a server of the test's own, which it may stop."""
    with running(request.param, tmp_path, context_tokens=8192) as server:
        yield server


async def _endless(server: ModelServer, begun: asyncio.Event, *, stream: bool = True) -> str:
    # Nothing ends this answer but its limit: the token that would is not allowed.
    endless = {"logit_bias": {_END_TOKEN: -100}}
    model = model_of(server, stream=stream, max_output_tokens=_LONG_TOKENS, extra=endless)
    return (await ask(model, _ENDLESS, lambda _: begun.set())).message.content


async def test_a_stream_that_is_cancelled_frees_its_slot(server: ModelServer) -> None:
    for _ in range(_SLOTS + 1):
        begun = asyncio.Event()
        task = asyncio.create_task(_endless(server, begun))
        await asyncio.wait_for(begun.wait(), _SOON_S)
        await _cancelled(task)
    await _answers_soon(server)


async def test_an_answer_at_once_that_is_cancelled_frees_its_slot(llama_server: ModelServer) -> None:
    """llama-cpp-python computes such an answer to its end."""
    for _ in range(_SLOTS + 1):
        task = asyncio.create_task(_endless(llama_server, asyncio.Event(), stream=False))
        await asyncio.to_thread(_busy, llama_server)
        await _cancelled(task)
    await _answers_soon(llama_server)


async def _cancelled(task: asyncio.Task[str]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _answers_soon(server: ModelServer) -> None:
    async with asyncio.timeout(_SOON_S):
        assert (await ask(model_of(server), request("Name three colours."))).message.content


def _busy(server: ModelServer) -> None:
    """Wait until llama-server computes an answer."""
    give_up = time.monotonic() + _SOON_S
    while not any(slot["is_processing"] for slot in server.get("/slots")):
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_server_that_ends_in_an_answer_is_unavailable_and_answers_once_it_is_back(
    own: ModelServer, how: signal.Signals
) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(_endless(own, begun))
    await asyncio.wait_for(begun.wait(), _SOON_S)
    await asyncio.to_thread(own.stop, how)
    with pytest.raises(ModelUnavailable):
        await task
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        await ask(model_of(own), request("Name three colours."))
    await asyncio.to_thread(own.start)
    assert (await ask(model_of(own), request("Name three colours."))).message.content


async def test_a_run_outlives_a_restart_of_its_server(own: ModelServer) -> None:
    async def restarted(_: float) -> None:
        await asyncio.to_thread(own.start)

    await asyncio.to_thread(own.stop)
    async with model_of(own) as model:
        final = await Agent(model=model, capabilities=[flow(sleep=restarted)]).run(AgentState.start("Name a colour."))
    assert final.answer


async def test_of_two_answers_of_a_server_that_has_one_slot_neither_is_lost(own: ModelServer) -> None:
    answers = await asyncio.gather(*(ask(model_of(own), request(f"Name colour {n}.")) for n in range(4)))
    assert all(response.message.content for response in answers)
