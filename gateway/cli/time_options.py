"""Moments as options of commands take them: how long ago it was, or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

from gateway.cli.terminal import fail

_AGO = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime) -> datetime:
    """Return a moment given as 30m, 12h, 7d, 2w, a date or a time, of this machine where it names no offset.

    Raises typer.BadParameter.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError as error:
            raise typer.BadParameter(f"{text!r} is before the year 1; write 7d or less") from error
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{text!r} is no time; write 30m, 12h, 7d, 2w, 2026-11-21 or 2026-11-21T08:00"
        ) from error


def moment_of(option: str, text: str) -> datetime | None:
    """Return what an option says, None for nothing; anything else ends the command."""
    try:
        return moment(text, datetime.now(UTC)) if text else None
    except typer.BadParameter as error:
        fail(f"{option}: {error}")
