"""The parameter that an endpoint does not take is found in its words, in each shape that endpoints are known to use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.models.endpoint_errors import complaint_of, unsupported_parameter
from agent.models.endpoint_meanings import settled


def said(message: str, param: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


_RENAMED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
_VALUE = (
    "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported."
)
_FORBIDDEN = (
    "[{'type': 'extra_forbidden', 'loc': ('body', 'max_completion_tokens'), 'msg': 'Extra inputs are not ...'}]"
)
_GEMINI = 'Invalid JSON payload received. Unknown name "parallel_tool_calls": Cannot find field.'
_DETAIL = {
    "type": "extra_forbidden",
    "loc": ["body", "max_completion_tokens"],
    "msg": "Extra inputs are not permitted",
    "input": 100,
}
_DROP = "To drop these, set `litellm.drop_params=True`"

SHAPES = [
    ("openai", said(_RENAMED, "max_tokens", "unsupported_parameter"), "max_tokens"),
    ("openai, words alone", said(_RENAMED), "max_tokens"),
    ("openai, a value", said(_VALUE, "temperature", "unsupported_value"), "temperature"),
    ("openai, a value, words alone", said(_VALUE), "temperature"),
    ("openai, calls", said("Unsupported parameter: 'parallel_tool_calls' is not supported."), "parallel_tool_calls"),
    ("openai, effort", said("Unsupported parameter: 'reasoning_effort' is not supported."), "reasoning_effort"),
    ("openai, stop", said("Unsupported parameter: 'stop' is not supported with this model.", "stop"), "stop"),
    ("openai, include", said("Encrypted content is not supported with this model.", "include"), "include"),
    (
        "openai, a field of the Responses API",
        said("Unsupported parameter: 'reasoning.effort' is not supported with this model.", "reasoning.effort"),
        "reasoning",
    ),
    ("openai, the bound of the Responses API", said("max_output_tokens is not supported"), "max_output_tokens"),
    ("openai, unknown", said("Unknown parameter: 'top_k'.", "top_k", "unknown_parameter"), "top_k"),
    ("azure", said("Unrecognized request argument supplied: max_completion_tokens"), "max_completion_tokens"),
    ("azure, several", said("Unrecognized request arguments supplied: seed, stop"), "seed"),
    ("azure, models", said("Extra parameters ['max_completion_tokens'] are not allowed"), "max_completion_tokens"),
    ("vllm", {"object": "error", "message": _FORBIDDEN, "param": None, "code": 400}, "max_completion_tokens"),
    ("mistral", {"object": "error", "message": {"detail": [_DETAIL]}, "code": None}, "max_completion_tokens"),
    ("fastapi", {"detail": [_DETAIL]}, "max_completion_tokens"),
    ("nim", {"detail": "body -> max_completion_tokens\n  Extra inputs are not permitted"}, "max_completion_tokens"),
    ("anthropic", said("max_completion_tokens: Extra inputs are not permitted"), "max_completion_tokens"),
    ("anthropic, deprecated", said("`temperature` is deprecated for this model."), "temperature"),
    ("fireworks", said("Extra inputs are not permitted, field: 'parallel_tool_calls'"), "parallel_tool_calls"),
    ("groq", said("property 'reasoning_effort' is unsupported"), "reasoning_effort"),
    ("gemini", [{"error": {"code": 400, "message": _GEMINI, "status": "INVALID_ARGUMENT"}}], "parallel_tool_calls"),
    ("xai", said("Model grok-4 does not support parameter reasoningEffort."), "reasoning_effort"),
    ("xai, stop", said("Argument not supported on this model: stop"), "stop"),
    ("deepseek", said("deepseek-reasoner does not support the parameter `temperature`"), "temperature"),
    (
        "bedrock",
        said("Malformed input request: #: extraneous key [max_completion_tokens] is not permitted"),
        "max_completion_tokens",
    ),
    (
        "rust",
        said("unknown field `max_completion_tokens`, expected one of `model`, `messages`"),
        "max_completion_tokens",
    ),
    ("python", said("create() got an unexpected keyword argument 'max_completion_tokens'"), "max_completion_tokens"),
    (
        "litellm",
        said(f"openai does not support parameters: ['reasoning_effort'], for model=m. {_DROP}"),
        "reasoning_effort",
    ),
    (
        "litellm, values",
        said("gemini does not support parameters: {'parallel_tool_calls': True}, for model=m"),
        "parallel_tool_calls",
    ),
    ("litellm, nested", said(f"litellm.BadRequestError: Error code: 400 - {json.dumps(said(_RENAMED))}"), "max_tokens"),
    (
        "openrouter",
        {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(said(_RENAMED))}}},
        "max_tokens",
    ),
]


@pytest.mark.parametrize("body, parameter", [shape[1:] for shape in SHAPES], ids=[shape[0] for shape in SHAPES])
def test_the_parameter_is_named(body: Any, parameter: str) -> None:
    assert unsupported_parameter(complaint_of(json.dumps(body))) == parameter


@pytest.mark.parametrize(
    "body",
    [
        said("max_tokens is too large: 100000. This model supports at most 16384 completion tokens", "max_tokens"),
        said("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."),
        said("Could not finish the message because max_tokens or model output limit was reached."),
        said("temperature must be at most 2"),
        said("The model 'max' is not supported", code="model_not_found"),
        said("registry.ollama.ai/library/gemma:2b does not support tools", code=None),
        said('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        said("tools.0.custom.strict: Extra inputs are not permitted"),
        said("Unsupported value: 'messages[0].role' does not support 'developer' with this model."),
        said("the field 'content' is required"),
        {"detail": [{**_DETAIL, "loc": ["body", "messages", 0, "name"]}]},
        "upstream is away",
    ],
    ids=str,
)
def test_another_complaint_is_about_no_such_parameter(body: Any) -> None:
    assert unsupported_parameter(complaint_of(json.dumps(body))) is None


@pytest.mark.parametrize(
    "parameter, advice",
    [
        ("max_output_tokens", "remove it"),
        ("reasoning", "remove reasoning_effort"),
        ("text", "remove response_format"),
        ("prompt_cache_key", "remove prompt_cache"),
        ("temperature", "remove it"),
        ("top_k", "remove it from extra"),
    ],
)
def test_the_setting_that_a_parameter_comes_from_is_named(parameter: str, advice: str) -> None:
    assert settled("", parameter) == f"the endpoint does not take {parameter}: {advice}"
