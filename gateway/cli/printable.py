"""Untrusted text, shortened for a terminal: a line, the arguments of a call, why a run stopped; and tables of it.

Everything printed passes `printable` anyway (terminal.py); here it is called first so that lengths are right.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from gateway.support.printable_text import printable

LINE_CHARS = 400
ARGUMENT_CHARS = 160

# The arguments that are printed first and without their names.
SUBJECTS = ("command", "path")
_GAP, _INDENT = "  ", "    "
# The last column is wrapped beside the others if it has this width, otherwise below them.
_WRAPS_BESIDE = 32
_SPACES = str.maketrans("\t\n", "  ")

Cell = str | Text


def one_line(text: object, limit_chars: int = LINE_CHARS) -> str:
    """Return printable text on one line, shortened to the limit with an ellipsis."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit_chars else f"{line[: limit_chars - 1]}…"


def short_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Return the arguments of a call: the command or path first, the others by name."""
    if arguments is None:
        return "(arguments are not a JSON object)"
    rest = dict(arguments)
    first = [one_line(rest.pop(key), ARGUMENT_CHARS) for key in SUBJECTS if key in rest]
    shown = [
        f"{one_line(key, 40)}={one_line(json.dumps(value, ensure_ascii=False), 60)}" for key, value in rest.items()
    ]
    return " ".join([*first, *shown])


def output_line(line: str, limit_chars: int) -> str:
    """Return a printable line of output with its spaces, shortened to the limit with an ellipsis."""
    shown = printable(line[:LINE_CHARS]).expandtabs(4)
    return shown if len(shown) <= limit_chars else f"{shown[: limit_chars - 1]}…"


def stop_line(stop: Mapping[str, Any] | None) -> str:
    """Return why a run stopped: the reason, the hook and the rule."""
    if not stop:
        return "no reason given"
    return one_line(f"{stop.get('reason')} (hook {stop.get('hook')}, rule {stop.get('rule')})")


def kept_out_bytes(evicted: Mapping[str, Any], content: object) -> int:
    """Return how many bytes of an evicted result were kept out of the model's context."""
    shown_bytes = len(str(content or "").encode("utf-8", "replace"))
    return max(0, int(evicted.get("size_bytes") or 0) - shown_bytes)


def local_time(at: datetime, *, seconds: bool = False) -> str:
    """Return a time in the local zone."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if seconds else f"{at.astimezone():%Y-%m-%d %H:%M}"


class Rows:
    """Rows with a header, for `out.print` or a live display. Only a long last column is wrapped."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._cells = [[Text(name, "bold") for name in names], *([_cell(cell) for cell in row] for row in rows)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        widths = [max(cell_len(row[column].plain) for row in self._cells) for column in range(len(self._cells[0]))]
        bounded = console.is_terminal or "COLUMNS" in os.environ
        width = options.max_width if bounded else None
        groups = [range(len(widths))] if width is None else _groups(widths, width)
        for row in self._cells:
            for number, columns in enumerate(groups):
                yield from _lines(console, row, widths, columns, _INDENT if number else "", width)


def _cell(cell: Cell) -> Text:
    """Return a cell as one line of printable text with a known width."""
    text, style = (cell.plain, cell.style) if isinstance(cell, Text) else (cell, "")
    return Text(printable(text).translate(_SPACES), style)


def _groups(widths: Sequence[int], width: int) -> list[range]:
    """Group columns into lines: as many as fit beside each other, the others below and indented."""
    groups, first, free = [], 0, width
    for column, wanted in enumerate(widths):
        is_last = column == len(widths) - 1
        if column > first and wanted > free and not (is_last and free >= _WRAPS_BESIDE):
            groups.append(range(first, column))
            first, free = column, width - len(_INDENT)
        free -= wanted + len(_GAP)
    return [*groups, range(first, len(widths))]


def _lines(
    console: Console, row: Sequence[Text], widths: Sequence[int], columns: range, indent: str, width: int | None
) -> Iterator[Text]:
    """Yield the line of some columns of a row, and below it the rest of a long last cell."""
    line, last = Text(indent), columns[-1]
    for column in columns[:-1]:
        cell = row[column].copy()
        cell.pad_right(widths[column] - cell_len(cell.plain))
        line.append_text(cell).append(_GAP)
    free = None if width is None else width - cell_len(line.plain)
    if free is None or cell_len(row[last].plain) <= free or last < len(row) - 1:
        wrapped = [row[last]]
    else:
        wrapped = list(row[last].wrap(console, max(free, 1), no_wrap=False, overflow="fold")) or [Text()]
    hanging = Text(" " * cell_len(line.plain))
    for number, part in enumerate(wrapped):
        whole = (hanging if number else line).copy().append_text(part)
        whole.rstrip()
        if whole.plain:
            yield whole
