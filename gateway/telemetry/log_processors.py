"""What every line of the log goes through: the trace it belongs to, and exceptions without what a tenant wrote.

An exception's text may be a file's name, a command or a statement's parameters. What is kept of one is its class, and
for each frame file, line and function: enough to mend it. The message is kept of gateway.errors alone: those are ours.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any

from opentelemetry import trace

from gateway.errors import AirlockError

_FRAMES = 32
_CAUSES = 8


def add_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add trace_id and span_id where a span is under way."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def told_exception(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn exc_info into `exception`: classes, places and our own messages."""
    found = event.pop("exc_info", None)
    if not found:
        return event
    error = found if isinstance(found, BaseException) else found[1] if isinstance(found, tuple) else sys.exc_info()[1]
    if error is not None:
        event["exception"] = told(error)
    return event


def told(error: BaseException) -> str:
    """Return an exception and its causes, the last one first, as `where`s and classes."""
    parts: list[str] = []
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and len(parts) < _CAUSES:
        seen.add(id(following))
        parts.append(_one(following))
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return "\ncaused by ".join(parts)


def _one(error: BaseException) -> str:
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    said = f"{kind}: {error}" if isinstance(error, AirlockError) else kind
    if isinstance(error, BaseExceptionGroup):
        said += "".join(f"\n  of {_one(inner)}" for inner in error.exceptions[:_CAUSES])
    return "\n".join([said, *_frames(error.__traceback__)])


def _frames(trace_back: TracebackType | None) -> list[str]:
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace_back)][-_FRAMES:]
    return [f"  {Path(code.co_filename)}:{line} {code.co_qualname}" for code, line in reversed(frames)]
