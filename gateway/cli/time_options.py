"""Options that take a time, or how long ago it was."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from gateway.cli.terminal import fail

Since = Annotated[
    str, typer.Option("--since", help="Only from this time on: 24h, 7d, or a time such as 2026-11-21T08:00.")
]
Until = Annotated[str, typer.Option("--until", help="Only before this time; same format as --since.")]
_AGO = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime) -> datetime:
    """Parse 30m, 12h, 7d, 2w, a date or a time, local unless it has an offset. Raises typer.BadParameter."""
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
            f"{text!r} is not a time; write 30m, 12h, 7d, 2w, 2026-11-21 or 2026-11-21T08:00"
        ) from error


def moment_of(option: str, text: str) -> datetime | None:
    """Return the time of an option, None if it is empty; end the command if it is not a time."""
    try:
        return moment(text, datetime.now(UTC)) if text else None
    except typer.BadParameter as error:
        fail(f"{option}: {error}")
