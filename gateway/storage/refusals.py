"""Logs that a database refuses writes, how many, and when it takes them again.

A gateway writes several times a second even without calls, and a disk may stay full for hours. Each line is written
every 30 s at most, so that a database that alternates between taking and refusing does not fill the log.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import structlog

from gateway.storage.connecting import driver_message

LOG_AGAIN_S = 30.0
log = structlog.get_logger(__name__)


class Refusals:
    """Counts the writes that one database refuses; for one thread."""

    def __init__(self, database: str, clock: Callable[[], float] = monotonic) -> None:
        """`database` is its URL without its password; `clock` counts seconds."""
        self._database = database
        self._clock = clock
        self._logged_s: float | None = None
        self._not_logged = 0
        self._refusing = False

    def refused(self, error: Exception, writes: int) -> None:
        """Record refused writes, and why."""
        self._not_logged += writes
        now_s = self._clock()
        if self._logged_s is not None and now_s - self._logged_s < LOG_AGAIN_S:
            return
        said = driver_message(error)
        log.error("the database refuses writes", error=said, refused_writes=self._not_logged, database=self._database)
        self._logged_s, self._not_logged, self._refusing = now_s, 0, True

    def taken(self) -> None:
        """Record a successful write."""
        if not self._refusing:
            return
        log.info("the database takes writes again", refused_writes=self._not_logged, database=self._database)
        self._not_logged, self._refusing = 0, False
