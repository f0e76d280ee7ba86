"""What others said, made safe to print.

Everything in an event was said by a model or by a sandbox, so nothing of it reaches the terminal as it is: control and
direction characters become visible signs, and rich never reads it as markup.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

LINE_CHARS = 400
ARGUMENT_CHARS = 160

# The arguments that say what a call is about, without their names.
SUBJECTS = ("command", "path")
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: object) -> str:
    """Return text that moves no cursor, hides nothing and can always be encoded; tabs and newlines stay."""
    pictured = str(text).replace("\r\n", "\n").translate(_PICTURES)
    return "".join(
        character if character in "\t\n" or unicodedata.category(character) not in _UNPRINTABLE else "\ufffd"
        for character in pictured
    )


def one_line(text: object, limit_chars: int = LINE_CHARS) -> str:
    """Return printable text on one line, cut with a sign when it is longer than the limit."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit_chars else f"{line[: limit_chars - 1]}…"


def short_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Return the arguments of a call as a person would say them: the command or the path first, the rest by name."""
    if arguments is None:
        return "(arguments that are no JSON object)"
    rest = dict(arguments)
    first = [one_line(rest.pop(key), ARGUMENT_CHARS) for key in SUBJECTS if key in rest]
    shown = [f"{one_line(key, 40)}={_short_value(value)}" for key, value in rest.items()]
    return " ".join([*first, *shown])


def _short_value(value: object) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False), ARGUMENT_CHARS)
    return text if len(text) <= 60 else f"{text[:59]}…"


def output_line(line: str, limit_chars: int) -> str:
    """Return one line of output with its spaces kept, printable, and cut with a sign when it is longer."""
    shown = printable(line[:LINE_CHARS]).expandtabs(4)
    return shown if len(shown) <= limit_chars else f"{shown[: limit_chars - 1]}…"


def stop_line(stop: Mapping[str, Any] | None) -> str:
    """Return why a run stopped: the reason, and whose it is."""
    if not stop:
        return "nothing said why"
    return one_line(f"{stop.get('reason')} (hook {stop.get('hook')}, rule {stop.get('rule')})")


def kept_out_bytes(evicted: Mapping[str, Any], content: object) -> int:
    """Return how much of an evicted result the model was spared."""
    shown_bytes = len(str(content or "").encode("utf-8", "replace"))
    return max(0, int(evicted.get("size_bytes") or 0) - shown_bytes)
