"""The files that a model can be shown, known by their first bytes: PNG, JPEG, GIF, WebP and PDF.

A file's name says nothing: what counts is what the bytes are. They are untrusted, so no header is read past its end,
and an image that would be huge once it is decoded is refused here, not by what decodes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

SIDE_LIMIT_PIXELS = 16_384
IMAGE_LIMIT_PIXELS = 64_000_000
# Segments before a JPEG's size: thumbnails and color profiles fill some hundreds at most.
_SEGMENTS_LIMIT = 1000
# All markers of frames are 0xC0 to 0xCF, but for these, which are tables and extensions.
_NO_FRAMES = frozenset({0xC4, 0xC8, 0xCC})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})

Size = tuple[int, int]
_ByteOrder = Literal["big", "little"]


@dataclass(frozen=True)
class Media:
    """What a file is; `width` and `height` are in pixels, None for a PDF."""

    media_type: str
    name: str
    width: int | None = None
    height: int | None = None

    def __str__(self) -> str:
        return self.name if self.width is None else f"{self.name} image, {self.width} x {self.height} pixels"


def media_of(data: bytes) -> Media:
    """Return what a file is. Raises ValueError if a model cannot be shown it; the message completes "the file ..."."""
    if data.startswith(b"%PDF-"):
        return Media("application/pdf", "PDF")
    found = next(((name, size_of(data)) for name, begins, size_of in _IMAGES if begins(data)), None)
    if found is None:
        raise ValueError("is not a PNG, JPEG, GIF, WebP or PDF, by its first bytes")
    name, size = found
    if size is None or not all(size):
        raise ValueError(f"is a {name} image with a cut or damaged header, which does not say its size in pixels")
    width, height = size
    if max(size) > SIDE_LIMIT_PIXELS or width * height > IMAGE_LIMIT_PIXELS:
        raise ValueError(
            f"is a {name} image of {width} x {height} pixels, and one that can be shown has at most "
            f"{SIDE_LIMIT_PIXELS:,} on a side and {IMAGE_LIMIT_PIXELS:,} in all: make a smaller copy"
        )
    return Media(f"image/{name.lower()}", name, width, height)


def _number(data: bytes, at: int, length: int, byteorder: _ByteOrder = "big") -> int | None:
    """Return an unsigned number, None past the end."""
    piece = data[at : at + length]
    return int.from_bytes(piece, byteorder) if len(piece) == length else None


def _size(data: bytes, width_at: int, height_at: int, length: int, byteorder: _ByteOrder = "big") -> Size | None:
    width, height = (_number(data, at, length, byteorder) for at in (width_at, height_at))
    return None if width is None or height is None else (width, height)


def _png_size(data: bytes) -> Size | None:
    return _size(data, 16, 20, 4) if data[12:16] == b"IHDR" else None


def _gif_size(data: bytes) -> Size | None:
    return _size(data, 6, 8, 2, "little")


def _jpeg_size(data: bytes) -> Size | None:
    """Return the size in the first frame's header, which other segments come before."""
    at = 2
    for _ in range(_SEGMENTS_LIMIT):
        marker = data[at + 1 : at + 2]
        if data[at : at + 1] != b"\xff" or not marker:
            return None
        kind = marker[0]
        if kind == 0xFF:  # a byte of padding
            at += 1
        elif kind in _STANDALONE:
            at += 2
        elif 0xC0 <= kind <= 0xCF and kind not in _NO_FRAMES:
            return _size(data, at + 7, at + 5, 2)
        else:
            length = _number(data, at + 2, 2)
            if length is None or length < 2:
                return None
            at += 2 + length
    return None


def _webp_size(data: bytes) -> Size | None:
    chunk = data[12:16]
    if chunk == b"VP8X":  # extended: 24 bits each, less one
        size = _size(data, 24, 27, 3, "little")
        return size and (size[0] + 1, size[1] + 1)
    if chunk == b"VP8L" and data[20:21] == b"\x2f":  # lossless: 14 bits each, less one
        bits = _number(data, 21, 4, "little")
        return None if bits is None else ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":  # lossy: 14 bits each, and two of scaling
        size = _size(data, 26, 28, 2, "little")
        return size and (size[0] & 0x3FFF, size[1] & 0x3FFF)
    return None


_IMAGES: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], Size | None]], ...] = (
    ("PNG", lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), _png_size),
    ("JPEG", lambda data: data.startswith(b"\xff\xd8\xff"), _jpeg_size),
    ("GIF", lambda data: data.startswith((b"GIF87a", b"GIF89a")), _gif_size),
    ("WebP", lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", _webp_size),
)
