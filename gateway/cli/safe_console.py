"""The one printer of the command line: whatever is printed through it is safe for a terminal.

Models, sandboxes, other tenants' clients and files choose much of what commands print. `SafeConsole` makes every text
printable as it is rendered, table cells and progress bars included, and reads no markup: styles come as `style=` or as
`Text`. `SafeBytes` does the same for bytes, and passes them on unchanged where no terminal reads them.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gateway.support.printable_text import is_unprintable, printable


class SafeConsole(Console):
    """A console that prints text from outside as it is meant to be read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, then make every text printable; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


class SafeText:
    """Decodes bytes that come in pieces to printable text; a character or a line's end may lie in two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes, *, final: bool = False) -> str:
        """Return what can be shown by now; with `final` everything."""
        text = self._rest + self._decoder.decode(data, final)
        self._rest = "\r" if text.endswith("\r") and not final else ""
        return printable(text.removesuffix("\r") if self._rest else text)


class SafeBytes:
    """Writes bytes to standard output, or to standard error: unchanged to a file or pipe, printable on a terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        # Asked of the stream, not of rich: FORCE_COLOR must not change the bytes of a pipe.
        self._stream = sys.stderr if stderr else sys.stdout
        self._text = SafeText() if self._stream.isatty() else None

    def write(self, data: bytes) -> None:
        """Write a piece."""
        if self._text is not None:
            self._stream.write(self._text.add(data))
        else:
            self._stream.buffer.write(data)

    def end(self) -> None:
        """Write what is left of a character that was cut off."""
        if self._text is not None:
            self._stream.write(self._text.add(b"", final=True))
        self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._stream.flush()


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def safe_json(value: object) -> str:
    """Return a JSON document on one line, characters that a terminal might act on escaped."""
    text = json.dumps(value, ensure_ascii=False, default=_as_json)
    if text.isprintable():
        return text
    return "".join(json.dumps(character)[1:-1] if is_unprintable(character) else character for character in text)
