"""What a check finds out about endpoints that lack one ability each."""

from __future__ import annotations

from typing import Any

import pytest

from agent.models.model_check import ModelCheck, ModelReport, context_tokens
from agent.models.openai_model import OpenAIModel
from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from agent.models.settings import Api, RequestSettings
from tests.unit.agent.models.capable_endpoint import CapableEndpoint, capable


async def check(
    endpoint: CapableEndpoint | ScriptedModelServer,
    *,
    api: Api = "chat_completions",
    stream: bool = True,
    short: bool = False,
) -> ModelReport:
    def open_model(streamed: bool, settings: RequestSettings) -> OpenAIModel:
        return OpenAIModel("m", base_url=endpoint.base_url, api_key="k", stream=streamed, settings=settings)

    return await ModelCheck(open_model, RequestSettings(api=api), stream=stream).run(short=short)


def answers(report: ModelReport) -> dict[str, str]:
    found = {finding.question: finding.answer for finding in report.findings}
    assert len(found) == len(report.findings)  # no question is answered twice
    return found


async def test_of_an_endpoint_that_can_everything_everything_is_found() -> None:
    async with capable() as endpoint:
        report = await check(endpoint)
    found = answers(report)
    assert found.pop("reasoning") == "no"
    assert set(found.values()) == {"yes"}
    assert report.settings == {"response_format": "json_schema", "context_window_tokens": 32_000}
    assert len(endpoint.requests) < 15


@pytest.mark.parametrize(
    "lacks, question, setting",
    [
        ({"streams": False}, "streams", {"stream": False}),
        ({"streams_tools": False}, "tools in a stream", {"stream": False}),
        ({"empty_streams": True}, "tools in a stream", {"stream": False}),
        ({"parallel": False}, "parallel calls", {}),
        ({"null_content": False}, "null as the text of a call", {}),
        ({"bound_name": "max_completion_tokens"}, "max_tokens", {"max_tokens_name": "max_completion_tokens"}),
        ({"formats": ("json_object",)}, None, {"response_format": "json_object"}),
        ({"formats": ()}, "structured output", {"response_format": None}),
        ({"listed": None}, None, {"context_window_tokens": None}),
    ],
)
async def test_an_ability_that_is_missing_is_found_and_no_other(
    lacks: dict[str, Any], question: str | None, setting: dict[str, Any]
) -> None:
    async with capable(**lacks) as endpoint:
        report = await check(endpoint)
    missing = {asked for asked, answer in answers(report).items() if answer == "no"} - {"reasoning"}
    expected = {question} if question else set()
    if lacks == {"streams": False}:
        expected |= {"tools in a stream", "usage in a stream"}
    assert missing == expected
    usual = {"response_format": "json_schema", "context_window_tokens": 32_000}
    assert report.settings == {name: value for name, value in (usual | setting).items() if value is not None}


async def test_through_the_responses_api_a_history_is_asked_about_as_that_api_has_it() -> None:
    calls = Turn(calls=lambda said: [Call("report_number", {"number": 7})] if "number" in said[-1] else (), say="ok")
    async with ScriptedModelServer([calls, Turn(say="reported")]) as endpoint:
        found = answers(await check(endpoint, api="responses"))
    assert found["a history with calls"] == "yes"
    assert "null as the text of a call" not in found
    assert not any("messages" in request for request in endpoint.requests)


async def test_usage_that_a_stream_lacks_is_found_by_its_estimate() -> None:
    async with capable(counts_in_stream=False) as endpoint:
        assert answers(await check(endpoint))["usage in a stream"] == "no"


async def test_reasoning_is_found_with_the_name_of_its_field() -> None:
    async with capable(reasoning="hm, I see") as endpoint:
        report = await check(endpoint)
    (found,) = [finding for finding in report.findings if finding.question == "reasoning"]
    assert found.answer == "yes"
    assert found.detail.endswith(" characters in reasoning_content")


async def test_a_model_that_calls_only_if_it_must_is_found() -> None:
    async with capable(calls_unasked=False) as endpoint:
        report = await check(endpoint)
    details = {finding.question: finding.detail for finding in report.findings}
    assert "only with tool_choice: required" in details["tools in a stream"]


async def test_without_tools_nothing_further_is_asked_about_them() -> None:
    async with capable(tools=False) as endpoint:
        found = answers(await check(endpoint))
    assert (found["tools in a stream"], found["tools without a stream"]) == ("no", "no")
    assert "parallel calls" not in found


@pytest.mark.parametrize("stream", [True, False])
async def test_the_short_form_asks_only_whether_it_answers_streams_and_calls(stream: bool) -> None:
    async with capable() as endpoint:
        report = await check(endpoint, stream=stream, short=True)
    calls = "tools in a stream" if stream else "tools without a stream"
    assert answers(report) == {"answers": "yes", "streams": "yes", calls: "yes"}
    assert len(endpoint.requests) == (2 if stream else 3)


async def test_a_model_that_does_not_answer_ends_the_check_with_one_line() -> None:
    async with capable(status=401) as endpoint:
        report = await check(endpoint)
    assert "go away" in report.problem
    assert "\n" not in report.problem
    assert (report.findings, len(endpoint.requests)) == ([], 2)


@pytest.mark.parametrize(
    "listed, tokens",
    [
        ({"context_length": 128_000}, 128_000),
        ({"max_model_len": 32_768}, 32_768),
        ({"meta": {"n_ctx": 8_192}}, 8_192),
        ({"top_provider": {"context_length": 200_000}}, 200_000),
        ({"context_length": "128000"}, None),
        ({"context_length": -1}, None),
        ({"context_length": True}, None),
        ({"meta": [1]}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_context_length_is_read_wherever_an_endpoint_has_it(listed: Any, tokens: int | None) -> None:
    assert context_tokens(listed) == tokens
