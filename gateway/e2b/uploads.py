"""The bodies of uploads, as they arrive: nothing of a file waits here but a piece.

A body is one file (application/octet-stream), or parts of multipart/form-data, each a file whose name is its path.
"""

import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.message import Message

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from starlette.requests import Request

from gateway.errors import InvalidArgument
from gateway.http.calls import pieces_of

_PIECE_BYTES = 256 * 1024
PARTS_LIMIT = 1000
Event = tuple[str, bytes]
"""("part", its name), ("data", some bytes) or ("end", b"")."""


async def body_pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, decompressed. Raises InvalidArgument for another encoding than gzip."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        async for piece in pieces_of(request):
            yield piece
        return
    if encoding != "gzip":
        raise InvalidArgument(f"Content-Encoding: {encoding[:32]!r}: gzip is known, and none")
    inflate = zlib.decompressobj(wbits=31)
    try:
        async for piece in pieces_of(request):
            rest = piece
            while rest:
                if data := inflate.decompress(rest, _PIECE_BYTES):
                    yield data
                rest = inflate.unconsumed_tail
        while data := inflate.decompress(inflate.unconsumed_tail, _PIECE_BYTES):
            yield data
    except zlib.error as error:
        raise InvalidArgument(f"the body is not valid gzip: {error}") from error
    if not inflate.eof:
        raise InvalidArgument("the body is not valid gzip: it was cut off")


@dataclass
class _Parts:
    """Collects what the parser, which limits headers, finds in a piece of a body."""

    events: list[Event] = field(default_factory=list)
    _name: bytes = b""
    _value: bytes = b""
    _disposition: bytes = b""
    _parts: int = 0

    def on_part_begin(self) -> None:
        self._disposition = b""
        self._parts += 1
        if self._parts > PARTS_LIMIT:
            raise InvalidArgument(f"an upload has at most {PARTS_LIMIT:,} files")

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def on_headers_finished(self) -> None:
        self.events.append(("part", _filename(self._disposition).encode()))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.events.append(("data", bytes(data[start:end])))

    def on_part_end(self) -> None:
        self.events.append(("end", b""))


async def multipart_events(request: Request) -> AsyncIterator[Event]:
    """Yield the parts of a multipart body. Raises InvalidArgument."""
    kind = Message()
    kind["content-type"] = request.headers.get("content-type", "")
    boundary = kind.get_param("boundary")
    if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise InvalidArgument("Content-Type: multipart/form-data with a boundary, or application/octet-stream")
    parts = _Parts()
    names = [name for name in dir(parts) if name.startswith("on_")]
    parser = MultipartParser(boundary, {name: getattr(parts, name) for name in names})  # type: ignore[arg-type]
    try:
        async for piece in body_pieces(request):
            parser.write(piece)
            for event in parts.events:
                yield event
            parts.events.clear()
        parser.finalize()
    except FormParserError as error:
        raise InvalidArgument(f"the body is not valid multipart/form-data: {error}") from error


def _filename(disposition: bytes) -> str:
    """Return the name of a part's file; InvalidArgument if it has none."""
    header = Message()
    header["content-disposition"] = disposition.decode("utf-8", "replace")
    name = header.get_filename()
    if not name:
        raise InvalidArgument("a part has no file name, which is the path that it is written to")
    return name
