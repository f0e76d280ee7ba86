"""The usage that an endpoint reports, or else an estimate."""

import json
from collections.abc import Mapping
from typing import Any

from agent.messages import Usage
from agent.models.model import CHARS_PER_TOKEN, file_tokens

# Of one request: more than any model takes.
_LIMIT_TOKENS = 10**9
# Where a request has a file, of either wire.
_FILE_FIELDS = ("url", "image_url", "file_data")


def usage_of(reported: Any, body: Mapping[str, Any], written_chars: int) -> Usage:
    """Return the reported usage; missing or invalid numbers are estimated as characters / 4.

    Endpoints are not believed more than they can know: no more input is cached than there is, and no more output is
    reasoning. Tokens of a total that is more than both are reasoning that the endpoint leaves out of the output.
    """
    reported = reported if isinstance(reported, dict) else {}
    parts = (body[part] for part in ("messages", "input", "instructions", "tools") if part in body)
    sent_chars = sum(map(_chars, parts))
    input_tokens, output_tokens = _number(reported, "prompt_tokens"), _number(reported, "completion_tokens")
    reasoning = _number(reported, "completion_tokens_details", "reasoning_tokens") or 0
    if input_tokens and output_tokens:
        left_out = (_number(reported, "total_tokens") or 0) - input_tokens - output_tokens
        if left_out > 0:
            output_tokens, reasoning = output_tokens + left_out, max(reasoning, left_out)
    estimates = (-(-sent_chars // CHARS_PER_TOKEN), -(-written_chars // CHARS_PER_TOKEN))
    pairs = list(zip((input_tokens, output_tokens), estimates, strict=True))
    sent, written = (known or estimate for known, estimate in pairs)
    return Usage(
        input_tokens=sent,
        cached_input_tokens=min(_cached_tokens(reported), sent),
        output_tokens=written,
        reasoning_tokens=min(reasoning, written),
        estimated_tokens=sum(estimate for known, estimate in pairs if not known),
    )


def _chars(sent: Any) -> int:
    """Return the characters of a part of a request as JSON; a file counts as many as its tokens are worth."""
    tokens: list[int] = []
    text = json.dumps(_without_files(sent, tokens), ensure_ascii=False)
    return len(text) + sum(tokens) * CHARS_PER_TOKEN


def _without_files(sent: Any, tokens: list[int]) -> Any:
    if isinstance(sent, list):
        return [_without_files(one, tokens) for one in sent]
    if not isinstance(sent, dict):
        return sent
    kept = {}
    for name, value in sent.items():
        is_file = name in _FILE_FIELDS and isinstance(value, str) and value.startswith("data:")
        if is_file:
            tokens.append(file_tokens(value[len("data:") :], len(value) * 3 // 4))
        kept[name] = "" if is_file else _without_files(value, tokens)
    return kept


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
