"""Server-sent events from the bytes of an answer; anything else is kept as the answer's text.

Endpoints may answer a streaming request with a JSON document, an error or an HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.models.bounded_http import LINE_LIMIT_BYTES
from agent.models.endpoint_errors import UnusableAnswer

_FIELDS = frozenset({b"data", b"event", b"id", b"retry", b"error"})
_LINE_OVERHEAD_BYTES = 64  # memory of a line besides its text
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ServerEvent:
    """One event. `is_error`: its type is error, or it has llama.cpp's field `error` instead of `data`."""

    data: str
    is_error: bool = False


class EventReader:
    """Splits bytes into events. Lines end with CR, LF or both; comments and the fields id and retry are skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False
        self._data: list[bytes] = []
        self._is_error = False
        self._text: list[bytes] = []
        self._data_bytes = 0
        self._text_bytes = 0

    @property
    def text(self) -> str:
        return b"\n".join(self._text).decode("utf-8", "replace").strip()

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Add bytes; yield complete events. Raises UnusableAnswer for one that is too long."""
        self._buffer += piece
        if b"\n" not in piece and b"\r" not in piece:
            return
        pending = b"\r" if self._buffer.endswith(b"\r") else b""  # its LF may come next
        whole = bytes(self._buffer[: len(self._buffer) - len(pending)])
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = bytearray(rest + pending)
        for line in lines:
            yield from self._line(line)

    def finish(self) -> Iterator[ServerEvent]:
        """Yield the last event: many endpoints omit the final empty line."""
        for line in (bytes(self._buffer.rstrip(b"\r")), b""):
            yield from self._line(line)
        self._buffer.clear()

    def _line(self, line: bytes) -> Iterator[ServerEvent]:
        if not self._begun:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._begun = True
        if not line:
            if self._data:
                yield ServerEvent(b"\n".join(self._data).decode("utf-8", "replace"), self._is_error)
            self._data, self._data_bytes, self._is_error = [], 0, False
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name in (b"data", b"error"):
            self._data_bytes = _within(self._data_bytes + len(value) + _LINE_OVERHEAD_BYTES)
            self._data.append(value)
            self._is_error = self._is_error or name == b"error"
        elif name == b"event":
            self._is_error = value == b"error"
        elif name and name not in _FIELDS:
            self._text_bytes = _within(self._text_bytes + len(line) + _LINE_OVERHEAD_BYTES)
            self._text.append(line)


def _within(size_bytes: int) -> int:
    if size_bytes > LINE_LIMIT_BYTES:
        raise UnusableAnswer(f"an event or a document of more than {LINE_LIMIT_BYTES // 2**20} MiB")
    return size_bytes
