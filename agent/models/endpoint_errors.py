"""What it means when an endpoint refuses: which ModelError it is, and how long the endpoint asks to be left alone.

What an endpoint says is shown to people and to models, so it is bounded, and an API key that it echoes is taken out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from agent.errors import ContextLengthExceeded, ModelError, ModelRefused, ModelUnavailable
from agent.storable import storable_text

_LIMIT_CHARS = 2000
_LIMIT_RETRY_AFTER_S = 300.0

# Each line is how some endpoint says that the messages do not fit.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size"
    r"|maximum (context|prompt) length"
    r"|context (window|length|size)"
    r"|(prompt|input|request) is too long"
    r"|too many (input |prompt )?tokens"
    r"|exceeds the maximum number of tokens"
    r"|reduce the length of the messages",
    re.IGNORECASE,
)


def said_by(message: str, api_key: str) -> str:
    """Return what an endpoint said, fit to be shown."""
    if len(api_key) >= 8:  # a shorter one is no secret, and may be a word
        message = message.replace(api_key, "[the API key]")
    message = storable_text(message)
    return message if len(message) <= _LIMIT_CHARS else f"{message[:_LIMIT_CHARS]}... ({len(message)} characters)"


def status_error(
    status: int, said: str, *, code: str | None, headers: Mapping[str, str], now_s: float, model: str
) -> ModelError:
    """Return the error of an HTTP status; `said` begins with the endpoint, `now_s` is the time since the epoch."""
    if is_too_long(said, code, status):
        return ContextLengthExceeded(f"{said}; the messages do not fit the context window: send fewer or shorter ones")
    match status:
        case 401 | 403:
            return ModelRefused(f"{said}; check the model's API key and what it may use")
        case 404:
            return ModelRefused(f"{said}; check base_url and the model's name {model!r}")
        case 408 | 409 | 429:
            return _unavailable(said, headers, now_s)
        case _ if status >= 500:
            return _unavailable(said, headers, now_s)
        case _:
            return ModelRefused(f"{said}; the request does not suit this endpoint")


def is_too_long(said: str, code: str | None, status: int | None = None) -> bool:
    """Return whether an endpoint says that the messages do not fit; `status` is None in the middle of a stream.

    A rate limit is said in similar words, but not with these statuses.
    """
    if code == "context_length_exceeded" or status == 413:
        return True
    return status in (400, 422, None) and _TOO_LONG.search(said) is not None


def _unavailable(said: str, headers: Mapping[str, str], now_s: float) -> ModelUnavailable:
    asked_s = retry_after_s(headers, now_s)
    when = "try again later" if asked_s is None else f"try again in {asked_s:g} s"
    return ModelUnavailable(f"{said}; {when}", retry_after_s=asked_s)


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return how long the endpoint asks to be left alone, from 0 to 300 s; None when it does not say.

    `headers` knows its names in lower case. Retry-After is a number of seconds or a date.
    """
    asked_s = _number(headers.get("retry-after-ms"))
    if asked_s is not None:
        asked_s /= 1000
    else:
        said = headers.get("retry-after")
        asked_s = _number(said)
        if asked_s is None and said is not None:
            asked_s = _seconds_until(said, now_s)
    return None if asked_s is None else min(max(asked_s, 0.0), _LIMIT_RETRY_AFTER_S)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _seconds_until(date: str, now_s: float) -> float | None:
    try:
        then = parsedate_to_datetime(date)
        # HTTP dates are in GMT, also those that do not say so.
        return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() - now_s
    except (ValueError, OverflowError):
        return None
