"""Sets up the log: one line per event on stderr, as JSON, or as readable text if stderr is a terminal.

Each line has the tenant, run_id, thread, call_id and trace_id where known, and never arguments or results. Of an
exception it has the class and, for each frame, file, line and function: the text may be a file name, a command or the
parameters of a statement. Only airlock.errors keep their messages.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog
from opentelemetry import trace

from gateway.errors import AirlockError
from gateway.redaction.finders import RedactionFailed
from gateway.redaction.redactor import WELL_KNOWN_SECRETS
from gateway.support.printable_text import printable

_FRAMES = 32
_CAUSES = 8
# json.dumps() would make an encoder for each line.
_JSON = json.JSONEncoder()


def _is_not_a_lost_peer(record: logging.LogRecord) -> bool:
    """Return False for grpc's traceback of a message whose peer had disconnected, which is no fault."""
    error = record.exc_info[1] if record.exc_info else None
    # Compared by name: the CLI sets up its log without importing grpc.
    kind = type(error)
    if kind.__module__ != "grpc._cython.cygrpc":
        return True
    return not (kind.__name__ == "ExecuteBatchError" or (kind.__name__ == "UsageError" and "finished" in str(error)))


def _printable_values(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make values printable for a terminal; tenants and endpoints choose names and errors."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def set_up_logging() -> None:
    """Configure structlog and the standard library's loggers alike; AIRLOCK_LOG_LEVEL is the lowest level shown."""
    level = logging.getLevelNamesMapping().get(os.environ.get("AIRLOCK_LOG_LEVEL", "info").upper(), logging.INFO)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_trace,
        render_exception,
    ]
    rendering: list[structlog.typing.Processor] = [without_secrets]
    if sys.stderr.isatty():
        rendering += [_printable_values, structlog.dev.ConsoleRenderer()]
    else:
        rendering.append(_as_json)
    # Our own lines bypass the standard library, which would double their cost.
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("asyncio", "grpc._cython.cygrpc"):
        logging.getLogger(name).addFilter(_is_not_a_lost_peer)
    # These log every request at info.
    for chatty in ("httpx", "httpx2", "httpcore", "httpcore2", "openai", "docker", "urllib3", "alembic", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    # It warns of each request that is no HTTP, and anyone can send one.
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.ERROR))


def add_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add trace_id and span_id if there is a current span."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def without_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact every value; the last step before a line is written."""
    texts = "\n".join(value for value in event.values() if isinstance(value, str))
    found = WELL_KNOWN_SECRETS.finds(texts.encode("utf-8", "surrogatepass"))
    for name, value in event.items():
        if isinstance(value, str):
            if found:
                event[name] = WELL_KNOWN_SECRETS.shown(value)
        elif value is not None and not isinstance(value, bool | int | float):
            event[name] = _shown_value(value)
    return event


def _shown_value(value: object) -> object:
    """Return a structured value as JSON without secrets, or as text."""
    try:
        return WELL_KNOWN_SECRETS.json(json.loads(json.dumps(value, default=str)))
    except (TypeError, ValueError, RedactionFailed):
        return WELL_KNOWN_SECRETS.shown(str(value))


def _as_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """Return a line, of values that without_secrets() has made JSON or text."""
    return _JSON.encode(event)


def render_exception(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace exc_info by `exception`: classes, places and our own messages."""
    found = event.pop("exc_info", None)
    if not found:
        return event
    error = found if isinstance(found, BaseException) else found[1] if isinstance(found, tuple) else sys.exc_info()[1]
    if error is not None:
        event["exception"] = rendered(error)
    return event


def rendered(error: BaseException) -> str:
    """Return an exception and its causes, the last one first, as classes and places."""
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
    text = f"{kind}: {error}" if isinstance(error, AirlockError) else kind
    if isinstance(error, BaseExceptionGroup):
        text += "".join(f"\n  of {_one(inner)}" for inner in error.exceptions[:_CAUSES])
    return "\n".join([text, *_frames(error.__traceback__)])


def _frames(trace_back: TracebackType | None) -> list[str]:
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace_back)][-_FRAMES:]
    return [f"  {Path(code.co_filename)}:{line} {code.co_qualname}" for code, line in reversed(frames)]
