"""Reasoning as events of a run: apart from the text, in order, counted, and only where it is shown."""

from __future__ import annotations

import pytest

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.errors import ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.models.model import OnDelta
from agent.state import ModelResponse
from tests.unit.agent.fakes import Events, says, state


class Reasons:
    """A model that says what `pieces` hold, reasoning where they begin with a question mark, and fails at first."""

    name = "reasons"

    def __init__(self, *pieces: str, shown: bool = True, fails: int = 0) -> None:
        self.pieces, self.shown, self.fails = pieces, shown, fails

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        for piece in self.pieces:
            reasoning = piece.startswith("?")
            on_delta(piece, reasoning=reasoning, shown=self.shown or not reasoning)
        self.fails -= 1
        if self.fails >= 0:
            raise ModelUnavailable("dropped")
        return says("".join(piece for piece in self.pieces if not piece.startswith("?")))


async def events_of(model: Reasons) -> Events:
    events = Events()
    await Agent(model=model, capabilities=(flow(backoff_s=0),)).run(state(), events)
    return events


def pieces_of(events: Events) -> list[tuple[str, object]]:
    return [(event.type, event.payload["text"]) for event in events if event.type.endswith("_delta")]


async def test_reasoning_and_text_keep_their_order_and_are_joined_apart() -> None:
    events = await events_of(Reasons("?a", "?b", "c", "d", "?e", "f"))
    text, reasoning = "model_delta", "reasoning_delta"
    assert pieces_of(events) == [(reasoning, "?a?b"), (text, "cd"), (reasoning, "?e"), (text, "f")]
    (finished,) = events.of("model_finished")
    assert (finished["text"], finished["reasoning_chars"]) == ("cdf", 6)


@pytest.mark.parametrize("shown", [True, False])
async def test_reasoning_that_is_not_shown_is_counted_for_the_attempt_that_succeeded(shown: bool) -> None:
    events = await events_of(Reasons("?abc", "d", shown=shown, fails=2))
    assert [type_ for type_, _ in pieces_of(events)].count("reasoning_delta") == (3 if shown else 0)
    (finished,) = events.of("model_finished")
    assert finished["reasoning_chars"] == 4


async def test_an_answer_that_changes_all_the_time_is_no_event_for_each_character() -> None:
    events = await events_of(Reasons(*("?a", "b") * 5_000))
    pieces = pieces_of(events)
    assert len(pieces) < 1_100
    for kind, char in (("reasoning_delta", "?a"), ("model_delta", "b")):
        assert "".join(str(text) for type_, text in pieces if type_ == kind) == char * 5_000
