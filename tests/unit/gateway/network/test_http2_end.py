"""One end of an HTTP/2 connection, as the relay uses it."""

from __future__ import annotations

import asyncio
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, RequestReceived, StreamEnded

from gateway.network.http2_end import End

_ASKED = [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")]


class Written:
    """Stands in for a writer: each write is a piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    async def drain(self) -> None:
        """Have room at once."""

    def is_closing(self) -> bool:
        return False


async def test_the_close_is_in_one_piece_with_the_last_answer_and_what_comes_then_is_dropped() -> None:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, _ASKED, end_stream=True)
    reader, writer = asyncio.StreamReader(), Written()
    streams: Any = reader, writer
    end = End(streams, client_side=False)
    await end.start()
    reader.feed_data(client.data_to_send())
    assert any(isinstance(event, RequestReceived) for event in await end.read())
    end.closes_with = lambda stream: stream
    await end.send_headers(1, [(b":status", b"200")])
    await end.send_data(1, b"answer", end=True)
    *before, last = writer.pieces
    client.receive_data(b"".join(before))
    seen = client.receive_data(last)
    assert any(isinstance(event, StreamEnded) for event in seen)
    (terminated,) = [event for event in seen if isinstance(event, ConnectionTerminated)]
    assert (terminated.last_stream_id, terminated.error_code) == (1, 0)
    count = len(writer.pieces)
    other = H2Connection(H2Configuration(client_side=True))  # the first takes the close for the end
    other.initiate_connection()
    other.data_to_send()
    other.send_headers(3, _ASKED, end_stream=True)
    other.increment_flow_control_window(1000)
    reader.feed_data(other.data_to_send())
    assert await end.read() == []
    assert len(writer.pieces) == count
