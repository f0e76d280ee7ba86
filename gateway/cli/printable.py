"""Untrusted text, shortened for a terminal: a line, the arguments of a call, the reason why a run stopped.

Everything printed passes `printable` anyway (terminal.py); here it is called first so that lengths are right.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.support.printable_text import printable

LINE_CHARS = 400
ARGUMENT_CHARS = 160

# The arguments that are printed first and without their names.
SUBJECTS = ("command", "path")


def one_line(text: object, limit_chars: int = LINE_CHARS) -> str:
    """Return printable text on one line, shortened to the limit with an ellipsis."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit_chars else f"{line[: limit_chars - 1]}…"


def short_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Return the arguments of a call: the command or path first, the others by name."""
    if arguments is None:
        return "(arguments are not a JSON object)"
    rest = dict(arguments)
    first = [one_line(rest.pop(key), ARGUMENT_CHARS) for key in SUBJECTS if key in rest]
    shown = [f"{one_line(key, 40)}={_short_value(value)}" for key, value in rest.items()]
    return " ".join([*first, *shown])


def _short_value(value: object) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False), ARGUMENT_CHARS)
    return text if len(text) <= 60 else f"{text[:59]}…"


def output_line(line: str, limit_chars: int) -> str:
    """Return a printable line of output with its spaces, shortened to the limit with an ellipsis."""
    shown = printable(line[:LINE_CHARS]).expandtabs(4)
    return shown if len(shown) <= limit_chars else f"{shown[: limit_chars - 1]}…"


def stop_line(stop: Mapping[str, Any] | None) -> str:
    """Return why a run stopped: the reason, the hook and the rule."""
    if not stop:
        return "no reason given"
    return one_line(f"{stop.get('reason')} (hook {stop.get('hook')}, rule {stop.get('rule')})")


def kept_out_bytes(evicted: Mapping[str, Any], content: object) -> int:
    """Return how many bytes of an evicted result were kept out of the model's context."""
    shown_bytes = len(str(content or "").encode("utf-8", "replace"))
    return max(0, int(evicted.get("size_bytes") or 0) - shown_bytes)


def local_time(at: datetime, *, seconds: bool = False) -> str:
    """Return a time in the local zone."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if seconds else f"{at.astimezone():%Y-%m-%d %H:%M}"
