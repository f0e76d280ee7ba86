"""The usage that an endpoint reports, or else an estimate."""

from typing import Any

from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.token_estimates import request_tokens, text_tokens

# Of one request: more than any model takes.
_LIMIT_TOKENS = 10**9


def usage_of(reported: Any, request: InferenceRequest, written_chars: int) -> Usage:
    """Return the reported usage; missing or invalid numbers are estimated.

    Endpoints are not believed more than they can know: no more input is cached than there is, and no more output is
    reasoning. Tokens of a total that is more than both are reasoning that the endpoint leaves out of the output.
    """
    reported = reported if isinstance(reported, dict) else {}
    sent, written = _number(reported, "prompt_tokens") or 0, _number(reported, "completion_tokens") or 0
    reasoning = _number(reported, "completion_tokens_details", "reasoning_tokens") or 0
    if sent and written:
        left_out = (_number(reported, "total_tokens") or 0) - sent - written
        if left_out > 0:
            written, reasoning = written + left_out, max(reasoning, left_out)
    estimated_sent = 0 if sent else request_tokens(request)
    estimated_written = 0 if written else text_tokens(written_chars)
    sent, written = sent + estimated_sent, written + estimated_written
    return Usage(
        input_tokens=sent,
        cached_input_tokens=min(_cached_tokens(reported), sent),
        output_tokens=written,
        reasoning_tokens=min(reasoning, written),
        estimated_tokens=estimated_sent + estimated_written,
    )


def _cached_tokens(reported: dict[str, Any]) -> int:
    places = (
        ("prompt_tokens_details", "cached_tokens"),
        ("prompt_cache_hit_tokens",),  # DeepSeek
        ("cache_read_input_tokens",),  # Anthropic's name, which proxies pass on
    )
    return next((tokens for place in places if (tokens := _number(reported, *place))), 0)


def _number(reported: dict[str, Any], *place: str) -> int | None:
    """Return a number of tokens, which may be inside another object; None if it is missing or cannot be one."""
    value: Any = reported
    for name in place:
        value = value.get(name) if isinstance(value, dict) else None
    # A negative number would increase a budget.
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _LIMIT_TOKENS
    return int(value) if known else None
