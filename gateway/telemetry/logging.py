"""Sets up the log: one line per event on stderr, as JSON, or as readable text if stderr is a terminal.

Each line has the tenant, run_id, thread, call_id and trace_id where known, and never arguments or results.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from gateway.support.printable_text import printable
from gateway.telemetry.log_processors import add_trace, render_exception, without_secrets


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
        rendering.append(structlog.processors.JSONRenderer())
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
