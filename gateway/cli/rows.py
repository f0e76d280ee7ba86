"""Tables on a terminal: one line per row, or several if the columns do not fit. Nothing is cut.

A file or pipe gets one line per row unless COLUMNS sets a width.
"""

import os
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from gateway.support.printable_text import printable

_GAP, _INDENT = "  ", "    "
# The last column is wrapped beside the others if it has this width, otherwise below them.
_WRAPS_BESIDE = 32
_SPACES = str.maketrans("\t\n", "  ")

Cell = str | Text


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
    if isinstance(cell, Text):
        return Text(_plain(cell.plain), cell.style)
    return Text(_plain(cell))


def _plain(text: str) -> str:
    return printable(text).translate(_SPACES)


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
