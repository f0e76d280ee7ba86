"""HTTP/2 in TLS that the gateway opens to judge requests: each stream by itself, against clients that mean harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import h11
import pytest
from hpack import Decoder

import gateway.network.decision
import gateway.network.door
from gateway.config.network_settings import CredentialSettings
from gateway.network.credentials import Caller
from gateway.network.http_client import Streams
from gateway.network.opening import Opening
from tests.security.network.loopback_door import WAIT_S, LoopbackDoor, allow, closed, policy
from tests.security.network.test_asking import pending, resolve
from tests.security.network.test_opened import GET_ONLY, opened, request, trusting
from tests.unit.gateway.network.http2_peer import Message, Peer, behave

BOTH = ("h2", "http/1.1")
ASK = {"tools": ["connect"], "effect": "ask", "hosts": ["a.test"], "url_paths": ["/ask/**"]}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.network.decision, "_POLL_S", 0.01)
    monkeypatch.setattr(gateway.network.door, "_WATCH_S", 0.02)


async def serve_http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await Peer((reader, writer), client=False, serve=behave).run()
    writer.close()
    await writer.wait_closed()


async def secured(door: LoopbackDoor, port: int, alpn: Sequence[str], protocol: str) -> Streams:
    reader, writer = await door.tunnel("a.test", port)
    context = trusting(door)
    context.set_alpn_protocols(list(alpn))
    await writer.start_tls(context, server_hostname="a.test")
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == protocol
    return reader, writer


@contextlib.asynccontextmanager
async def speaking(door: LoopbackDoor, port: int, *alpn: str) -> AsyncIterator[Peer]:
    """Yield a client of a.test that speaks HTTP/2."""
    reader, writer = await secured(door, port, alpn or BOTH, "h2")
    client = Peer((reader, writer), client=True)
    client.authority = b"a.test:%d" % port
    running = asyncio.create_task(client.run())
    yield client
    writer.transport.abort()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def said(message: Message) -> tuple[int, Any]:
    return int(message.headers[b":status"]), message.body


async def done(client: Peer, stream: int) -> Message:
    await asyncio.wait_for(client.got[stream].done.wait(), WAIT_S)
    return client.got[stream]


async def test_each_request_is_judged_and_its_server_is_dialled_for_the_first_that_is_allowed(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, GET_ONLY, alpn=BOTH)
    async with speaking(door, server.port) as client:
        for number in range(1, 3):
            status, body = said(await client.get(b"/x", method=b"POST"))
            assert (status, server.connections) == (403, 0)
            refused = json.loads(body)
            assert {**refused, "reason": "", "how_to_allow": ""} == {
                "error": "policy_denied",
                "rule": "default-deny",
                "host": "a.test",
                "port": server.port,
                "reason": "",
                "how_to_allow": "",
            }
            assert await door.recorded(number) == [("deny", "default-deny", "policy_denied")] * number
        long = client.ask(b"/never")
        for _ in range(3):
            assert said(await client.get(b"/a"))[0] == 200
            assert said(await client.get(b"/x", method=b"DELETE"))[0] == 403
        assert not client.got[long].done.is_set()
        assert server.connections == 1
    assert (await door.recorded(6))[2:5] == [("deny", "default-deny", "policy_denied")] * 3
    assert door.records[5].verdict == "allow"
    assert door.records[5].details["bytes_down"] > 0


async def test_a_request_that_is_asked_about_holds_only_itself(door: LoopbackDoor, tmp_path: Path) -> None:
    server = await opened(door, tmp_path, serve_http2, allow("a.test", url_paths=["/free/**"]), ASK, alpn=BOTH)
    async with speaking(door, server.port) as client:
        held = [client.ask(b"/ask/%d" % number, method=b"POST", end=False) for number in range(6)]
        sending = [asyncio.create_task(client.send(stream, bytes(500_000))) for stream in held]
        await pending(door, 6)
        free = client.ask(b"/free/x", method=b"POST", end=False)
        await asyncio.wait_for(client.send(free, bytes(2_000_000)), WAIT_S)
        assert said(await done(client, free))[0] == 200
        waiting = await pending(door, 6)
        await resolve(door, waiting[0], "approved", "allow_once")
        for one in waiting[1:]:
            await resolve(door, one, "denied", "deny")
        statuses = sorted([said(await done(client, stream))[0] for stream in held])
        assert statuses == [200] + [403] * 5
        assert server.connections == 1
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def test_a_request_ends_when_the_policy_denies_it(door: LoopbackDoor, tmp_path: Path) -> None:
    server = await opened(door, tmp_path, serve_http2, allow("a.test", url_paths=["/never", "/a"]), alpn=BOTH)
    async with speaking(door, server.port) as client:
        client.ask(b"/never")
        assert said(await client.get(b"/a"))[0] == 200
        door.policy = policy(allow("a.test", url_paths=["/never", "/a", "/b"]))
        assert said(await client.get(b"/b"))[0] == 200
        door.policy = policy(allow("a.test", url_paths=["/a", "/b"]))
        await asyncio.wait_for(client.closed.wait(), WAIT_S)
    assert await door.recorded(1) == [("allow", "r0", "policy_changed")]


async def test_credentials_are_used_in_their_header_below_their_paths_and_nowhere_else(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, allow("a.test", methods=["GET", "POST"]), alpn=BOTH)
    (tmp_path / "secret").write_text("the-real-token-0123")
    found = {"name": "api", "env": "T", "hosts": [f"a.test:{server.port}"], "path_prefixes": ["/v1"]}
    settings = CredentialSettings.model_validate({**found, "secret": {"file": str(tmp_path / "secret")}})
    opening = Opening("acme", [settings], b"secret", door.door.opening.trust)
    door.door.opening = opening
    placeholder = opening.credentials.environment(Caller("agent", "execute"))["T"].encode()
    bearer = (b"authorization", b"Bearer " + placeholder)
    async with speaking(door, server.port) as client:
        status, body = said(await client.get(b"/v1/a", bearer))
        assert (status, b"the-real-token" in body, b"Bearer ***" in body) == (200, False, True)
        for path, *headers in (
            (b"/v2", bearer),
            (b"/v1/../v2", bearer),
            (b"/v1", (b"x-other", placeholder)),
            (b"/v1?t=" + placeholder,),
            (b"/v1", bearer, bearer),
            (b"/v1", (b"cookie", placeholder), (b"cookie", b"a=b")),
        ):
            assert said(await client.get(path, *headers))[0] == 403
        stream = client.ask(b"/v1", method=b"POST", end=False)
        await client.send(stream, b"t=" + placeholder[:20], end=False)
        await client.send(stream, placeholder[20:])
        assert said(await done(client, stream))[0] == 403
    records = await door.recorded(8)
    assert [one[0] for one in records] == ["deny"] * 7 + ["allow"]
    assert door.records[7].details["credential"] == "api"
    assert {one[2] for one in records[:7]} == {"policy_denied"}


async def test_a_server_that_cannot_be_reached_is_tried_again_by_the_next_connection(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, GET_ONLY, alpn=BOTH)
    door.names["a.test"] = [["127.0.0.9"], ["127.0.0.1"]]
    async with speaking(door, server.port) as client:
        refused = await client.get()
        assert (said(refused)[0], json.loads(refused.body)["error"]) == (502, "unreachable")
        await asyncio.wait_for(client.closed.wait(), WAIT_S)
    async with speaking(door, server.port) as client:
        assert said(await client.get())[0] == 200
    assert next(one[2] for one in await door.recorded(2)) == "unreachable"


async def test_a_server_that_could_not_be_reached_before_the_first_request_is_on_record(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, allow("a.test", id="a"), alpn=BOTH)
    (tmp_path / "secret").write_text("the-real-token-0123")
    found = {"name": "api", "env": "T", "hosts": [f"a.test:{server.port}"]}
    settings = CredentialSettings.model_validate({**found, "secret": {"file": str(tmp_path / "secret")}})
    door.door.opening = Opening("acme", [settings], b"secret", door.door.opening.trust)
    for number, (address, seen) in enumerate(
        [("127.0.0.9", ("allow", "a", "unreachable")), ("10.0.0.1", ("deny", "a", "policy_denied"))]
    ):
        door.names["a.test"] = [[address], ["127.0.0.1"]]
        _, writer = await secured(door, server.port, BOTH, "http/1.1")
        # The client has asked for nothing yet.
        assert (await door.recorded(2 * number + 1))[-1] == seen
        assert door.records[-1].details["reason"]
        writer.transport.abort()
        assert (await door.recorded(2 * number + 2))[-1][0] == "allow"
    assert server.connections == 0


async def test_the_limit_of_bytes_is_that_of_the_connection_and_ends_it_on_record(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, GET_ONLY, alpn=BOTH)
    door.policy = policy(GET_ONLY, bytes_down=10_000)
    async with speaking(door, server.port) as client:
        assert said(await client.get(b"/big5000"))[0] == 200
        for _ in range(2):
            over = await client.get(b"/big9000")
            assert over.reset is not None or said(over)[0] == 403
    assert [one[2] for one in await door.recorded(1)] == ["byte_limit"]


@pytest.mark.parametrize("direction", ["bytes_up", "bytes_down"])
@pytest.mark.parametrize("where", ["head", "trailers"])
async def test_heads_and_trailers_count_against_the_limit_of_bytes(
    door: LoopbackDoor, tmp_path: Path, direction: str, where: str
) -> None:
    rule = allow("a.test", methods=["GET", "POST"])
    server = await opened(door, tmp_path, serve_http2, rule, alpn=BOTH)
    door.policy = policy(rule, **{direction: 10_000})
    async with speaking(door, server.port) as client:

        async def ask(size: int) -> Message:
            fields = [(b"x-data", b"y" * size)]
            stream = client.ask(b"/", *(fields if where == "head" else []), method=b"POST", end=False)
            client.http.send_headers(stream, fields if where == "trailers" else [(b"x-sum", b"0")], end_stream=True)
            client.write()
            return await done(client, stream)

        assert said(await ask(5000))[0] == 200
        over = await ask(6000)
        assert over.reset is not None or said(over)[0] == 403
    assert [one[2] for one in await door.recorded(1)] == ["byte_limit"]
    assert 5000 < door.records[0].details[direction] <= 10_000


# --- servers that speak HTTP/1.1 only ---


async def serve_http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the request's head as JSON and its body, in chunks and with a trailer; /half breaks off."""
    http = h11.Connection(h11.SERVER)
    body, trailers, request = b"", [], None
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            return
    assert request is not None
    trailers = list(event.headers)
    head = {name.decode(): value.decode() for name, value in request.headers}
    shown = {**head, ":method": request.method.decode(), ":path": request.target.decode()}
    headers = [("Transfer-Encoding", "chunked"), ("X-Seen", "yes"), ("Keep-Alive", "timeout=5")]
    said = [h11.Response(status_code=200, headers=headers), h11.Data(data=json.dumps(shown).encode() + body)]
    for part in said if request.target == b"/half" else [*said, h11.EndOfMessage(headers=[("X-Sum", "5"), *trailers])]:
        writer.write(http.send(part) or b"")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)], ids=["without ALPN", "with ALPN"])
async def test_requests_to_a_server_that_speaks_http1_are_translated(
    door: LoopbackDoor, tmp_path: Path, alpn: tuple[str, ...]
) -> None:
    server = await opened(door, tmp_path, serve_http1, allow("a.test", methods=["GET", "POST"]), alpn=alpn)
    async with speaking(door, server.port, "h2") as client:
        streams = [client.ask(b"/a?b=%d" % number, (b"cookie", b"a=1"), (b"cookie", b"b=2")) for number in range(3)]
        no = client.ask(b"/no", method=b"DELETE")
        posted = client.ask(b"/p", (b"te", b"trailers"), method=b"POST", end=False)
        await client.send(posted, b"x" * 300_000, end=False)
        client.http.send_headers(posted, [(b"x-mine", b"1")], end_stream=True)
        client.write()
        half = client.ask(b"/half")
        for number, stream in enumerate(streams):
            got = await done(client, stream)
            assert got.headers == {b":status": b"200", b"x-seen": b"yes"}
            assert got.trailers == {b"x-sum": b"5"}
            assert json.loads(got.body) == {
                "host": f"a.test:{server.port}",
                "cookie": "a=1; b=2",
                ":method": "GET",
                ":path": f"/a?b={number}",
            }
        assert said(await done(client, no))[0] == 403
        got = await done(client, posted)
        assert (got.body.endswith(b"x" * 300_000), got.trailers) == (True, {b"x-sum": b"5", b"x-mine": b"1"})
        assert json.loads(got.body.rstrip(b"x"))["transfer-encoding"] == "chunked"
        got = await done(client, half)
        assert (said(got)[0], got.reset is not None) == (200, True)
        await asyncio.wait_for(client.closed.wait(), WAIT_S)
    assert server.connections == 5
    found = sorted(one[0::2] for one in await door.recorded(7))
    assert found == [("allow", "bad_gateway"), *[("allow", "completed")] * 5, ("deny", "policy_denied")]
    # From now on it is known.
    async with speaking(door, server.port, "h2") as client:
        assert said(await client.get())[0] == 200
        await asyncio.wait_for(client.closed.wait(), WAIT_S)
    reader, writer = await secured(door, server.port, BOTH, "http/1.1")
    writer.write(request(server.port))
    assert (await asyncio.wait_for(reader.readline(), WAIT_S)).startswith(b"HTTP/1.1 200")


async def test_a_request_withdrawn_while_it_is_translated_ends_at_the_server(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    ended = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        ended.set()

    server = await opened(door, tmp_path, never_answer, GET_ONLY)
    async with speaking(door, server.port) as client:
        stream = client.ask()
        async with asyncio.timeout(WAIT_S):
            while not server.connections:
                await asyncio.sleep(0.01)
        client.http.reset_stream(stream, 8)
        client.write()
        await asyncio.wait_for(ended.wait(), WAIT_S)
        await asyncio.wait_for(client.closed.wait(), WAIT_S)


# --- clients that mean harm ---


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def numbered(written: bytes, stream: int) -> bytes:
    return written[:5] + stream.to_bytes(4, "big") + written[9:]


def fields(*pairs: tuple[bytes, bytes]) -> bytes:
    """Return literal fields of HPACK, neither indexed nor compressed."""
    block = b""
    for pair in pairs:
        block += b"\x00" + b"".join(bytes([len(text)]) + text for text in pair)
    return block


def head(*more: tuple[bytes, bytes], **pseudo: bytes) -> Callable[[bytes], bytes]:
    """Return a HEADERS frame, which ends the request; b"" leaves a field out, more come behind."""

    def made(authority: bytes) -> bytes:
        named = {"method": b"GET", "scheme": b"https", "path": b"/", "authority": authority} | pseudo
        found = [(b":" + name.encode(), value) for name, value in named.items() if value]
        return frame(1, 5, 1, fields(*found, *more))

    return made


@contextlib.asynccontextmanager
async def raw(door: LoopbackDoor, port: int) -> AsyncIterator[Streams]:
    """Yield the streams of a client that has sent its preface and settings."""
    reader, writer = await secured(door, port, ["h2"], "h2")
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    yield reader, writer
    writer.transport.abort()


async def answered(reader: asyncio.StreamReader) -> int:
    """Return the status of the first answer; 0 if its stream or the connection ends without one."""
    decoder = Decoder()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(WAIT_S):
            while True:
                start = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(start[:3], "big"))
                if start[3] == 1:
                    return int(dict(decoder.decode(payload))[":status"])
                if start[3] in (3, 7):
                    return 0
    return 0


EVIL = b"evil.test"
HARMFUL: dict[str, Callable[[bytes], bytes]] = {
    "CONNECT": head(method=b"CONNECT", scheme=b"", path=b""),
    "CONNECT elsewhere": head(method=b"CONNECT", scheme=b"", path=b"", authority=EVIL + b":443"),
    "CONNECT with all": head(method=b"CONNECT"),
    "extended CONNECT": head(method=b"CONNECT", protocol=b"websocket"),
    "a protocol with GET": head(protocol=b"websocket"),
    "TRACE": head(method=b"TRACE"),
    "another authority": head(authority=EVIL),
    "a user in the authority": lambda authority: head(authority=authority + b"@" + EVIL)(authority),
    "an authority twice": head((b":authority", EVIL)),
    "a path twice": head((b":path", b"/x")),
    "a method twice": head((b":method", b"POST")),
    "no authority, another host": head((b"host", EVIL), authority=b""),
    "another host": head((b"host", EVIL)),
    "two hosts": lambda authority: head((b"host", authority), (b"host", EVIL))(authority),
    "no host at all": head(authority=b""),
    "http": head(scheme=b"http"),
    "no scheme": head(scheme=b""),
    "no path": head(path=b""),
    "an absolute path": head(path=b"https://evil.test/"),
    "a path with a space": head(path=b"/ HTTP/1.1"),
    "a path with a line": head(path=b"/ HTTP/1.1\r\nhost: evil.test\r\n\r\n"),
    "a path with dots": head(path=b"/a/..%2fb"),
    "a path that is not ASCII": head(path=b"/\xff"),
    "a method that is not ASCII": head(method=b"G\xc3\x89T"),
    "an authority that is not ASCII": head(authority=b"\xff.test"),
    "a length of many digits": head((b"content-length", b"9" * 100)),
    "a method with a space": head(method=b"GET /x"),
    "a method with a line": head(method=b"GET / HTTP/1.1\r\nx:"),
    "an unknown pseudo-header": head(evil=b"x"),
    "a pseudo-header of answers": head(status=b"200"),
    "a pseudo-header after others": head((b"x-a", b"b"), (b":path", b"/x"), path=b""),
    "capital letters": head((b"Host", EVIL)),
    "a line in a header": head((b"x-a", b"b\r\nhost: evil.test")),
    "NUL in a header": head((b"x-a", b"b\x00c")),
    "a colon in a name": head((b"x:a", b"b")),
    "a space in a name": head((b"x a", b"b")),
    "an empty name": head((b"", b"b")),
    "Connection": head((b"connection", b"host")),
    "Upgrade": head((b"upgrade", b"h2c")),
    "chunks": head((b"transfer-encoding", b"chunked")),
    "a length that is not": head((b"content-length", b"10")),
    "two lengths": head((b"content-length", b"0"), (b"content-length", b"10")),
    "a signed length": head((b"content-length", b"+0")),
    "te": head((b"te", b"chunked")),
    "a stream of the server": lambda authority: numbered(head()(authority), 2),
    "stream 0": lambda _: frame(1, 5, 0, fields((b":method", b"GET"))),
    "a HEADERS without end": lambda authority: (
        frame(1, 1, 1, fields((b":method", b"GET"))) + frame(9, 0, 1, b"") * 100_000 + head()(authority)
    ),
    "a CONTINUATION of another": lambda authority: frame(1, 1, 1, b"") + frame(9, 4, 3, fields((b":method", b"GET"))),
    "a PUSH_PROMISE": lambda authority: frame(5, 4, 1, (2).to_bytes(4, "big") + fields((b":method", b"GET"))),
    "a header bomb": lambda authority: frame(1, 5, 1, b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 12_000),
    "many headers": lambda authority: (
        frame(1, 1, 1, fields((b":method", b"GET")))
        + frame(9, 0, 1, fields((b"a", b"b" * 100)) * 150) * 50
        + frame(9, 4, 1)
    ),
}


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("what", HARMFUL)
async def test_what_could_be_read_otherwise_reaches_no_server(
    door: LoopbackDoor, tmp_path: Path, what: str, protocol: str
) -> None:
    handler = serve_http2 if protocol == "h2" else serve_http1
    server = await opened(door, tmp_path, handler, allow("a.test", methods=["GET", "POST"]), alpn=[protocol])
    async with raw(door, server.port) as (reader, writer):
        writer.write(HARMFUL[what](b"a.test:%d" % server.port))
        assert await answered(reader) in (0, 400, 403, 501)
        assert server.connections == 0
    async with raw(door, server.port) as (reader, writer):
        writer.write(head()(b"a.test:%d" % server.port))
        assert await answered(reader) == 200
        assert server.connections == 1
    await asyncio.wait_for(server.closed.wait(), WAIT_S)


async def test_requests_withdrawn_at_once_and_without_end_cost_their_own_connection(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, GET_ONLY, alpn=BOTH)
    async with raw(door, server.port) as (reader, writer):
        with contextlib.suppress(OSError):
            for stream in range(1, 6001, 2):
                writer.write(numbered(head()(b"a.test:%d" % server.port), stream))
                writer.write(frame(3, 0, stream, (8).to_bytes(4, "big")))
                await writer.drain()
        await closed(reader)
    async with speaking(door, server.port) as client:
        assert said(await client.get())[0] == 200
    assert len(door.records) < 10


async def test_a_client_with_more_requests_than_it_may_have_costs_its_own_connection(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http2, GET_ONLY, alpn=BOTH)
    async with speaking(door, server.port) as other:
        assert said(await other.get())[0] == 200
        async with raw(door, server.port) as (reader, writer):
            for stream in range(1, 301, 2):
                writer.write(numbered(head(path=b"/never")(b"a.test:%d" % server.port), stream))
            await closed(reader)
        assert said(await other.get())[0] == 200


async def test_a_client_reads_with_the_end_of_the_last_answer_that_its_connection_ends(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, serve_http1, GET_ONLY, alpn=["http/1.1"])
    async with raw(door, server.port) as (reader, writer):
        writer.write(head()(b"a.test:%d" % server.port))
        left, kinds = b"", [(0, 0)]
        while not (kinds[-1][0] == 7 or any(kind in (0, 1) and flags & 1 for kind, flags in kinds)):
            left += await asyncio.wait_for(reader.read(65_536), WAIT_S)
            while len(left) >= 9 and len(left) >= (size := 9 + int.from_bytes(left[:3], "big")):
                kinds.append((left[3], left[4]))
                left = left[size:]
        assert kinds[-1][0] == 7
        assert any(kind in (0, 1) and flags & 1 for kind, flags in kinds)
