"""The printer of the command line, whose output is safe for a terminal.

Much of what commands print comes from models, sandboxes, other clients and files. `SafeConsole` makes all text
printable as it is rendered, including table cells and progress bars, and interprets no markup: styles are passed as
`style=` or `Text`. `SafeBytes` does the same for bytes, which a file or pipe gets unchanged.
"""

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
    """A console that prints untrusted text safely."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with rich, then make all text printable; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


class SafeText:
    """Decodes bytes that arrive in pieces to printable text; a character or line end may be split."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes, *, final: bool = False) -> str:
        """Return the text that is complete; with `final`, everything."""
        text = self._rest + self._decoder.decode(data, final)
        self._rest = "\r" if text.endswith("\r") and not final else ""
        return printable(text.removesuffix("\r") if self._rest else text)


class SafeBytes:
    """Writes bytes to standard output or standard error: unchanged to a file or pipe, printable to a terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        # Not rich's is_terminal: FORCE_COLOR must not change the bytes of a pipe.
        self._stream = sys.stderr if stderr else sys.stdout
        self._text = SafeText() if self._stream.isatty() else None

    def write(self, data: bytes) -> None:
        if self._text is not None:
            self._stream.write(self._text.add(data))
        else:
            self._stream.buffer.write(data)

    def end(self) -> None:
        """Write the rest of a character that was cut off, and flush."""
        if self._text is not None:
            self._stream.write(self._text.add(b"", final=True))
        self.flush()

    def flush(self) -> None:
        self._stream.flush()


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def safe_json(value: object) -> str:
    """Return a JSON document on one line, with control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, default=_as_json)
    if text.isprintable():
        return text
    return "".join(json.dumps(character)[1:-1] if is_unprintable(character) else character for character in text)
