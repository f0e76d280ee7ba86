"""The JSON text that an event's payload is stored as.

The text is strict JSON that any database stores, short enough to send to watchers. A number that is not finite becomes
null, half of a surrogate pair U+FFFD. Values that are too long are cut, with a note. An entry that is not JSON, or too
long even when cut, is listed under "not_stored" instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from agent.frozen import storable_text

PAYLOAD_LIMIT_CHARS = 1_000_000
"""At most 4,000,000 bytes of UTF-8: below gRPC's default message limit of 4 MiB."""

# The limits for the parts of a payload that is too long: the first that makes it fit applies.
_PART_LIMITS_CHARS = (400_000, 16_384, 1_024)
_LEAST_PART_CHARS = 4_096
_MEMBERS_LIMIT = 1000
_DEPTH_LIMIT = 5

_NO_JSON = (ValueError, TypeError, RecursionError)


def payload_json(payload: Mapping[str, JsonValue]) -> str:
    """Return the text of a payload. It never raises."""
    try:
        text = _json(payload)
    except _NO_JSON:
        payload = _storable_entries(payload)
        text = _json(payload)
    for limit_chars in _PART_LIMITS_CHARS:
        if len(text) <= PAYLOAD_LIMIT_CHARS:
            return text
        text = _json({key: _cut(value, limit_chars) for key, value in payload.items()})
    if len(text) > PAYLOAD_LIMIT_CHARS:
        short = {key: value for key, value in payload.items() if len(_json(value)) <= _LEAST_PART_CHARS}
        text = _json({**short, "not_stored": [key for key in payload if key not in short]})
    return text


def _json(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or infinity; another error comes again
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False)
    return storable_text(text)


def _storable_entries(payload: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    storable: dict[str, JsonValue] = {}
    lost: list[JsonValue] = []
    for key, value in payload.items():
        try:
            storable[key] = json.loads(_json(value))
        except _NO_JSON:
            lost.append(key)
    return {**storable, "not_stored": lost}


def _cut(value: JsonValue, limit_chars: int, depth: int = 1) -> JsonValue:
    """Return a value whose texts fit the limit; a collection with too many members becomes a note."""
    if isinstance(value, str) and len(value) > limit_chars:
        return f"{value[:limit_chars]}... [cut: {len(value)} characters]"
    if not isinstance(value, dict | list) or len(_json(value)) <= limit_chars:
        return value
    if len(value) > _MEMBERS_LIMIT or depth == _DEPTH_LIMIT:
        word = f"[cut: {len(value)} entries]"
        return {"not_stored": word} if isinstance(value, dict) else [word]
    if isinstance(value, dict):
        return {key: _cut(member, limit_chars, depth + 1) for key, member in value.items()}
    return [_cut(member, limit_chars, depth + 1) for member in value]
