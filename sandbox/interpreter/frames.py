"""Reads the frames of an interpreter. Tool code can write to the same stream, so only the limits are relied on.

Forged frames can at most falsify the result of their own cell: every count and size is checked, and frames of other
cells are skipped. Anything else raises BadFrames, after which the interpreter cannot be used any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

from sandbox.errors import SandboxError
from sandbox.interpreter.cell import CellError, ShownObject
from sandbox.interpreter.inside.limits import (
    IMAGES_LIMIT_BYTES,
    OBJECTS_LIMIT,
    OUTPUT_LIMIT_BYTES,
    TAIL_BYTES,
    TEXTS_LIMIT_CHARS,
)
from sandbox.protocols import OutputPiece, OutputStream

_HEADER = re.compile(rb"([a-z]{1,8}) ([0-9a-f]{1,64}) ([0-9]{1,9})\n")
_HEADER_LIMIT_BYTES = 96
# A character takes six bytes at most in JSON; a cell's output twice: what was written between the cells comes first.
_FRAME_LIMIT_BYTES = max(6 * TEXTS_LIMIT_CHARS + 4096, IMAGES_LIMIT_BYTES)
# What begins, shows or ends something is an object of few values; decoding many more would delay other calls.
_VALUES_LIMIT = 1000
_PARTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
# Small pieces are joined; after so many also across pieces of the other stream.
_SMALL_BYTES, _PIECES_IN_ORDER = 4096, 5000
_CELL_LIMIT_BYTES = _FRAME_LIMIT_BYTES + IMAGES_LIMIT_BYTES + 2 * OUTPUT_LIMIT_BYTES
# What is left of a cell whose gateway was lost.
_SKIPPED_LIMIT_BYTES = _CELL_LIMIT_BYTES
_STREAMS: dict[str, OutputStream] = {"out": "stdout", "err": "stderr"}
_NAME_CHARS, _VALUE_CHARS, _TRACEBACK_CHARS = 200, 4000, 60_000
_COUNT_LIMIT = 2**31
_MEDIA_TYPES = frozenset(
    {"text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json"}
)


class BadFrames(SandboxError):
    """What an interpreter sent is not what it sends."""


class CellFrames:
    """What came of one cell so far. It begins at the frame that names `cell`; anything before it is passed over."""

    def __init__(self, cell: str, on_output: Callable[[OutputStream, bytes], None]) -> None:
        self.python = ""
        self.between_bytes = 0
        self.moved = ""
        self.output: list[OutputPiece] = []
        self.tail: list[OutputPiece] = []
        self.left_out_bytes = 0
        self.objects: list[ShownObject] = []
        self.left_out_objects = 0
        self.error: CellError | None = None
        self.count: int | None = None
        self.begun = self.busy = self.done = False
        self._cell = cell.encode()
        self._on_output = on_output
        self._buffer = bytearray()
        self._taken_bytes = self._skipped_bytes = 0
        self._output_bytes = self._image_bytes = self._text_chars = 0
        self._wants_image = False

    def feed(self, data: bytes) -> None:
        """Take what came. Raises BadFrames."""
        self._buffer += data
        if not self._taken_bytes and not self._find_beginning():
            return
        while not self.done and not self.busy and (found := self._next()) is not None:
            kind, cell, payload = found
            if cell == self._cell:
                self._take(kind, payload)

    def _find_beginning(self) -> bool:
        """Drop what comes before this cell's first frame: the end of an earlier one, of which a part was read."""
        found = re.search(rb"(?:begun|busy) %s [0-9]{1,9}\n" % self._cell, self._buffer)
        drop = max(0, len(self._buffer) - _HEADER_LIMIT_BYTES) if found is None else found.start()
        self._skipped_bytes += drop
        del self._buffer[:drop]
        if self._skipped_bytes > _SKIPPED_LIMIT_BYTES:
            raise BadFrames("it does not answer, and sends something else")
        return found is not None

    def _next(self) -> tuple[str, bytes, bytes] | None:
        """Take a whole frame from the buffer; None while it is not all there."""
        header = _HEADER.match(self._buffer)
        if header is None:
            if len(self._buffer) > _HEADER_LIMIT_BYTES or b"\n" in self._buffer:
                raise BadFrames("it sent something that is not a frame")
            return None
        kind, cell, size = header[1].decode(), header[2], int(header[3])
        end = header.end() + size
        if size > _FRAME_LIMIT_BYTES or self._taken_bytes + end > _CELL_LIMIT_BYTES:
            raise BadFrames("it sent more than a cell may")
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[header.end() : end])
        del self._buffer[:end]
        self._taken_bytes += end
        return kind, cell, payload

    def _take(self, kind: str, payload: bytes) -> None:
        if kind in _STREAMS:
            self._take_output(_STREAMS[kind], payload)
        elif kind == "image":
            self._take_image(payload)
        elif kind == "gap":
            self.left_out_bytes = max(1, _number(payload.decode("ascii", "replace")))
        elif kind == "busy":
            self.busy = True
        elif kind in ("begun", "data", "done"):
            getattr(self, f"_take_{kind}")(_values(payload))
        else:
            raise BadFrames("it sent a frame of an unknown kind")

    def _take_begun(self, said: dict[str, Any]) -> None:
        self.python = _text(said.get("python"), _VALUE_CHARS)
        self.between_bytes = _number(said.get("between_bytes"))
        self.moved = _text(said.get("moved"), 200)
        self.begun = True

    def _take_output(self, stream: OutputStream, data: bytes) -> None:
        self._output_bytes += len(data)
        if self._output_bytes > OUTPUT_LIMIT_BYTES + 3 * TAIL_BYTES:
            raise BadFrames("it sent more output than a cell may")
        _add(self.tail if self.left_out_bytes else self.output, OutputPiece(stream, data))
        if not self.left_out_bytes:
            self._on_output(stream, data)

    def _take_data(self, said: dict[str, Any]) -> None:
        texts = said.get("texts")
        if not isinstance(texts, dict) or len(self.objects) >= OBJECTS_LIMIT:
            raise BadFrames("it sent an object without texts, or too many of them")
        if not all(isinstance(text, str) and name in _MEDIA_TYPES for name, text in texts.items()):
            raise BadFrames("it sent an object of an unknown kind")
        self._text_chars += sum(map(len, texts.values()))
        if self._text_chars > TEXTS_LIMIT_CHARS + OBJECTS_LIMIT * 100:  # a text that is cut says so
            raise BadFrames("it sent more text than a cell may")
        shown = {name: _whole(text) for name, text in texts.items()}
        self.objects.append(ShownObject(shown, is_result=said.get("result") is True))
        self._wants_image = said.get("image") is True

    def _take_image(self, data: bytes) -> None:
        self._image_bytes += len(data)
        if not self._wants_image or self._image_bytes > IMAGES_LIMIT_BYTES:
            raise BadFrames("it sent an image of no object, or more of them than a cell may")
        shown = self.objects[-1]
        self.objects[-1] = ShownObject(shown.texts, data, shown.is_result)
        self._wants_image = False

    def _take_done(self, said: dict[str, Any]) -> None:
        self.count, self.left_out_objects = _number(said.get("count")), _number(said.get("left_out"))
        error = said.get("error")
        if isinstance(error, dict):
            self.error = CellError(
                _text(error.get("name"), _NAME_CHARS),
                _text(error.get("value"), _VALUE_CHARS),
                _text(error.get("traceback"), _TRACEBACK_CHARS),
            )
        self.done = True


def _add(pieces: list[OutputPiece], piece: OutputPiece) -> None:
    for at in (-1, -2)[: min(len(pieces), 2 if len(pieces) >= _PIECES_IN_ORDER else 1)]:
        last = pieces[at]
        if last.stream == piece.stream and len(last.data) < _SMALL_BYTES:
            pieces[at] = OutputPiece(last.stream, last.data + piece.data)
            return
    pieces.append(piece)


def _values(payload: bytes) -> dict[str, Any]:
    if sum(1 for _ in islice(_PARTS.finditer(payload), _VALUES_LIMIT + 1)) > _VALUES_LIMIT:
        raise BadFrames("it sent an object of too many values")
    try:
        said = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadFrames("it sent something that is not JSON") from error
    if not isinstance(said, dict):
        raise BadFrames("it sent something that is not a JSON object")
    return said


def _number(said: object) -> int:
    """Return a count that was sent, in bounds; 0 for anything else."""
    if isinstance(said, str) and said.isascii() and said.isdigit() and len(said) <= len(str(_COUNT_LIMIT)):
        said = int(said)
    return min(said, _COUNT_LIMIT) if isinstance(said, int) and not isinstance(said, bool) and said > 0 else 0


def _text(said: object, limit: int) -> str:
    return _whole(said[:limit]) if isinstance(said, str) else ""


def _whole(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can hold and nothing else can."""
    return text.encode("utf-8", "replace").decode()
