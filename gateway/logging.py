"""The gateway's log: structlog, JSON lines on stderr, or readable ones when stderr is a terminal."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def set_up_logging() -> None:
    """Configure structlog; AIRLOCK_LOG_LEVEL sets the least level, default warning."""
    level = logging.getLevelNamesMapping().get(os.environ.get("AIRLOCK_LOG_LEVEL", "warning").upper(), logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
