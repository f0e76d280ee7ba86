"""Records docs/demo.svg for the README: parts of one real run of the demo. Needs Docker and the images."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from examples.demo.__main__ import main
from gateway.cli.terminal import SafeConsole

TARGET = Path(__file__).parents[1] / "docs" / "demo.svg"
_COLUMNS = 104
# Each shown part: how its first line begins, and the first line after it ("" for the end).
_PARTS = (
    ("model ", "run of agent "),
    ("step 3 ", "step 5 "),
    ("step 9 ", "step 10 "),
    ("--- a/ledger/money.py", "--- a/ledger/statement.py"),
    ("summary ", ""),
)
_LOADED_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def part(lines: list[Text], first: str, after: str) -> Iterator[Text]:
    """Yield the lines from one that begins with `first` up to one that begins with `after`."""
    start = next(number for number, line in enumerate(lines) if line.plain.startswith(first))
    for line in lines[start:]:
        if after and line.plain.startswith(after):
            return
        yield line


def record() -> list[Text]:
    """Run the demo and return what it printed, line by line, with styles."""
    console = SafeConsole(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    if problems := asyncio.run(main(console)):
        sys.exit("\n".join(problems))
    console.print("✓ the run completed and the tests pass", style="green")
    return list(Text.from_ansi(console.export_text(styles=True)).split("\n"))


def draw(lines: list[Text]) -> str:
    """Return the chosen parts as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text("$ make demo", style="bold"))
    for number, (first, after) in enumerate(_PARTS):
        if number:
            console.print(Text("…", style="dim"))
        for line in part(lines, first, after):
            console.print(line, soft_wrap=True)
    return _LOADED_FONT.sub("", console.export_svg(title="make demo", unique_id="demo"))


if __name__ == "__main__":
    TARGET.write_text(draw(record()), encoding="utf-8")
