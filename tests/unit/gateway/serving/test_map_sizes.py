"""Maps with too many entries are refused before they are decoded, by the numbers that decoding would give."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from airlock.v1 import process_service_pb2, thread_service_pb2, tool_service_pb2
from gateway.errors import InvalidArgument
from gateway.serving.incoming import Incoming, Reads, read_request
from gateway.serving.map_sizes import map_sizes

START, RUN = process_service_pb2.StartProcessRequest, process_service_pb2.RunProgramRequest
LARGE = "x" * 100_000


def program(entries: int, argv: tuple[str, ...] = ("ls", LARGE)) -> bytes:
    """Return an encoded Program, without the time that making the message would take."""
    names = (b"A%06d" % number for number in range(entries))
    env = b"".join(b"\x22\x09\x0a\x07" + name for name in names)
    return process_service_pb2.Program(argv=argv).SerializeToString() + env


def inside(field: int, raw: bytes) -> bytes:
    """Return a message with another one as a field."""
    size, length = len(raw), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + raw


class Sending:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    async def read(self) -> bytes:
        return self.raw


@pytest.mark.parametrize("entries", [0, 1, 3000])
def test_the_entries_are_as_many_as_decoding_finds(entries: int) -> None:
    start = inside(1, program(entries))
    assert len(START.FromString(start).program.env) == entries
    assert list(map_sizes(START, start)) == ([(("program", "env"), entries)] if entries else [])
    run = inside(1, inside(1, program(entries)))
    assert len(RUN.FromString(run).run.program.env) == entries
    assert list(map_sizes(RUN, run)) == ([(("run", "program", "env"), entries)] if entries else [])
    metadata = thread_service_pb2.SetThreadMetadataRequest(set={str(n): "" for n in range(entries)}, remove=[LARGE])
    assert [n for _, n in map_sizes(type(metadata), metadata.SerializeToString())] == [entries] * bool(entries)


def test_messages_that_are_small_or_have_no_maps_are_left_to_the_decoder() -> None:
    assert list(map_sizes(START, inside(1, program(10, ("ls",))))) == []
    assert list(map_sizes(tool_service_pb2.CallToolRequest, LARGE.encode())) == []


def test_what_is_no_message_is_refused_as_the_decoder_refuses_it() -> None:
    broken = inside(1, program(10)) + b"\xff\xff"
    with pytest.raises(DecodeError) as ours:
        list(map_sizes(START, broken))
    with pytest.raises(DecodeError) as usual:
        START.FromString(broken)
    assert str(ours.value) == str(usual.value)


@pytest.mark.parametrize("entries", [16_385, 330_000])
async def test_more_variables_than_a_program_may_have_are_not_decoded(entries: int) -> None:
    async def one(raw: bytes) -> Any:
        return await read_request(Reads(1, 1), "tenant", Sending(raw), START.FromString)

    async def first(raw: bytes) -> Any:
        return await anext(aiter(Incoming(Sending(raw), RUN.FromString, Reads(1, 1), lambda: None, streams=True)))

    said = "16,384 entries at most"
    for read, raw, path in (
        (one, inside(1, program(entries)), "program.env"),
        (first, inside(1, inside(1, program(entries))), "run.program.env"),
    ):
        before = time.thread_time()
        with pytest.raises(InvalidArgument) as refused:
            await read(raw)
        # Decoding 330,000 entries takes some seconds, counting them some milliseconds.
        assert time.thread_time() - before < 0.4
        assert refused.value.violations == {path: said}
        assert str(refused.value) == f"{path}: {said}"


async def test_as_many_variables_as_a_program_may_have_are_decoded() -> None:
    raw = inside(1, program(16_384))
    found = await read_request(Reads(1, 1), "tenant", Sending(raw), START.FromString)
    assert len(found.program.env) == 16_384
