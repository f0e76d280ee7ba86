"""Answers of the API, bounded as they are read."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp

_ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
_EVENT_LIMIT_BYTES = 4 * 1024 * 1024


def status_of(data: bytes) -> Mapping[str, Any]:
    """Return the Status of a refusal, also of one in a watch; nothing of what is none."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    if isinstance(found, dict) and found.get("type") == "ERROR":  # of a watch
        found = found.get("object")
    return found if isinstance(found, dict) else {}


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """Return a body; ValueError for one that is too large."""
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > _ANSWER_LIMIT_BYTES:
            raise ValueError(f"an answer of more than {_ANSWER_LIMIT_BYTES:,} bytes")
    return bytes(data)


@contextmanager
def cut_off(response: aiohttp.ClientResponse) -> Iterator[None]:
    """End the connection at once if the answer is left before its end.

    aiohttp would end it as TLS does, with an answer of the other side; a session that is closed does not wait for that.
    """
    try:
        yield
    finally:
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a watch; ValueError for one that is too long."""
    rest = b""
    async for piece in response.content.iter_any():
        *found, rest = (rest + piece).split(b"\n")
        for line in found:
            if line:
                yield line
        if len(rest) > _EVENT_LIMIT_BYTES:
            raise ValueError(f"an event of more than {_EVENT_LIMIT_BYTES:,} bytes")
