"""Live output of a tool call on a terminal, unless the call ends within a second."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Self

from gateway.cli.safe_console import SafeText
from gateway.cli.terminal import out

if TYPE_CHECKING:
    from gateway.client import ToolResult

_QUIET_S = 1.0
_STREAMS = ("stdout", "stderr")


class LiveOutput:
    """Collects output and, from a second after the block was entered, prints it in order of arrival."""

    def __init__(self, quiet_s: float = _QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._pending: list[tuple[str, bytes]] | None = []
        # One per stream: a character may be split between two pieces with a piece of the other stream in between.
        self._texts = {stream: SafeText() for stream in _STREAMS}
        self._digests = {stream: hashlib.sha256() for stream in _STREAMS}
        self._column = 0

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._quiet_s, self._show)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._timer.cancel()
        if self._pending is not None:
            return
        for text in self._texts.values():
            self._print(text.add(b"", final=True))
        if self._column:
            self._print("\n")

    def add(self, stream: str, data: bytes) -> None:
        """Add a piece; `stream` is stdout or stderr."""
        if self._pending is not None:
            self._pending.append((stream, data))
            return
        self._digests[stream].update(data)
        self._print(self._texts[stream].add(data))

    def showed(self, result: ToolResult) -> bool:
        """Return whether the terminal already shows the complete result."""
        if self._pending is not None or result.evicted is not None:
            return False
        whole = {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}
        if len(result.content_bytes) != sum(len(data) for data in whole.values()):
            return False
        return all(self._digests[stream].digest() == hashlib.sha256(data).digest() for stream, data in whole.items())

    def _show(self) -> None:
        pending, self._pending = self._pending, None
        for stream, data in pending or ():
            self.add(stream, data)

    def _print(self, text: str) -> None:
        if text:
            self._column = len(text) - text.rfind("\n") - 1
            out.print(text, end="")
