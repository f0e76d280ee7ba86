"""The token estimate: a quarter of the characters, corrected by what endpoints report."""

from __future__ import annotations

import pytest

from agent.capabilities.summarization import InputEstimate
from agent.messages import Message, ToolSpec
from agent.models import token_estimates
from agent.models.token_estimates import message_tokens, prompt_tokens
from tests.unit.agent.fakes import call


def said(chars: int) -> Message:
    return Message(role="user", content="x" * chars)


def test_a_token_is_four_characters_rounded_up() -> None:
    assert [message_tokens(said(chars)) for chars in (0, 1, 4, 5, 4000)] == [0, 1, 1, 2, 1000]


def test_arguments_of_tool_calls_and_the_prompt_with_its_tools_count() -> None:
    message = Message(role="assistant", content="", tool_calls=(call("write_file", content="x" * 4000),))
    assert 1000 < message_tokens(message) < 1020
    unread = message.model_copy(update={"tool_calls": (call("t").model_copy(update={"arguments": None}),)})
    assert message_tokens(unread) == 1
    assert prompt_tokens("x" * 400, ()) == 100
    assert prompt_tokens("x" * 400, [ToolSpec("t", "y" * 400, {"z": "z" * 400})]) > 300


def test_without_a_report_the_estimate_is_the_plain_one() -> None:
    messages = [said(4000), said(8000)]
    estimate = InputEstimate.of(messages, 0, 500)
    assert (estimate.tokens, estimate.ratio) == (3500, 1.0)
    for _ in range(3):
        messages.append(said(400))
        estimate = estimate.grown(messages).measured(500, 0)
    assert estimate.tokens == estimate.estimated == 3800


def test_the_next_request_is_the_reported_one_and_what_was_added_at_the_same_ratio() -> None:
    messages = [said(400_000)]
    estimate = InputEstimate.of(messages, 0, 0).measured(0, 150_000)
    assert estimate.tokens == 150_000
    messages.append(said(40_000))
    assert estimate.grown(messages).tokens == 150_000 + round(10_000 * estimate.ratio)
    assert estimate.ratio == pytest.approx(1.5, abs=0.01)


def test_a_report_that_is_missing_once_keeps_what_was_measured() -> None:
    messages = [said(400_000)]
    estimate = InputEstimate.of(messages, 0, 0).measured(0, 150_000)
    for _ in range(20):
        estimate = estimate.measured(0, 0)
    assert estimate.tokens == 150_000


@pytest.mark.parametrize("reported", [-5, 1, 100, 10**9])
def test_a_report_that_cannot_be_is_not_believed(reported: int) -> None:
    assert InputEstimate.of([said(40_000)], 0, 0).measured(0, reported).tokens == 10_000


def test_a_short_request_says_little_of_long_text_to_come() -> None:
    messages = [said(40)]
    estimate = InputEstimate.of(messages, 0, 0).measured(0, 300)  # a frame that the endpoint puts around them
    messages.append(said(400_000))
    assert estimate.grown(messages).tokens < 170_000


def test_only_what_is_new_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Message] = []
    real = token_estimates.message_tokens
    monkeypatch.setattr(token_estimates, "message_tokens", lambda message: counted.append(message) or real(message))
    messages = [said(4) for _ in range(1000)]
    estimate = InputEstimate.of(messages, 100, 0)
    assert len(counted) == 900
    messages.append(said(8))
    counted.clear()
    assert estimate.grown(messages).thread == 902
    assert counted == [said(8)]


def test_an_estimate_is_remembered_through_json_for_its_own_thread_alone() -> None:
    messages = [said(4), said(4)]
    estimate = InputEstimate.of(messages, 1, 7)
    note = estimate.model_dump()
    assert InputEstimate.remembered(note, messages, 1) == estimate
    for other in (
        InputEstimate.remembered(None, messages, 1),
        InputEstimate.remembered(note, messages, 0),
        InputEstimate.remembered(note, messages[:1], 1),
        InputEstimate.remembered({**note, "tokens": -1}, messages, 1),
        InputEstimate.remembered("nonsense", messages, 1),
    ):
        assert other is None
