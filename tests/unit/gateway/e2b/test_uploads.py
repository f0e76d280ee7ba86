from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gateway.e2b import uploads
from gateway.e2b.uploads import PARTS_LIMIT, body_pieces, multipart_events
from gateway.errors import InvalidArgument

_BOUNDARY = "b0undary"


def _request(pieces: Sequence[bytes], **headers: str) -> Request:
    left = list(pieces)

    async def receive() -> Any:
        body = left.pop(0) if left else b""
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/files", "headers": sent}, receive)


def _form(*files: tuple[str, bytes]) -> bytes:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in files
    ]
    return b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()


async def _files(pieces: Sequence[bytes]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    request = _request(pieces, content_type=f"multipart/form-data; boundary={_BOUNDARY}")
    async for kind, value in multipart_events(request):
        if kind == "part":
            found.append((value.decode(), b""))
        elif kind == "data":
            found[-1] = (found[-1][0], found[-1][1] + value)
    return found


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 50))
async def test_parts_arrive_as_they_were_sent_however_they_are_cut(one: bytes, two: bytes, size: int) -> None:
    form = _form(("a/b.txt", one), ("/tmp/ü", two))
    pieces = [form[at : at + size] for at in range(0, len(form), size)]
    assert await _files(pieces) == [("a/b.txt", one), ("/tmp/ü", two)]


@pytest.mark.parametrize(
    "body, said",
    [
        (b"no form", "not valid multipart"),
        (f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"\r\n\r\nx'.encode(), "no file name"),
        (f"--{_BOUNDARY}\r\nX: {'x' * 10_000}\r\n\r\nx".encode(), "header size exceeded"),
        (_form(*[("a", b"")] * (PARTS_LIMIT + 1)), "at most 1,000 files"),
    ],
)
async def test_a_form_that_is_wrong_says_how(body: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await _files([body])


async def test_a_compressed_body_is_inflated_in_pieces() -> None:
    data = bytes(5_000_000)
    pieces = [piece async for piece in body_pieces(_request([gzip.compress(data, mtime=0)], content_encoding="gzip"))]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= uploads._PIECE_BYTES


@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(b"x" * 100, mtime=0)[:-4]])
async def test_a_body_that_is_not_gzip_or_is_cut_off_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not valid gzip"):
        _ = [piece async for piece in body_pieces(_request([body], content_encoding="gzip"))]
