"""Output on its way to a slow client."""

from __future__ import annotations

import asyncio

from gateway.tool_calls.output_pieces import OutputPieces


async def test_pieces_that_are_not_read_yet_are_merged_and_streams_stay_in_order() -> None:
    pieces = OutputPieces(piece_limit_bytes=4)
    for stream, data in (("stdout", b"ab"), ("stdout", b"cd"), ("stdout", b"e"), ("stderr", b"f"), ("stdout", b"g")):
        pieces.put(stream, data)
    pieces.end()
    taken = []
    while (piece := await pieces.take()) is not None:
        taken.append(piece)
    assert taken == [("stdout", b"abcd"), ("stdout", b"e"), ("stderr", b"f"), ("stdout", b"g")]


async def test_a_reader_that_waits_gets_the_next_piece_and_the_end() -> None:
    pieces = OutputPieces()
    reader = asyncio.create_task(pieces.take())
    await asyncio.sleep(0)
    pieces.put("stdout", b"a")
    assert await reader == ("stdout", b"a")
    reader = asyncio.create_task(pieces.take())
    await asyncio.sleep(0)
    pieces.end()
    assert await reader is None
