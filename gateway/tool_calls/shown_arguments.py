"""The arguments of a call as the journal keeps them: without secrets, and cut."""

import json

from pydantic import JsonValue

from agent.tool_call import JudgedCall
from gateway.redaction import Redactor
from gateway.redaction.finders import RedactionFailed
from gateway.redaction.redactor import WITHHELD

# Longer arguments are cut; the digest covers all of them.
_LIMIT_CHARS = 16_384


async def shown_arguments(redactor: Redactor, judged: JudgedCall) -> str:
    """Return the arguments without secrets, found in a turn where they are long."""
    size_bytes = len(judged.canonical) + len(judged.call.raw_arguments)
    return await redactor.work_on(size_bytes, _shown, redactor, judged)


def _shown(redactor: Redactor, judged: JudgedCall) -> str:
    """Look only at what is kept, and at a margin, so that a secret which is cut is still found."""
    arguments, looked_at_chars = judged.call.arguments, _LIMIT_CHARS + redactor.margin_bytes
    if arguments is None:
        return redactor.shown(judged.call.raw_arguments[:looked_at_chars])[:_LIMIT_CHARS]
    start: JsonValue = arguments
    if len(judged.canonical) > looked_at_chars:
        start = _Start(looked_at_chars).of(arguments)
    try:
        shown = redactor.json(start)
    except RedactionFailed:
        shown = WITHHELD
    text = judged.canonical[:_LIMIT_CHARS].decode() if shown is start else json.dumps(shown)
    return text[:_LIMIT_CHARS]


class _Start:
    """Copies the beginning of a JSON value, in the order of canonical JSON.

    Each value counts as one character, and so does each character of its texts.
    """

    def __init__(self, chars: int) -> None:
        self._left = chars

    def of(self, value: JsonValue) -> JsonValue:
        self._left -= 1
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            members: list[JsonValue] = []
            for member in value:
                if self._left <= 0:
                    break
                members.append(self.of(member))
            return members
        if isinstance(value, dict):
            start: dict[str, JsonValue] = {}
            for key in sorted(value):
                if self._left <= 0:
                    break
                start.setdefault(self._text(key), self.of(value[key]))
            return start
        return value

    def _text(self, text: str) -> str:
        taken = text[: max(self._left, 0)]
        self._left -= len(taken)
        return taken
