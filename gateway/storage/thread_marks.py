"""Marks in threads.deletion besides a deletion's id: nothing begins in a marked thread."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, or_, select

from gateway.storage.tables import threads

RESTORING = "rst_"
"""The mark's prefix for a thread whose files are being replaced. It outlives its gateway: the files are unknown."""
FORKING = "frk_"
"""The mark's prefix for a fork in progress, which is invisible, and removed if its gateway dies."""


class ThreadGoing(Exception):
    """The thread is gone, or is being deleted."""


def lock_thread(connection: Connection, thread_id: str) -> str | None:
    """Lock a thread's row and return the mark of a restore, if any; ThreadGoing if it is gone, or is being deleted."""
    query = select(threads.c.deletion).where(threads.c.id == thread_id).with_for_update()
    found = connection.execute(query).first()
    if found is None or (found.deletion is not None and not found.deletion.startswith(RESTORING)):
        raise ThreadGoing
    mark: str | None = found.deletion
    return mark


def is_there() -> ColumnElement[bool]:
    """Return the condition for threads that are neither forks in progress nor being deleted."""
    return or_(threads.c.deletion.is_(None), threads.c.deletion.startswith(RESTORING, autoescape=True))


def is_visible() -> ColumnElement[bool]:
    """Return the condition for threads that callers can see."""
    return or_(threads.c.deletion.is_(None), ~threads.c.deletion.startswith(FORKING, autoescape=True))
