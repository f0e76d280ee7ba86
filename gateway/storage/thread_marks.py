"""What may stand in the place of a deletion's id (threads.deletion): nothing begins in such a thread either."""

from __future__ import annotations

from sqlalchemy import ColumnElement, or_

from gateway.storage.tables import threads

RESTORING = "rst_"
"""How the mark begins of a thread whose files are being replaced. It outlives its gateway: nobody knows them then."""
FORKING = "frk_"
"""How the mark begins of a thread that is being made of another; nobody sees it. Its gateway's death undoes it."""


def is_there() -> ColumnElement[bool]:
    """Return the condition for threads that are whole and stay: neither made nor deleted just now."""
    return or_(threads.c.deletion.is_(None), threads.c.deletion.startswith(RESTORING, autoescape=True))


def is_visible() -> ColumnElement[bool]:
    """Return the condition for threads that are whole, as far as anybody is to know."""
    return or_(threads.c.deletion.is_(None), ~threads.c.deletion.startswith(FORKING, autoescape=True))
