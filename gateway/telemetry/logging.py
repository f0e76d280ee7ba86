"""The log: one line an event on stderr, JSON, or readable when stderr is a terminal. All modules, one format.

Each line has the tenant, run_id, thread, call_id and trace_id where they are known; none has arguments or results.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from gateway.support.printable_text import printable
from gateway.telemetry.log_processors import add_trace, told_exception, without_secrets


def _tells_of_no_peer_that_went(record: logging.LogRecord) -> bool:
    """Return whether a line is not grpc's traceback of a message that found its peer gone, which is no fault."""
    error = record.exc_info[1] if record.exc_info else None
    # Looked at by its name: the CLI sets up its log without grpc.
    kind = type(error)
    if kind.__module__ != "grpc._cython.cygrpc":
        return True
    return not (kind.__name__ == "ExecuteBatchError" or (kind.__name__ == "UsageError" and "finished" in str(error)))


def _printable_values(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make what a terminal is shown printable: names and errors in it are chosen by tenants and endpoints."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def set_up_logging() -> None:
    """Send structlog and the standard library's loggers the same way; AIRLOCK_LOG_LEVEL is the least level shown."""
    level = logging.getLevelNamesMapping().get(os.environ.get("AIRLOCK_LOG_LEVEL", "info").upper(), logging.INFO)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_trace,
        told_exception,
    ]
    rendering: list[structlog.typing.Processor] = [without_secrets]
    if sys.stderr.isatty():
        rendering += [_printable_values, structlog.dev.ConsoleRenderer()]
    else:
        rendering.append(structlog.processors.JSONRenderer())
    # Our own lines go to stderr straight away: by way of the standard library each would cost a call twice as much.
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
    # Each of these tells of every request at info; what counts of it is in our own lines.
    for told_by in ("asyncio", "grpc._cython.cygrpc"):
        logging.getLogger(told_by).addFilter(_tells_of_no_peer_that_went)
    for chatty in ("httpx", "httpx2", "httpcore", "httpcore2", "openai", "docker", "urllib3", "alembic", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
