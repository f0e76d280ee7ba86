"""Errors of an endpoint: its message, the ModelError for it, and its Retry-After.

People and models see an endpoint's message, so it is bounded, and credentials in it are removed.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from agent.errors import ContextLengthExceeded, ModelError, ModelRefused, ModelUnavailable
from agent.frozen import storable_text
from agent.models.endpoint_meanings import meaning, settled
from agent.tools.intake import values_in

_LIMIT_CHARS = 1000
_LIMIT_VALUES = 100_000
_LOOKED_AT_CHARS = 64 * 1024
_WORD_CHARS = 200

# How endpoints say that the messages are too long.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size"
    r"|maximum (context|prompt) length"
    r"|context (window|length|size|limit)"
    r"|(prompt|input|request) is too long"
    r"|input length \d* ?exceeds"
    r"|input tokens (\(\d+\) )?(exceed|has exceeded|have exceeded)"
    r"|too many (input |prompt )?tokens"
    r"|exceeds the maximum number of tokens"
    r"|reduce the length of the (messages|input)",
    re.IGNORECASE,
)
# A few endpoints answer 500 to an invalid request.
_INVALID = re.compile(r"validation error|['\"]loc['\"]: ?[\[(]", re.IGNORECASE)
_NO_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "insufficient_credits"})
_PASSING = frozenset({408, 409, 425, 429, 499})
_FINAL_KINDS = frozenset({"invalid_request_error", "authentication_error", "permission_error", "not_found_error"})

_UNSUPPORTED_CODES = frozenset({"unsupported_parameter", "unknown_parameter", "unsupported_value"})
_QUOTE = r"[\\'\"`\[({]"  # before a name; a quoted answer has its quotes escaped
_SENT = (
    "max_tokens|max_completion_tokens|max_output_tokens|temperature|top_p|seed|stop|reasoning_effort|tool_choice"
    "|parallel_tool_calls|response_format|stream_options|prompt_cache_key|cache_control"
)
_ODD = "unsupported|unknown|unrecognized|unexpected|extraneous|extra"
_KIND = "param|parameter|argument|name|field|key|property|value"
_NOT_TAKEN = " is (?:unsupported|deprecated|not (?:supported|permitted|allowed|recognized|a valid))"
_NAMED = rf"(?:: ?{_QUOTE}*| ?{_QUOTE}+)(?P<name>\w+)(?![\w\[])"
# How endpoints say that they do not take a parameter, each with its name.
_UNSUPPORTED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:{_ODD}) (?:request |keyword )?(?:{_KIND})s?(?: supplied)?{_NAMED}",
        rf"does not support (?:the )?parameters?:? {_QUOTE}*(?P<name>\w+)",
        rf"(?:parameter|argument)s? not supported[\w ]{{0,60}}{_NAMED}",
        rf"(?:parameter|argument|property|field|option) {_QUOTE}+(?P<name>\w+)[\\'\"`]*{_NOT_TAKEN}",
        rf"\b(?P<name>{_SENT})[\\'\"`]*{_NOT_TAKEN}",
        r"(?<![\w.])(?P<name>\w+):?\s+extra inputs are not permitted",
        rf"extra inputs are not permitted, field{_NAMED}",
        rf"extra_forbidden.{{1,40}}?loc[\\'\"]*: ?[\[(]{_QUOTE}*body[\\'\"]*, ?{_QUOTE}*(?P<name>\w+)[\\'\"]*[)\]]",
    )
)


class UnusableAnswer(Exception):
    """An answer that cannot be used. str() completes "the endpoint sent ..."."""


def parsed(text: str) -> Any:
    """Return an endpoint's JSON. Raises UnusableAnswer if it is invalid or too expensive to parse."""
    if len(text) > _LIMIT_VALUES and values_in(text) > _LIMIT_VALUES:
        raise UnusableAnswer(f"JSON with more than {_LIMIT_VALUES:,} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableAnswer(f"an answer that is not JSON: {plain(text)!r}") from error


@dataclass(frozen=True)
class Complaint:
    """An endpoint's error message. `status` is the HTTP status in the body, `parameter` what it is about, if given."""

    words: str
    code: str = ""
    kind: str = ""
    status: int | None = None
    parameter: str = ""


def complaint_of(text: str) -> Complaint:
    """Return the error in the body of an HTTP error, whatever its format."""
    with suppress(ValueError, RecursionError):
        if found := complaint_in(json.loads(text)):
            return found
    return Complaint(plain(text))


def complaint_in(answer: Any) -> Complaint | None:
    """Return the error that a JSON document is or has, also in its first choice or its response, if any.

    Gemini wraps it in a list.
    """
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, Mapping):
        return None
    error = answer.get("error")
    choices = answer.get("choices")
    if not error and isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        error = choices[0].get("error")
    if not error and isinstance(response := answer.get("response"), Mapping):
        error = response.get("error")
    if not error and "error" in (answer.get("object"), answer.get("type")):
        error = answer
    if not error and choices is None:
        error = next((answer[name] for name in ("message", "detail", "errors", "msg") if answer.get(name)), None)
    if not error:
        return None
    if not isinstance(error, Mapping):
        return Complaint(_words(error), status=_status(answer.get("code")))
    words = _words(error.get("message") or error)
    behind = error.get("metadata")
    if isinstance(behind, Mapping) and behind.get("raw"):  # a router quotes the endpoint behind it
        words = f"{words}: {_words(behind['raw'])}"
    code = error.get("code")
    status = _status(code) or _status(error.get("status"))
    return Complaint(words, _word(code), _word(error.get("type")), status, _word(error.get("param")))


def unsupported_parameter(complaint: Complaint) -> str | None:
    """Return the parameter of the request that the endpoint does not take, or not with the value that was sent.

    None for any other complaint, also for one about a parameter that is taken but too large.
    """
    if complaint.code in _UNSUPPORTED_CODES and re.fullmatch(r"\w{1,64}", complaint.parameter):
        return complaint.parameter
    if "encrypted content is not supported" in complaint.words.lower():  # OpenAI's, of a model that does not reason
        return "include"
    for pattern in _UNSUPPORTED:
        if found := pattern.search(complaint.words):
            return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found["name"][:64]).lower()  # some write reasoningEffort
    return None


def _words(said: Any) -> str:
    return (said if isinstance(said, str) else json.dumps(said))[:_LOOKED_AT_CHARS]


def _word(said: Any) -> str:
    return said[:_WORD_CHARS] if isinstance(said, str) else ""


def _status(code: Any) -> int | None:
    try:
        status = int(code) if isinstance(code, int | str) else 0
    except ValueError:
        return None
    return status if 400 <= status < 600 else None


def is_html(text: str) -> bool:
    """Return whether a text is an HTML page."""
    return re.match(r"\s*<(!doctype html|html|head|body)\b", text, re.IGNORECASE) is not None


def plain(text: str) -> str:
    """Return a text on one line, and an HTML page without its tags."""
    text = text[:_LOOKED_AT_CHARS]
    if is_html(text):
        tags = (tag.partition(">") for tag in text.split("<"))
        text = " ".join(after for tag, _, after in tags if not tag.lower().startswith(("script", "style")))
    return " ".join(text.split())


def said_by(message: str, secrets: Collection[str], limit_chars: int = _LIMIT_CHARS) -> str:
    """Return an endpoint's message on one line, without secrets, shortened."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 8:  # a shorter one may be a word
            for written in {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}:
                message = re.sub(re.escape(written), "[the API key]", message, flags=re.IGNORECASE)
    message = " ".join("".join(char if char.isprintable() else " " for char in storable_text(message)).split())
    return message if len(message) <= limit_chars else f"{message[:limit_chars]}... ({len(message)} characters)"


def endpoint_error(
    complaint: Complaint, said: str, *, status: int | None, headers: Mapping[str, str], now_s: float, model: str
) -> ModelError:
    """Return the ModelError for an endpoint's error, which `said` describes for people.

    `status` is None if the endpoint gives none, as in the middle of a stream. `now_s` is the time since the epoch.
    """
    if _is_too_long(complaint, status):
        less = "send fewer or shorter ones, or set context_window_tokens to its size, so that they are summarized"
        return ContextLengthExceeded(f"{said}; the messages do not fit the context window: {less}")
    unsupported = unsupported_parameter(complaint)
    words = f"{complaint.code} {complaint.kind} {complaint.parameter!r} {complaint.words}"
    means = meaning(words, unsupported, 400 if status is None and complaint.kind in _FINAL_KINDS else status)
    line = f"{said}; {means.replace('{model}', repr(model))}"
    if status in _PASSING or (status or 0) > 500:
        final = not _NO_CREDIT.isdisjoint((complaint.code, complaint.kind))
    elif status in (None, 500):
        invalid = complaint.kind in _FINAL_KINDS if status is None else _INVALID.search(complaint.words) is not None
        final = invalid or settled(words, unsupported) is not None
    else:
        final = True
    if final:
        return ModelRefused(line)
    asked_s = retry_after_s(headers, now_s)
    when = "try again later" if asked_s is None else f"try again in {asked_s:g} s"
    return ModelUnavailable(f"{line}; {when}", retry_after_s=asked_s)


def _is_too_long(complaint: Complaint, status: int | None) -> bool:
    """Return whether the messages are too long. Rate limits have similar messages, but other statuses."""
    words = f"{complaint.code} {complaint.kind} {complaint.words}"
    said = status in (400, 422, None) and _TOO_LONG.search(words) is not None
    return said or status == 413 or complaint.code == "context_length_exceeded"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the Retry-After of lower-case headers, in seconds or a date, as 0 to 300 s; None if missing."""
    readings: tuple[tuple[str, Callable[[str], float]], ...] = (
        ("retry-after-ms", lambda said: float(said) / 1000),
        ("retry-after", float),
        ("retry-after", lambda said: _timestamp_s(said) - now_s),
    )
    for header, read in readings:
        with suppress(ValueError, OverflowError):
            asked_s = read(headers.get(header, ""))
            if not math.isnan(asked_s):
                return min(max(asked_s, 0.0), 300.0)
    return None


def _timestamp_s(date: str) -> float:
    then = parsedate_to_datetime(date)
    return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp()  # HTTP dates are always in GMT
