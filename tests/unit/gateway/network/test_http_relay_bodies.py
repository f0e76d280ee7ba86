"""Bodies and connections on their way through the relay: streamed, ended and broken off as the other side did it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tracemalloc
from typing import Any

import h11
import pytest

from gateway.network.http_client import RelayLimits, Streams
from tests.unit.gateway.network.relayed import (
    OK,
    Handler,
    Relay,
    answer,
    closing,
    echo,
    head,
    relayed,
    saying,
)

_GET = b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n"
_POST = b"POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\n"
_PIECE = bytes(range(256)) * 256
_PIECES = 512  # 32 MiB


async def _raw_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that reads a head and echoes all that follows, until its client has said enough."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nX-A: 1\r\n\r\nhi")
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")
    await writer.drain()


async def _post(relay: Relay, headers: bytes, body: bytes = b"") -> Streams:
    reader, writer = await relay.connect()
    writer.write(_POST + headers + b"\r\n" + body)
    return reader, writer


async def test_large_bodies_are_streamed_both_ways_in_constant_memory() -> None:
    sums = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = hashlib.sha256()
        for _ in range(_PIECES):
            got.update(await reader.readexactly(len(_PIECE)))
        sums.append(got.digest())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (_PIECES * len(_PIECE)))
        for _ in range(_PIECES):
            writer.write(_PIECE)
            await writer.drain()

    async with relayed({"good.example": handle}) as relay:
        tracemalloc.start()
        reader, writer = await _post(relay, b"Content-Length: %d\r\n" % (_PIECES * len(_PIECE)))
        expected, got = hashlib.sha256(), hashlib.sha256()
        for _ in range(_PIECES):
            expected.update(_PIECE)
            writer.write(_PIECE)
            await writer.drain()
        assert (await head(reader)).startswith(b"HTTP/1.1 200 ")
        for _ in range(_PIECES):
            got.update(await reader.readexactly(len(_PIECE)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sums == [expected.digest()]
        assert got.digest() == expected.digest()
        assert peak < 8 * 1024 * 1024
        writer.close()


async def test_a_slow_reader_holds_the_server_back() -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (_PIECES * len(_PIECE)))
        for _ in range(_PIECES):
            writer.write(_PIECE)
            await writer.drain()
            sent += 1

    async with relayed({"good.example": handle}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        await head(reader)
        before = -1
        while before != sent:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < _PIECES
        for _ in range(_PIECES):
            await reader.readexactly(len(_PIECE))
        assert sent == _PIECES
        writer.close()


async def test_chunks_and_trailers_pass_both_ways_and_chunk_extensions_do_not() -> None:
    seen = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2;a=b\r\nok\r\n0\r\n"
            b"X-Sum: 2\r\nTransfer-Encoding: chunked\r\nSet-Cookie: a=b\r\n\r\n"
        )

    async with relayed({"good.example": handle}) as relay:
        reader, writer = await _post(
            relay,
            b"Transfer-Encoding: chunked\r\n",
            b'3;x="\r\nabc\r\n0;y\r\nX-Sum: 3\r\nHost: evil.example\r\nAuthorization: x\r\nContent-Length: 9\r\n\r\n',
        )
        start = await head(reader)
        assert b"Transfer-Encoding: chunked\r\n" in start
        assert b"Trailer: X-Sum\r\n" in start
        assert await head(reader) == b"2\r\nok\r\n0\r\nX-Sum: 2\r\n\r\n"
        assert seen == [b"3\r\nabc\r\n0\r\nX-Sum: 3\r\n\r\n"]
        writer.close()


@pytest.mark.parametrize(
    "body",
    [b"5\r\nabc\r\n0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"-3\r\nabc\r\n", b"3;\nabc\r\n"],
)
async def test_a_chunk_that_is_not_one_ends_the_request(body: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(OK if b"POST" in start else b"")

    smuggled = b"GET http://good.example/smuggled HTTP/1.1\r\nHost: good.example\r\n\r\n"
    async with relayed({"good.example": handle}) as relay:
        got = await relay.ask(_POST + b"Transfer-Encoding: chunked\r\n\r\n" + body + smuggled)
        assert got.startswith(b"HTTP/1.1 400 ")
        assert len(relay.gate.judged) == 1
        reader, writer = await _post(relay, b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n")
        assert (await answer(reader))[1] == b"ok"
        writer.close()


async def test_100_continue_is_the_servers_to_say() -> None:
    go = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue\r\n" in start
        await go.wait()
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)

    async with relayed({"good.example": handle}) as relay:
        reader, writer = await _post(relay, b"Content-Length: 5\r\nExpect: 100-continue\r\n")
        go.set()
        assert (await head(reader)).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hello")
        assert (await answer(reader))[1] == b"hello"
        writer.close()


async def test_a_client_whose_expectation_fails_sends_no_body_and_is_closed() -> None:
    given = b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"
    async with relayed({"good.example": saying(given)}) as relay:
        got = await relay.ask(_POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert got == b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        evil = _POST.replace(b"good", b"evil")
        refused = await relay.ask(evil + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert b"Connection: close" in refused


async def test_hints_before_the_answer_are_passed_on() -> None:
    async with relayed({"good.example": saying(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK)}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        assert await head(reader) == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        assert (await answer(reader))[1] == b"ok"
        writer.close()


@pytest.mark.parametrize(
    "method, status", [(b"HEAD", b"200 OK"), (b"GET", b"304 Not Modified"), (b"GET", b"204 No Content")]
)
async def test_an_answer_without_a_body_ends_at_its_head(method: bytes, status: bytes) -> None:
    length = b"" if status.startswith(b"204") else b"Content-Length: 1000\r\n"
    async with relayed({"good.example": saying(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n", OK)}) as relay:
        reader, writer = await relay.connect()
        writer.write(method + _GET.removeprefix(b"GET"))
        assert await head(reader) == b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n"
        writer.write(_GET)
        assert (await answer(reader))[1] == b"ok"
        assert relay.servers["good.example"].connections == 1
        writer.close()


async def test_an_answer_without_a_length_ends_when_the_server_closes() -> None:
    async with relayed({"good.example": closing(b"HTTP/1.0 200 OK\r\n\r\nsome")}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        assert b"Transfer-Encoding: chunked" in await head(reader)
        assert await head(reader) == b"4\r\nsome\r\n0\r\n\r\n"
        writer.write(_GET)  # the client's connection goes on
        await head(reader)
        assert relay.servers["good.example"].connections == 2
        writer.close()
        old = await relay.ask(b"GET http://good.example/ HTTP/1.0\r\n\r\n")
        assert old == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsome"


@pytest.mark.parametrize(
    "given",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalfway\r\n",
    ],
)
async def test_an_answer_that_is_broken_off_never_looks_complete(given: bytes) -> None:
    async with relayed({"good.example": closing(given)}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        assert (await head(reader)).startswith(b"HTTP/1.1 200 ")
        got = b""
        try:
            while piece := await reader.read(100):
                got += piece
        except ConnectionResetError:
            pass
        assert b"0\r\n" not in got
        assert len(got) < 10
        assert [refused.status for refused in relay.gate.refusals] == [502]
        writer.close()


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX-Secret",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX-Secret : 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Secret: " + b"a" * 70_000,
    ],
)
async def test_a_server_that_does_not_answer_in_http_is_a_502(given: bytes) -> None:
    async with relayed({"good.example": closing(given), "also.example": echo}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        start, body = await answer(reader)
        assert start.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        told = json.loads(body)
        assert (told["error"], told["host"], told["port"]) == ("bad_gateway", "good.example", 80)
        assert b"X-Secret" not in body
        writer.write(_GET.replace(b"good", b"also"))  # the client's connection goes on
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        writer.close()


_FIELD = b"a:\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%s\r\nok"
_TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n%s\r\n"
_HINTS = b"HTTP/1.1 103 Early Hints\r\n%s\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def fields_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many fields h11 reads at once."""
    counts: list[int] = []

    def counted(lines: list[bytes]) -> Any:
        counts.append(len(lines))
        return decode(lines)

    decode = h11._readers._decode_header_lines
    monkeypatch.setattr(h11._readers, "_decode_header_lines", counted)
    return counts


@pytest.mark.parametrize("given, others", [(_HEAD, 1), (_TRAILERS, 0), (_HINTS, 0)])
async def test_the_fields_of_an_answer_are_counted_before_they_are_read(
    given: bytes, others: int, fields_read: list[int]
) -> None:
    for count, whole in ((200 - others, True), (201 - others, False), (60_000, False)):
        fields_read.clear()
        async with relayed({"good.example": closing(given % (_FIELD * count))}) as relay:
            reader, writer = await relay.connect()
            writer.write(_GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            got = await asyncio.wait_for(reader.read(), 20)
            assert bool(relay.gate.refusals) is not whole
            assert whole or relay.gate.refusals[0].body["error"] == "bad_gateway"
            assert got.count(b"\r\na: ") == (count if whole else 0)
            assert max(fields_read) <= 1500
            writer.close()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("count, whole", [(20, True), (21, False)])
async def test_informational_answers_are_counted(version: bytes, count: int, whole: bool) -> None:
    given = b"HTTP/1.1 103 Early Hints\r\n\r\n" * count + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with relayed({"good.example": closing(given)}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET.replace(b"HTTP/1.1\r\n", b"HTTP/%s\r\nConnection: close\r\n" % version))
        got = await asyncio.wait_for(reader.read(), 20)
        assert got.count(b" 103 ") == (20 if version == b"1.1" else 0)
        assert [one.body["error"] for one in relay.gate.refusals] == ([] if whole else ["bad_gateway"])
        assert (b"HTTP/1.1 200 OK" in got) is whole
        writer.close()


async def test_an_answer_of_many_lines_is_passed_on_as_it_is() -> None:
    body = b"\n" * 70_000 + b"0\r\n\r\n" * 1000 + bytes(range(256)) * 500
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    known = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for given in (chunked, known):
        async with relayed({"good.example": closing(given)}) as relay:
            reader, writer = await relay.connect()
            writer.write(_GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            client, got = h11.Connection(h11.CLIENT), b""
            client.send(h11.Request(method="GET", target="/", headers=[(b"Host", b"good.example")]))
            client.send(h11.EndOfMessage())
            client.receive_data(await asyncio.wait_for(reader.read(), 20))
            while not isinstance(event := client.next_event(), h11.EndOfMessage):
                got += event.data if isinstance(event, h11.Data) else b""
            assert got == body
            writer.close()


async def test_a_server_that_cannot_be_reached_is_a_502() -> None:
    async with relayed({"good.example": echo}) as relay:
        relay.gate.servers["none.example"] = 1
        reader, writer = await relay.connect()
        writer.write(_GET.replace(b"good", b"none") + _GET)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 502 ")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_server_that_stalls_is_a_504_and_one_that_only_takes_long_is_not() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n")
        for _ in range(15):
            await asyncio.sleep(0.1)
            writer.write(b".")

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with relayed({"good.example": slow, "also.example": stall}, limits=RelayLimits(idle_s=1)) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        assert (await answer(reader))[1] == b"." * 15
        writer.write(_GET.replace(b"good", b"also"))
        start, body = await answer(reader)
        assert start.startswith(b"HTTP/1.1 504 ")
        assert json.loads(body)["error"] == "gateway_timeout"
        await asyncio.wait_for(relay.servers["also.example"].closed.wait(), 20)
        writer.close()


async def test_an_early_answer_arrives_while_the_body_is_still_being_sent() -> None:
    given = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"
    async with relayed({"good.example": closing(given)}) as relay:
        reader, writer = await _post(relay, b"Content-Length: 1000000\r\n", b"a" * 1000)
        start, body = await answer(reader)
        assert start.startswith(b"HTTP/1.1 413 ")
        assert b"Connection: close" in start
        assert body == b"big"
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_closes_the_server() -> None:
    asked = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()

    async with relayed({"good.example": handle}) as relay:
        for request in (_GET, _POST + b"Content-Length: 10\r\n\r\nhalf"):
            asked.clear()
            relay.servers["good.example"].closed.clear()
            _, writer = await relay.connect()
            writer.write(request)
            await asyncio.wait_for(asked.wait(), 20)
            assert not relay.servers["good.example"].closed.is_set()
            writer.close()
            await asyncio.wait_for(relay.servers["good.example"].closed.wait(), 20)


async def test_a_request_is_sent_again_if_the_server_closed_its_idle_connection() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")  # as if it closed just when the next one came

    async with relayed({"good.example": handle}) as relay:
        reader, writer = await relay.connect()
        for _ in range(3):
            writer.write(_GET)
            assert (await answer(reader))[1] == b"ok"
        assert relay.servers["good.example"].connections == 3
        writer.write(_POST + b"Content-Length: 1\r\n\r\na")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 502 ")
        writer.close()


async def test_bytes_after_an_answer_are_not_the_next_ones() -> None:
    async with relayed({"good.example": saying(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")}) as relay:
        reader, writer = await relay.connect()
        for _ in range(2):
            writer.write(_GET)
            assert (await answer(reader))[1] == b"ok"
        assert relay.servers["good.example"].connections == 2
        writer.close()


_WEBSOCKET = _GET[:-2] + b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n"


async def test_a_websocket_is_raw_bytes_both_ways_with_half_close() -> None:
    async with relayed({"good.example": _raw_echo}) as relay:
        reader, writer = await relay.connect()
        writer.write(_WEBSOCKET + b"early")
        assert await head(reader) == (
            b"HTTP/1.1 101 Switching Protocols\r\nX-A: 1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert await reader.readexactly(7) == b"hiearly"
        writer.write(_PIECE)
        assert await reader.readexactly(len(_PIECE)) == _PIECE
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 20) == b"bye"
        await asyncio.wait_for(relay.ended.wait(), 20)
        writer.close()


async def test_a_server_may_decline_a_websocket() -> None:
    async with relayed({"good.example": saying(OK)}) as relay:
        reader, writer = await relay.connect()
        writer.write(_WEBSOCKET + _GET)
        assert (await answer(reader))[1] == b"ok"
        assert (await answer(reader))[1] == b"ok"
        writer.close()


@pytest.mark.parametrize("host", ["good", "also"])
async def test_only_the_protocol_asked_for_is_switched_to(host: str) -> None:
    other: Handler = closing(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    async with relayed({"good.example": _raw_echo, "also.example": other}) as relay:
        reader, writer = await relay.connect()
        writer.write(_WEBSOCKET.replace(b"good", host.encode()))
        expected = b"HTTP/1.1 101 " if host == "good" else b"HTTP/1.1 502 "
        assert (await head(reader)).startswith(expected)
        writer.close()


@pytest.mark.parametrize("way", ["up", "down"])
async def test_others_have_their_turn_between_many_small_pieces(way: str) -> None:
    pieces = 5000
    chunks = b"1\r\nx\r\n" * pieces + b"0\r\n\r\n"
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\n\r\n" if way == "up" else b"\r\n\r\n")
        if way == "down":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
            await writer.drain()
            await reader.read()
            return
        writer.write(OK)

    async def turns() -> int:
        count = 0
        while not ended.is_set():
            await asyncio.sleep(0)
            count += 1
        return count

    async with relayed({"good.example": serve}) as relay:
        counting = asyncio.create_task(turns())
        coding = b"Transfer-Encoding: chunked\r\n" if way == "up" else b""
        method = b"POST" if way == "up" else b"GET"
        reader, writer = await relay.connect()
        head_ = b"%b http://good.example/ HTTP/1.1\r\nHost: good.example\r\n%b\r\n" % (method, coding)
        writer.write(head_ + (chunks if way == "up" else b""))
        await asyncio.wait_for(reader.readuntil(b"ok" if way == "up" else b"0\r\n\r\n"), 20)
        ended.set()
        writer.close()
        assert await counting > pieces
