"""Lists whose rows are lines, with nothing cut or folded: in a narrow terminal some columns are below the others.

Whoever is no terminal, a pipe or a file, gets a line for each row.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from gateway.cli.printable import printable
from gateway.cli.terminal import out

_GAP, _INDENT = "  ", "    "
_SPACES = str.maketrans("\t\n", "  ")


def print_rows(names: Sequence[str], rows: Sequence[Sequence[str]], *, below: int) -> None:
    """Print rows under their names; the last `below` columns are those that may go below."""
    heading, *lines = row_lines(names, rows, below=below, width=out.width if out.is_terminal else None)
    out.print(Text(heading, "bold"))
    for line in lines:
        out.print(Text(line))  # Text: brackets in a name are no markup


def row_lines(names: Sequence[str], rows: Sequence[Sequence[str]], *, below: int, width: int | None) -> list[str]:
    """Return the names and then the rows, a text each; one of two lines where `width` is too narrow for one."""
    cells = [list(names), *([printable(cell).translate(_SPACES) for cell in row] for row in rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(names))]
    whole = [_line(row, widths) for row in cells]
    if width is None or max(cell_len(line) for line in whole) <= width:
        return whole
    above = len(names) - below
    return [f"{_line(row[:above], widths)}\n{_INDENT}{_line(row[above:], widths[above:])}" for row in cells]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False))
    return _GAP.join(padded).rstrip()
