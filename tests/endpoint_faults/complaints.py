"""Complaints: HTTP errors as endpoints are known to word them, each with a secret that it repeats."""

from __future__ import annotations

import json
from typing import Any

from agent.errors import ContextLengthExceeded, ModelError, ModelRefused, ModelUnavailable
from tests.misbehaving_endpoint import SECRETS, Fault, answering

_INVALID = "invalid_request_error"


def _fault(
    name: str,
    status: int,
    body: Any,
    *says: str,
    setting: str = "",
    error: type[ModelError] = ModelRefused,
    **headers: str,
) -> Fault:
    return Fault(name=name, play=answering(body, status, **headers), error=error, says=says, setting=setting)


def _openai(message: str, kind: str = _INVALID, code: Any = None, param: Any = None) -> dict[str, Any]:
    return {"error": {"message": f"{message} {SECRETS}", "type": kind, "param": param, "code": code}}


def _unsupported(parameter: str) -> Fault:
    said = f"Unsupported parameter: '{parameter}' is not supported with this model."
    body = _openai(said, code="unsupported_parameter", param=parameter)
    return _fault(f"openai: {parameter} unsupported", 400, body, said, f"does not take {parameter}", setting=parameter)


_TEMPERATURE = "Unsupported value: 'temperature' does not support 0.2. Only the default (1) value is supported."
_DETAIL = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": f"Extra inputs {SECRETS}", "input": 1}]
_LITELLM = (
    "litellm.BadRequestError: OpenAIException - Error code: 400 - {'error': {'message': \"Unsupported parameter: "
    "'reasoning_effort' is not supported.\"}}\nReceived Model Group=m\nAvailable Model Group Fallbacks=None"
)
_RAW = json.dumps({"error": {"message": "tool_choice must be auto", "code": "invalid"}})
_VLLM = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
_ROLES = "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
_QUOTA = "You exceeded your current quota, please check your plan and billing details."
_RATE = "Rate limit reached for m in organization o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000."

OPENAI = (
    _fault(
        "openai: max_tokens unsupported",
        400,
        _openai(
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            code="unsupported_parameter",
            param="max_tokens",
        ),
        "Use 'max_completion_tokens' instead",
        setting="max_tokens_name",
    ),
    *map(_unsupported, ("temperature", "parallel_tool_calls", "reasoning_effort", "stop")),
    _fault(
        "openai: a value of temperature unsupported",
        400,
        _openai(_TEMPERATURE, code="unsupported_value", param="temperature"),
        "Only the default (1) value is supported",
        setting="temperature",
    ),
    _fault("openai: temperature too high", 400, _openai("temperature must be at most 2"), setting="temperature"),
    _fault(
        "openai: max_tokens too large",
        400,
        _openai(
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", param="max_tokens"
        ),
        "supports at most 16384",
        setting="max_output_tokens",
    ),
    _fault(
        "openai: the messages too long",
        400,
        _openai("This model's maximum context length is 8192 tokens.", code="context_length_exceeded"),
        "maximum context length is 8192",
        "do not fit the context window",
        error=ContextLengthExceeded,
        setting="context_window_tokens",
    ),
    _fault(
        "openai: a wrong key",
        401,
        _openai("Incorrect API key provided:", code="invalid_api_key"),
        "Incorrect API key provided: with [the API key]",
        setting="api_key_env",
    ),
    _fault(
        "openai: no such model",
        404,
        _openai("The model `m` does not exist or you do not have access to it.", code="model_not_found"),
        "has no model 'm'",
        setting="name",
    ),
    _fault(
        "openai: an organization that may not stream",
        400,
        _openai("Your organization must be verified to stream this model.", code="unsupported_value", param="stream"),
        setting="stream",
    ),
    _fault(
        "openai: a model of the other API",
        404,
        _openai("This model is only supported in v1/responses and not in v1/chat/completions."),
        setting="api",
    ),
    _fault(
        "openai: the quota used up", 429, _openai(_QUOTA, "insufficient_quota", "insufficient_quota"), "no credit left"
    ),
    _fault(
        "openai: too many tokens at once",
        429,
        _openai(_RATE, "tokens", "rate_limit_exceeded"),
        "Rate limit reached",
        "try again in 7 s",
        error=ModelUnavailable,
        setting="concurrent_requests",
        retry_after="7",
    ),
)

OTHERS = (
    _fault(
        "azure: no such deployment",
        404,
        {
            "error": {
                "code": "DeploymentNotFound",
                "message": f"The API deployment for this resource does not exist. {SECRETS}",
            }
        },
        "no such deployment",
        setting="name",
    ),
    _fault(
        "azure: no such version",
        404,
        {"error": {"code": "404", "message": f"Resource not found {SECRETS}"}},
        "Resource not found",
        setting="query",
    ),
    _fault(
        "azure: a missing version",
        400,
        {"error": {"code": "BadRequest", "message": f"Missing required query parameter: api-version {SECRETS}"}},
        setting="query",
    ),
    _fault(
        "azure: a content filter",
        400,
        _openai("The response was filtered due to Azure OpenAI's content management policy.", code="content_filter"),
        "content filter refused",
    ),
    _fault(
        "azure: an unknown argument",
        400,
        _openai("Unrecognized request argument supplied: max_completion_tokens"),
        setting="max_tokens_name",
    ),
    _fault(
        "anthropic: no credit",
        400,
        {
            "type": "error",
            "error": {"type": _INVALID, "message": f"Your credit balance is too low to access the API. {SECRETS}"},
        },
        "no credit left",
        setting="api_key_env",
    ),
    _fault(
        "anthropic: overloaded",
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": f"Overloaded {SECRETS}"}},
        "Overloaded",
        "down or overloaded",
        error=ModelUnavailable,
    ),
    _fault(
        "anthropic: extra inputs",
        400,
        {"type": "error", "error": {"type": _INVALID, "message": f"seed: Extra inputs are not permitted {SECRETS}"}},
        "does not take seed: remove it",
        setting="seed",
    ),
    _fault(
        "gemini: an unknown field",
        400,
        [{"error": {"code": 400, "message": f'Unknown name "parallel_tool_calls": Cannot find field. {SECRETS}'}}],
        'HTTP 400: Unknown name "parallel_tool_calls"',
        setting="parallel_tool_calls",
    ),
    _fault(
        "gemini: a wrong key",
        400,
        [{"error": {"code": 400, "message": f"API key not valid. {SECRETS}", "status": "INVALID_ARGUMENT"}}],
        setting="api_key_env",
    ),
    _fault(
        "gemini: the quota of the minute",
        429,
        [{"error": {"code": 429, "message": f"{_QUOTA} {SECRETS}", "status": "RESOURCE_EXHAUSTED"}}],
        error=ModelUnavailable,
        setting="concurrent_requests",
    ),
    _fault(
        "vllm: no tool calls",
        400,
        {"object": "error", "message": f"{_VLLM} {SECRETS}", "code": 400},
        setting="tool_choice",
    ),
    _fault(
        "vllm: a template without tools", 400, {"object": "error", "message": f"{_ROLES} {SECRETS}"}, setting="name"
    ),
    _fault(
        "ollama: no tool calls",
        400,
        _openai("registry.ollama.ai/library/gemma:2b does not support tools"),
        setting="name",
    ),
    _fault(
        "ollama: no such model",
        404,
        _openai('model "m" not found, try pulling it first'),
        "pull it there",
        setting="name",
    ),
    _fault("litellm: an answer in an answer", 400, _openai(_LITELLM, code="400"), setting="reasoning_effort"),
    _fault(
        "mistral: a list of details",
        422,
        {"object": "error", "message": {"detail": _DETAIL}},
        "Extra inputs",
        setting="seed",
    ),
    _fault(
        "openrouter: no tool calls",
        404,
        {"error": {"message": f"No endpoints found that support tool use. {SECRETS}", "code": 404}},
        "cannot call tools",
        setting="name",
    ),
    _fault(
        "openrouter: what a provider says",
        400,
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": f"{_RAW} {SECRETS}"}}},
        "Provider returned error",
        "tool_choice must be auto",
        setting="tool_choice",
    ),
    _fault(
        "openrouter: privacy",
        404,
        {"error": {"message": f"No endpoints found matching your data policy. {SECRETS}", "code": 404}},
        setting="extra",
    ),
    _fault(
        "llama.cpp: still loading",
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        "Loading model",
        "still loading the model",
        error=ModelUnavailable,
    ),
    _fault(
        "llama.cpp: no tool calls",
        500,
        {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}},
        "start it with --jinja",
    ),
    _fault(
        "llama.cpp: no stream with tools",
        500,
        {"error": {"code": 500, "message": f"Cannot use tools with stream {SECRETS}", "type": "server_error"}},
        setting="stream",
    ),
    _fault(
        "fastapi: a missing field", 422, {"detail": [{"loc": ["body", "x"], "msg": f"required {SECRETS}"}]}, "required"
    ),
)

_HTML = f"<html><head><title>%s</title></head><body><h1>nginx</h1>{SECRETS}</body></html>"

STATUS = (
    _fault("401 without words", 401, "", "HTTP 401", setting="api_key_env"),
    _fault("402", 402, _openai("Insufficient credits", code=402), "no credit left", setting="api_key_env"),
    _fault(
        "403 as a page", 403, _HTML % "Attention Required! | Cloudflare", "Attention Required!", setting="api_key_env"
    ),
    _fault("404 as a page", 404, _HTML % "404 Not Found", "404 Not Found", setting="base_url"),
    _fault("405", 405, {"detail": f"Method Not Allowed {SECRETS}"}, "Method Not Allowed", setting="base_url"),
    _fault("408", 408, "", setting="timeout_s", error=ModelUnavailable),
    _fault("409", 409, {"message": f"a model is being swapped {SECRETS}"}, "being swapped", error=ModelUnavailable),
    _fault(
        "413",
        413,
        _HTML % "413 Request Entity Too Large",
        "Request Entity Too Large",
        error=ContextLengthExceeded,
        setting="context_window_tokens",
    ),
    _fault("415", 415, f"Unsupported Media Type {SECRETS}", setting="base_url"),
    _fault("429 without a time", 429, "slow down", "try again later", error=ModelUnavailable),
    _fault(
        "429 with a date",
        429,
        "slow down",
        "try again in 30 s",
        retry_after="Sun, 09 Sep 2001 01:47:10 GMT",
        error=ModelUnavailable,
    ),
    _fault(
        "429 with milliseconds", 429, "slow down", "try again in 0.25 s", retry_after_ms="250", error=ModelUnavailable
    ),
    _fault(
        "429 with a time of no sense",
        429,
        "slow down",
        "try again later",
        retry_after=f"soon {SECRETS}",
        error=ModelUnavailable,
    ),
    _fault(
        "429 with a time beyond bounds",
        429,
        "slow down",
        "try again in 300 s",
        retry_after="1e99",
        error=ModelUnavailable,
    ),
    _fault("499", 499, "", setting="timeout_s", error=ModelUnavailable),
    _fault(
        "500 with a trace",
        500,
        f"Traceback:\n  File x\r\n\x1b[31mRuntimeError\x00\u2028{SECRETS}",
        "RuntimeError",
        error=ModelUnavailable,
    ),
    _fault("500 of many words", 500, "\n".join(["words"] * 20_000), "words words", error=ModelUnavailable),
    _fault(
        "502 as a page", 502, _HTML % "502 Bad Gateway", "502 Bad Gateway", setting="base_url", error=ModelUnavailable
    ),
    _fault(
        "503", 503, f"no healthy upstream {SECRETS}", "no healthy upstream", setting="base_url", error=ModelUnavailable
    ),
    _fault("504 as a page", 504, _HTML % "504 Gateway Time-out", setting="timeout_s", error=ModelUnavailable),
    _fault("530", 530, f"error code: 1033 {SECRETS}", "error code: 1033", setting="base_url", error=ModelUnavailable),
    _fault("524", 524, f"error code: 524 {SECRETS}", setting="timeout_s", error=ModelUnavailable),
    _fault("a status that there is none of", 799, f"what {SECRETS}", "HTTP 799", error=ModelUnavailable),
)

COMPLAINTS = (*OPENAI, *OTHERS, *STATUS)
