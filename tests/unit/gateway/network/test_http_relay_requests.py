"""Which requests are relayed, how servers get them, and which are refused before any server hears of them."""

from __future__ import annotations

import asyncio
import json
import socket

import h11
import pytest

from gateway.network.http_client import RelayLimits, Streams
from gateway.network.http_relay import relay_http
from gateway.network.http_request import Origin
from tests.unit.gateway.network.relayed import OK, Gate, answer, echo, relayed, saying

_GET = b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n"
_UPGRADE = b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade"


async def test_absolute_form_becomes_origin_form_and_the_connection_stays() -> None:
    async with relayed({"good.example": echo}) as relay:
        reader, writer = await relay.connect()
        for path in (b"/a?b=c", b"/d"):
            writer.write(b"GET http://Good.Example.%s HTTP/1.1\r\nHost: good.example\r\nX-A: 1\r\n\r\n" % path)
            start, got = await answer(reader)
            assert start.startswith(b"HTTP/1.1 200 OK\r\n")
            assert got == b"GET %s HTTP/1.1\r\nHost: good.example\r\nX-A: 1\r\n\r\n" % path
        assert relay.servers["good.example"].connections == 1
        assert [(one.method, one.origin, one.target) for one in relay.gate.judged] == [
            ("GET", Origin("http", "good.example", 80), "/a?b=c"),
            ("GET", Origin("http", "good.example", 80), "/d"),
        ]
        assert relay.gate.up > 0
        assert relay.gate.down > 0
        writer.close()


async def test_inside_a_tunnel_origin_form_goes_to_its_server() -> None:
    async with relayed({"good.example": echo}, origin=Origin("https", "good.example", 443)) as relay:
        reader, writer = await relay.connect()
        writer.write(b"GET /a HTTP/1.1\r\nHost: good.example\r\n\r\n")
        assert (await answer(reader))[1].startswith(b"GET /a HTTP/1.1\r\nHost: good.example\r\n")
        writer.write(b"GET /a HTTP/1.1\r\nHost: good.example:443\r\n\r\n")
        assert (await answer(reader))[1].startswith(b"GET /a HTTP/1.1\r\nHost: good.example\r\n")
        writer.write(b"GET /a HTTP/1.1\r\nHost: other.example\r\n\r\n")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 400 ")
        assert await reader.read() == b""
        writer.close()
        assert b" 400 " in await relay.ask(b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n")


async def test_a_pipelined_second_request_is_judged_and_dialled_anew() -> None:
    async with relayed({"good.example": echo, "also.example": echo}) as relay:
        reader, writer = await relay.connect()
        ask = b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n"
        writer.write(b"".join(ask % (host, host) for host in (b"good.example", b"evil.example", b"also.example")))
        assert b"Host: good.example" in (await answer(reader))[1]
        start, refusal = await answer(reader)
        assert start.startswith(b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n")
        assert json.loads(refusal) == {
            "error": "policy_denied",
            "rule": "r",
            "reason": "no",
            "host": "evil.example",
            "port": 80,
        }
        assert b"Host: also.example" in (await answer(reader))[1]
        assert [origin.host for origin in relay.gate.dialled] == ["good.example", "also.example"]
        assert [refused.status for refused in relay.gate.refusals] == [403]
        writer.close()


async def test_headers_of_one_connection_only_are_not_passed_on() -> None:
    async with relayed({"good.example": echo}) as relay:
        reader, writer = await relay.connect()
        writer.write(
            b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: keep-alive, X-Mine\r\n"
            b"Keep-Alive: timeout=5\r\nX-Mine: 1\r\nX-Other: 2\r\nTE: trailers\r\nProxy-Connection: keep-alive\r\n"
            b"Proxy-Authorization: Basic eA==\r\n\r\n"
        )
        assert (await answer(reader))[1] == b"GET / HTTP/1.1\r\nHost: good.example\r\nX-Other: 2\r\n\r\n"
        writer.close()


async def test_an_answers_headers_of_one_connection_are_not_passed_on() -> None:
    given = (
        b"HTTP/1.1 200 Very Well\r\nConnection: X-Mine\r\nX-Mine: 1\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n"
        b"Keep-Alive: timeout=5\r\nX-Other: 2\r\nContent-Length: 2\r\n\r\nok"
    )
    async with relayed({"good.example": saying(given)}) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET)
        assert await answer(reader) == (b"HTTP/1.1 200 OK\r\nX-Other: 2\r\nContent-Length: 2\r\n\r\n", b"ok")
        writer.close()


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(b"POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\n" + framing + b"\r\n", id=name)
        for name, framing in {
            "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
            "the same length twice": b"Content-Length: 5\r\nContent-Length: 5\r\n",
            "a list of lengths": b"Content-Length: 5, 5\r\n",
            "a signed length": b"Content-Length: +5\r\n",
            "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "another coding": b"Transfer-Encoding: gzip, chunked\r\n",
            "a hidden coding": b"Transfer-Encoding: xchunked\r\n",
            "a space before the colon": b"Content-Length : 5\r\n",
            "a folded header": b"X-A: 1\r\n Content-Length: 5\r\n",
            "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n",
            "a bare LF": b"X-A: 1\nContent-Length: 5\r\n",
            "a bare CR": b"X-A: 1\rContent-Length: 5\r\n",
            "NUL": b"X-A: 1\x00\r\n",
            "no colon": b"X-A\r\n",
            "Connection names the length": b"Connection: Content-Length\r\nContent-Length: 5\r\n",
            "Connection names Host": b"Connection: host\r\n",
            "two Hosts": b"Host: good.example\r\n",
            "an unknown expectation": b"Expect: 200-ok\r\n",
        }.items()
    ]
    + [
        b"GET http://good.example/ HTTP/1.1\r\n\r\n",
        b"GET http://good.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://good.example/ HTTP/1.1\r\nHost: good.example:8080\r\n\r\n",
        b"GET http://good.example:81/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://user:word@good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example:/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example:0/ HTTP/1.1\r\nHost: good.example:0\r\n\r\n",
        b"GET http://good.example:65536/ HTTP/1.1\r\nHost: good.example:65536\r\n\r\n",
        b"GET http://good.ex%61mple/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example\\@evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http:///path HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET https://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET ftp://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example/#part HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example/a b HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"CONNECT good.example:443 HTTP/1.1\r\nHost: good.example:443\r\n\r\n",
        b"TRACE http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET http://good.example/ HTTP/2.0\r\nHost: good.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST http://good.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        _UPGRADE + b", HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nUpgrade: h2c\r\n\r\n",
        _UPGRADE + b"\r\nUpgrade: websocket, h2c\r\n\r\n",
        _UPGRADE + b"\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_what_could_be_read_in_two_ways_never_reaches_a_server(lines: bytes) -> None:
    smuggled = b"0\r\n\r\nGET http://good.example/smuggled HTTP/1.1\r\nHost: good.example\r\n\r\n"
    async with relayed({"good.example": saying(OK), "evil.example": saying(OK)}) as relay:
        got = await relay.ask(lines + smuggled)
        assert got.startswith(b"HTTP/1.1 ")
        assert got.count(b"HTTP/1.1 4") + got.count(b"HTTP/1.1 5") == 1
        assert got.split(b" ", 2)[1] in {b"400", b"417", b"501", b"505"}
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"] == "bad_request"
        assert b"\r\nConnection: close\r\n" in got
        assert relay.gate.judged == []
        assert len(relay.gate.refusals) == 1
        reader, writer = await relay.connect()
        writer.write(_GET)
        assert (await answer(reader))[1] == b"ok"
        writer.close()


@pytest.mark.parametrize(
    "path, sent, paths",
    [
        ("/a/./b/../c", "/a/c", ["/a/c"]),
        ("/%61/%2e%2E/b", "/b", ["/b"]),
        ("/../../a", "/a", ["/a"]),
        ("/a/..", "/", ["/"]),
        ("/a/%2fb%3f", "/a/%2Fb%3F", ["/a/%2Fb%3F", "/a//b%3F", "/a/b%3F"]),
        ("/@scope%2fname", "/@scope%2Fname", ["/@scope%2Fname", "/@scope/name"]),
        ("//admin;x/y", "//admin;x/y", ["//admin;x/y", "/admin/y"]),
        ("/a...b/..c?x=../..%2f", "/a...b/..c?x=../..%2f", ["/a...b/..c"]),
    ],
)
async def test_a_path_is_settled_before_it_is_judged_and_sent_so(path: str, sent: str, paths: list[str]) -> None:
    async with relayed({"good.example": echo}) as relay:
        reader, writer = await relay.connect()
        writer.write(f"GET http://good.example{path} HTTP/1.1\r\nHost: good.example\r\n\r\n".encode())
        assert (await answer(reader))[1].split(b" ")[1].decode() == sent
        assert list(relay.gate.judged[0].paths) == paths
        writer.close()


@pytest.mark.parametrize(
    "path",
    ["/a/..%2fb", "/a/%2e%2e%2fb", "/a/..%5cb", "/a/%252e%252e/b", "/a/..;/b", "/a\\..\\b", "/%", "/%zz", "/a%00"],
)
async def test_a_path_that_hides_where_it_leads_is_refused(path: str) -> None:
    async with relayed({"good.example": echo}) as relay:
        got = await relay.ask(f"GET http://good.example{path} HTTP/1.1\r\nHost: good.example\r\n\r\n".encode())
        assert got.startswith(b"HTTP/1.1 400 ")
        assert relay.gate.judged == []


async def test_a_head_is_bounded_in_bytes_and_time() -> None:
    async with relayed({"good.example": echo}, limits=RelayLimits(head_s=0.5, idle_s=20)) as relay:
        padded = b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX: %s\r\n\r\n"
        reader, writer = await relay.connect()
        writer.write(padded % (b"a" * 60_000))
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert (await relay.ask(padded % (b"a" * 70_000))).startswith(b"HTTP/1.1 431 ")
        assert (await relay.ask(padded[:30])).startswith(b"HTTP/1.1 408 ")


async def test_a_long_url_is_refused_before_it_is_judged() -> None:
    async with relayed({"good.example": echo}) as relay:
        asked = b"GET %s HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"
        url = b"http://good.example/?"
        got = await relay.ask(asked % (url + b"a" * (8193 - len(url))))
        assert got.startswith(b"HTTP/1.1 414 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"] == "bad_request"
        assert relay.gate.judged == []
        assert (await relay.ask(asked % (url + b"a" * (8192 - len(url))))).startswith(b"HTTP/1.1 200 ")


async def test_header_fields_are_counted_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relayed({"good.example": echo}) as relay:
        asked = b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n%s\r\n"
        assert (await relay.ask(asked % (b"a:\r\n" * 198))).startswith(b"HTTP/1.1 200 ")
        monkeypatch.setattr(h11.Connection, "receive_data", None)
        for count in (199, 15_900):
            got = await relay.ask(asked % (b"a:\r\n" * count))
            assert got.startswith(b"HTTP/1.1 431 ")
            assert b"%d header fields; send at most 200" % (count + 2) in got
        assert len(relay.gate.judged) == 1


async def test_a_connection_that_asks_for_nothing_is_closed() -> None:
    async with relayed({"good.example": echo}, limits=RelayLimits(idle_s=0.5)) as relay:
        assert await relay.ask(b"") == b""
        reader, writer = await relay.connect()
        writer.write(_GET)
        await answer(reader)
        assert await reader.read() == b""
        writer.close()


async def test_an_http10_client_needs_no_host_and_gets_no_chunks() -> None:
    given = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"
    async with relayed({"good.example": saying(given)}) as relay:
        got = await relay.ask(b"GET http://good.example/ HTTP/1.0\r\n\r\n")
        assert got == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"


async def test_a_refused_request_with_a_small_body_leaves_the_connection_usable() -> None:
    async with relayed({"good.example": echo}) as relay:
        reader, writer = await relay.connect()
        writer.write(
            b"POST http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 5\r\n\r\nhello" + _GET
        )
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 403 ")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_refused_request_with_a_large_body_ends_the_connection_after_the_answer() -> None:
    async with relayed({"good.example": echo}) as relay:
        ask = b"POST http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 200000\r\n\r\n"
        got = await relay.ask(ask + bytes(200_000))
        assert got.startswith(b"HTTP/1.1 403 ")
        assert got.endswith(b"}\n")
        assert b"Connection: close" in got


async def test_a_client_that_does_not_read_is_still_served_so_the_relay_has_not_ended() -> None:
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + bytes(20_000_000)
    async with relayed({"good.example": saying(large)}, limits=RelayLimits(idle_s=3)) as relay:
        reader, writer = await relay.connect()
        writer.write(_GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await reader.readexactly(1000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(relay.ended.wait(), 1)
        assert len(await reader.read()) > 19_999_000
        await asyncio.wait_for(relay.ended.wait(), 20)
        writer.close()


async def test_a_refused_head_request_is_answered_without_a_body() -> None:
    async with relayed({"good.example": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")}) as relay:
        ask = b"HEAD http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
        refused = await relay.ask(ask % (b"evil.example", b"evil.example"))
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert refused.endswith(b"\r\n\r\n")
        assert await relay.ask(ask % (b"good.example", b"good.example")) == (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
        )


async def test_a_client_that_leaves_while_its_request_is_judged_withdraws_it() -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    async with relayed({"good.example": echo}, answer_to=hold) as relay:
        _, writer = await relay.connect()
        writer.write(_GET)
        await asyncio.wait_for(asked.wait(), 20)
        assert not withdrawn.is_set()
        writer.close()
        await asyncio.wait_for(withdrawn.wait(), 20)
        assert relay.gate.dialled == []


async def test_a_relay_that_is_cancelled_just_as_it_connected_closes_that_connection() -> None:
    opened: list[asyncio.StreamWriter] = []

    class Cancelling(Gate):
        async def dial(self, origin: Origin) -> Streams:
            streams = await super().dial(origin)
            opened.append(streams[1])
            serving.cancel()
            return streams

    async with relayed({"good.example": echo}) as relay:
        ours, its = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        serving = asyncio.create_task(
            relay_http(await asyncio.open_connection(sock=its), Cancelling(relay.gate.servers), first=_GET)
        )
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert opened[0].is_closing()
        await asyncio.wait_for(relay.servers["good.example"].closed.wait(), 20)
        writer.close()
