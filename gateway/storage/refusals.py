"""What the log says of a database that refuses writes: that it does, then how often, and when it takes them again.

A gateway writes several times a second also where nobody calls it, and a disk is full for hours. One line of each kind
is written every 30 s at most, so that a database which takes one write and refuses the next does not fill the log.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import structlog

from gateway.storage.connecting import said_by_driver

TOLD_AGAIN_S = 30.0
log = structlog.get_logger(__name__)


class Refusals:
    """Counts the writes that one database refuses; for one thread."""

    def __init__(self, database: str, clock: Callable[[], float] = monotonic) -> None:
        """`database` is its URL without its password; `clock` counts seconds."""
        self._database = database
        self._clock = clock
        self._told_s: float | None = None
        self._untold = 0
        self._untold_end = False

    def refused(self, error: Exception, writes: int) -> None:
        """Take note of writes that were refused, and why."""
        self._untold += writes
        now_s = self._clock()
        if self._told_s is not None and now_s - self._told_s < TOLD_AGAIN_S:
            return
        said = said_by_driver(error)
        log.error("the database refuses writes", error=said, refused_writes=self._untold, database=self._database)
        self._told_s, self._untold, self._untold_end = now_s, 0, True

    def taken(self) -> None:
        """Take note of a write that was taken."""
        if not self._untold_end:
            return
        log.info("the database takes writes again", refused_writes=self._untold, database=self._database)
        self._untold, self._untold_end = 0, False
