"""The output of every subcommand, whose text is safe for a terminal, and how an error ends the process.

Exit codes: 0 success, 1 the command ran and its result is negative (a failed check, for example), 2 wrong usage or
configuration, 3 the gateway refused the request or does not answer, 4 the model's answer was cut off or is a refusal.
`airlock exec` and `airlock tool call --check` exit with the command's own code, or as timeout(1) and shells do: 124
timed out, 125 did not run or did not end by itself, 126 denied.
"""

from __future__ import annotations

import codecs
import json
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gateway.support.printable_text import is_unprintable, printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

EXIT_BAD_NEWS = 1
EXIT_USAGE = 2
EXIT_GATEWAY = 3
EXIT_CUT_ANSWER = 4
EXIT_TIMED_OUT = 124
EXIT_NOT_RUN = 125
EXIT_DENIED = 126
EXIT_INTERRUPTED = 130

DEFAULT_ADDRESS = "127.0.0.1:7443"


class SafeConsole(Console):
    """A console that prints untrusted text safely: from models, sandboxes, other clients and files.

    It makes all text printable as it is rendered, including table cells and progress bars, and interprets no markup:
    styles are passed as `style=` or `Text`.
    """

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


out = SafeConsole(soft_wrap=True)
err = SafeConsole(stderr=True, soft_wrap=True)


class Failure(Exception):
    """Ends a command with a message and an exit code; --json also prints `details`."""

    def __init__(self, message: str, code: int, details: Mapping[str, str | float] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details or {}


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End the command with an error."""
    raise Failure(message, code)


def print_json(value: object) -> None:
    """Print a JSON document on one line; it may contain times and dataclasses."""
    sys.stdout.write(safe_json(value) + "\n")
    sys.stdout.flush()


class SlowWork:
    """Shows a line on standard error, if it is a terminal, once the block takes longer than a second.

    with SlowWork("verifying the chain") as work:
        work.at(f"{count:,} records")
    """

    def __init__(self, name: str, quiet_s: float = 1.0) -> None:
        self._name = name
        self._fields: dict[str, Any] = {"total": None, "at": ""}
        self._progress: Progress | None = None
        self._timer = threading.Timer(quiet_s, self._show) if err.is_terminal else None

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._progress is not None:
            self._progress.stop()

    def at(self, text: str) -> None:
        self._update(at=text)

    def _update(self, **fields: Any) -> None:
        self._fields |= fields
        progress = self._progress
        if progress is not None and progress.task_ids:
            progress.update(progress.task_ids[0], **fields)

    def _show(self) -> None:
        from rich.progress import Progress

        progress = self._progress = Progress(*self._columns(), console=err, transient=True)
        progress.add_task(self._name, **self._fields)
        progress.start()

    def _columns(self) -> Iterable[ProgressColumn]:
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        said = TextColumn("{task.description} {task.fields[at]}", markup=False)
        return SpinnerColumn(), said, TimeElapsedColumn()


class Transfer(SlowWork):
    """Shows how many bytes were transferred, and the total if it is known."""

    def __init__(self, name: str, total_bytes: int | None) -> None:
        super().__init__(name)
        self._fields["total"] = total_bytes
        self.size_bytes = 0

    def moved(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._update(completed=self.size_bytes)

    def _columns(self) -> Iterable[ProgressColumn]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

        return TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
