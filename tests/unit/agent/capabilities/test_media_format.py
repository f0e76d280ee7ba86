"""What a file is by its first bytes, and how large an image is by its header."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities.media_format import media_of
from tests.made_images import PDF, png, png_header

EXIF = b"\xff\xe1" + struct.pack(">H", 8) + b"Exif\0\0"
TABLES = b"\xff\xc4" + struct.pack(">H", 6) + b"\0\0\0\0"
FRAME = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, 480, 640)
JPEG = b"\xff\xd8" + EXIF + TABLES + b"\xff" + FRAME + b"\xff\xd9"
GIF = b"GIF89a" + struct.pack("<HH", 640, 480)


def _webp(chunk: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


LOSSY = _webp(b"VP8 " + bytes(7) + b"\x9d\x01\x2a" + struct.pack("<HH", 640 | 1 << 14, 480))
LOSSLESS = _webp(b"VP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 639 | 479 << 14))
EXTENDED = _webp(b"VP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little"))
IMAGES = {
    "png": (png(640, 480), "image/png"),
    "jpeg": (JPEG, "image/jpeg"),
    "gif": (GIF, "image/gif"),
    "lossy webp": (LOSSY, "image/webp"),
    "lossless webp": (LOSSLESS, "image/webp"),
    "extended webp": (EXTENDED, "image/webp"),
}
# Where the header that says the size begins, and where it ends.
HEADERS = {
    "png": (8, 24),
    "jpeg": (3, len(JPEG) - 2),
    "gif": (6, 10),
    "lossy webp": (12, 30),
    "lossless webp": (12, 25),
    "extended webp": (12, 30),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_known_by_its_first_bytes_and_its_size_by_its_header(kind: str) -> None:
    data, media_type = IMAGES[kind]
    media = media_of(data)
    assert (media.media_type, media.width, media.height) == (media_type, 640, 480)
    assert str(media) == f"{media.name} image, 640 x 480 pixels"


def test_a_pdf_has_no_size_in_pixels() -> None:
    media = media_of(PDF)
    assert (media.media_type, str(media), media.width) == ("application/pdf", "PDF", None)


@pytest.mark.parametrize("kind", IMAGES)
def test_a_header_that_is_cut_says_so(kind: str) -> None:
    data, _ = IMAGES[kind]
    begin, end = HEADERS[kind]
    for length in range(begin, end):
        with pytest.raises(ValueError, match="a cut or damaged header"):
            media_of(data[:length])


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"<svg/>", b"\x89PN", b"BM6", b"PK\x03\x04", b" %PDF-1.4", b"RIFF\0\0\0\0WAVE"]
)
def test_anything_else_is_not_shown(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a PNG, JPEG, GIF, WebP or PDF"):
        media_of(data)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_an_image_without_an_inside_is_damaged(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="damaged"):
        media_of(png_header(*size))


@pytest.mark.parametrize("size", [(16_385, 1), (1, 2**32 - 1), (10_000, 10_000)])
def test_an_image_that_is_huge_once_decoded_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="make a smaller copy") as refused:
        media_of(png_header(*size))
    assert f"{size[0]} x {size[1]} pixels" in str(refused.value)


def test_a_jpeg_of_endless_segments_is_given_up() -> None:
    empty = b"\xff\xd8" + b"\xff\xe0\x00\x02" * 1_000_000
    padding = b"\xff\xd8" + b"\xff" * 4_000_000
    for data in (empty, padding):
        with pytest.raises(ValueError, match="damaged"):
            media_of(data)


@given(st.sampled_from(sorted(IMAGES)), st.binary(max_size=64), st.integers(0, 40))
def test_no_bytes_are_anything_but_a_media_or_a_value_error(kind: str, junk: bytes, at: int) -> None:
    data = IMAGES[kind][0]
    try:
        media = media_of(data[:at] + junk + data[at + len(junk) :])
    except ValueError:
        return
    assert media.width is None or media.width > 0
