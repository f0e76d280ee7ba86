"""The usage that an endpoint reports, or else an estimate."""

import json
from collections.abc import Mapping
from typing import Any

from agent.messages import Usage
from agent.models.model import CHARS_PER_TOKEN, file_tokens

# Of one request: more than any model takes.
_LIMIT_TOKENS = 10**9


def usage_of(reported: Any, body: Mapping[str, Any], written_chars: int) -> Usage:
    """Return the reported usage; missing or invalid numbers are estimated as characters / 4.

    Endpoints are not believed more than they can know: no more input is cached than there is, and no more output is
    reasoning. Tokens of a total that is more than both are reasoning that the endpoint leaves out of the output.
    """
    reported = reported if isinstance(reported, dict) else {}
    parts = [one for part in ("messages", "input", "tools") for one in body.get(part, [])]
    sent_chars = sum(map(_chars, parts)) + len(body.get("instructions", ""))
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


def _chars(sent: Mapping[str, Any]) -> int:
    """Return the characters of a message or a tool as JSON; a file counts as many as its tokens are worth."""
    content = sent.get("content")
    if not isinstance(content, list):
        return len(json.dumps(sent, ensure_ascii=False))
    uris = [uri for part in content if (uri := _uri_of(part))]
    texts = {**sent, "content": [part for part in content if not _uri_of(part)]}
    tokens = sum(file_tokens(uri[len("data:") :], len(uri) * 3 // 4) for uri in uris)
    return len(json.dumps(texts, ensure_ascii=False)) + tokens * CHARS_PER_TOKEN


def _uri_of(part: Mapping[str, Any]) -> str:
    """Return the data of a file, "" for any other part, such as those that an endpoint gets back."""
    if part.get("type") == "image_url":
        return str(part["image_url"]["url"])
    return str(part["file"]["file_data"]) if part.get("type") == "file" else ""


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
