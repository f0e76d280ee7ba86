"""HTTP/2 through the relay: each stream judged, streamed and broken off by itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from h2.errors import ErrorCodes
from h2.events import DataReceived
from h2.settings import SettingCodes
from hpack import Encoder

from gateway.config.network_settings import CredentialSettings
from gateway.network.certificates import CertificateAuthority
from gateway.network.client_hello import read_client_hello
from gateway.network.credentials import Caller, Credentials
from gateway.network.http2_end import End
from gateway.network.http2_relay import relay_http2
from gateway.network.http_client import RelayLimits, Streams
from gateway.network.http_request import Origin, ProxyRequest
from gateway.network.tls_server import accept_tls
from gateway.network.upstream import PlainExchange
from tests.unit.gateway.network.http2_peer import Message, Peer, behave
from tests.unit.gateway.network.relayed import Gate

Serve = Callable[[Peer, int], Any]

_ORIGIN = Origin("https", "good.example", 443)
_ME = Caller("agent", "bash")
_LONG_S = 120  # for what comes at once on a machine with time
_MALFORMED = [
    (b"connection", b"close"),
    (b"transfer-encoding", b"chunked"),
    (b"X-Upper", b"1"),
    (b"host", b"evil.example"),
    (b":authority", b"evil.example"),
    (b"x-late", b"a\r\nb"),
]


@dataclass
class Ends:
    """A client, the server that it talks to, and the gate between."""

    client: Peer
    server: Peer
    gate: Gate
    relaying: asyncio.Task[None]


@contextlib.asynccontextmanager
async def _relayed(*, idle_s: float = 20, serve: Serve = behave, **gate: Any) -> AsyncIterator[Ends]:
    accepted: list[asyncio.Queue[Streams]] = [asyncio.Queue(), asyncio.Queue()]
    listening = [
        await asyncio.start_server(lambda *streams, queue=queue: queue.put_nowait(streams), "127.0.0.1", 0)
        for queue in accepted
    ]
    ports = [one.sockets[0].getsockname()[1] for one in listening]
    client = Peer(await asyncio.open_connection("127.0.0.1", ports[0]), client=True)
    towards = await asyncio.open_connection("127.0.0.1", ports[1])
    server = Peer(await accepted[1].get(), client=False, serve=serve)
    door = Gate({"good.example": 0}, http2=towards, **gate)
    limits = RelayLimits(idle_s=idle_s)
    relaying = asyncio.create_task(relay_http2(await accepted[0].get(), door, origin=_ORIGIN, limits=limits))
    tasks = [asyncio.create_task(client.run()), asyncio.create_task(server.run())]
    try:
        yield Ends(client, server, door, relaying)
    finally:
        client.paused.set()
        relaying.cancel()
        results = await asyncio.gather(relaying, return_exceptions=True)
        for writer in (client.writer, server.writer, towards[1]):
            writer.close()
        await asyncio.gather(*tasks)
        for one in listening:
            one.close()
        assert not any(isinstance(result, Exception) for result in results)


async def test_requests_bodies_and_trailers_pass_both_ways() -> None:
    async with _relayed() as ends:
        stream = ends.client.ask(b"/a/./b?c=d", (b"x-mine", b"1"), (b"te", b"trailers"), method=b"POST", end=False)
        await ends.client.send(stream, b"hello", end=False)
        ends.client.http.send_headers(stream, [(b"x-sum", b"5"), (b"authorization", b"x")], end_stream=True)
        ends.client.write()
        got = ends.client.got[stream]
        await asyncio.wait_for(got.done.wait(), _LONG_S)
        assert got.headers == {b":status": b"200", b"x-seen": b"yes"}
        seen = json.loads(got.body.removesuffix(b"hello"))
        assert seen[":path"] == "/a/b?c=d"
        assert seen[":authority"] == "good.example"
        assert seen["x-mine"] == "1"
        assert got.trailers == {b"grpc-status": b"0", b"x-sum": b"5"}
        assert got.reset is None
        assert [(one.method, one.target) for one in ends.gate.judged] == [("POST", "/a/b?c=d")]


async def test_each_stream_is_judged_by_itself() -> None:
    async with _relayed(denied=lambda request: request.target == "/no") as ends:
        allowed, denied = await asyncio.gather(ends.client.get(b"/yes"), ends.client.get(b"/no"))
        assert allowed.headers[b":status"] == b"200"
        assert denied.headers[b":status"] == b"403"
        assert json.loads(denied.body)["error"] == "policy_denied"
        assert [message.headers[b":path"] for message in ends.server.got.values()] == [b"/yes"]
        assert (await ends.client.get(b"/no", method=b"HEAD")).body == b""


@pytest.mark.parametrize(
    "more, pseudo",
    [
        ([], {"authority": b"evil.example"}),
        ([], {"authority": b"good.example:8443"}),
        ([], {"scheme": b"http"}),
        ([], {"method": b"TRACE"}),
        ([], {"path": b"/a/..%2fb"}),
        ([], {"path": b"http://evil.example/"}),
    ],
)
async def test_what_is_for_another_host_or_is_hidden_is_refused(more: list[Any], pseudo: dict[str, bytes]) -> None:
    async with _relayed() as ends:
        refused = await ends.client.get(*[pseudo.pop("path", b"/")], *more, **pseudo)
        assert refused.headers[b":status"] in {b"400", b"501"}
        assert ends.gate.judged == []
        assert len(ends.gate.refusals) == 1
        assert (await ends.client.get(b"/", (b"host", b"good.example"))).headers[b":status"] == b"200"


@pytest.mark.parametrize("field_", _MALFORMED)
async def test_headers_that_http2_may_not_have_end_the_connection(field_: tuple[bytes, bytes]) -> None:
    async with _relayed() as ends:
        assert (await ends.client.get()).headers[b":status"] == b"200"
        ends.client.http.config.normalize_outbound_headers = False
        ends.client.ask(b"/", field_)
        await asyncio.wait_for(ends.client.closed.wait(), _LONG_S)
        assert len(ends.gate.judged) == 1


async def test_large_bodies_pass_in_many_streams_at_once_within_the_windows() -> None:
    async with _relayed() as ends:
        ends.client.http.increment_flow_control_window(2**20)
        streams = [ends.client.ask(b"/echo", method=b"POST", end=False) for _ in range(5)]
        bodies = [bytes([number]) * 3_000_000 for number in range(5)]
        await asyncio.gather(*(ends.client.send(*one) for one in zip(streams, bodies, strict=True)))
        for stream, body in zip(streams, bodies, strict=True):
            await asyncio.wait_for(ends.client.got[stream].done.wait(), _LONG_S)
            assert ends.client.got[stream].body.endswith(body)


async def test_a_client_that_does_not_read_holds_the_server_back() -> None:
    async with _relayed() as ends:
        ends.client.paused.clear()
        stream = ends.client.ask(b"/big20000000")
        before = -1
        while before != ends.gate.down:
            before = ends.gate.down
            await asyncio.sleep(0.3)
        assert ends.gate.down < 2_000_000
        ends.client.paused.set()
        await asyncio.wait_for(ends.client.got[stream].done.wait(), _LONG_S)
        assert len(ends.client.got[stream].body) == 20_000_000


async def test_what_the_server_breaks_off_is_broken_off() -> None:
    async with _relayed() as ends:
        reset = await ends.client.get(b"/reset")
        assert reset.headers[b":status"] == b"502"
        half = await ends.client.get(b"/half")
        assert bytes(half.body) == b"half"
        assert half.reset is not None
        early = ends.client.ask(b"/early", method=b"POST", end=False)
        await asyncio.wait_for(ends.client.got[early].headed.wait(), _LONG_S)
        assert ends.client.got[early].headers[b":status"] == b"413"
        assert (await ends.client.get()).headers[b":status"] == b"200"
        closed = await ends.client.get(b"/close")
        assert closed.headers[b":status"] == b"502"
        await asyncio.wait_for(ends.client.closed.wait(), _LONG_S)
        await asyncio.wait_for(ends.relaying, _LONG_S)


async def test_a_server_that_leaves_still_ends_what_it_began() -> None:
    async with _relayed() as ends:
        got = await ends.client.get(b"/leaving")
        assert got.headers[b":status"] == b"200"
        assert got.trailers == {b"grpc-status": b"0"}
        assert (await ends.client.get()).reset == 7  # REFUSED_STREAM: asked for again on another connection
        assert len(ends.server.got) == 1


async def test_a_request_that_is_withdrawn_is_withdrawn_there_and_counts_against_no_window() -> None:
    async with _relayed() as ends:
        for _ in range(10):
            stream = ends.client.ask(b"/never", method=b"POST", end=False)
            await ends.client.send(stream, bytes(200_000), end=False)
            ends.client.http.reset_stream(stream, 8)
            ends.client.write()
        for there in list(ends.server.got.values()):
            await asyncio.wait_for(there.done.wait(), _LONG_S)
            assert there.reset is not None
        stream = ends.client.ask(b"/echo", method=b"POST", end=False)
        await asyncio.wait_for(ends.client.send(stream, bytes(2_000_000)), _LONG_S)
        await asyncio.wait_for(ends.client.got[stream].done.wait(), _LONG_S)


async def test_an_idle_connection_ends_but_not_while_a_request_is_being_judged() -> None:
    async def hold() -> None:
        await asyncio.sleep(1)

    async with _relayed(idle_s=0.5, answer_to=hold) as ends:
        assert (await ends.client.get()).headers[b":status"] == b"200"
        await asyncio.wait_for(ends.client.closed.wait(), _LONG_S)


async def test_a_credential_is_put_in_refused_elsewhere_and_masked(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the-real-token-0123")
    settings = {"name": "api", "env": "T", "hosts": ["good.example"], "secret": {"file": str(tmp_path / "secret")}}
    credentials = Credentials([CredentialSettings.model_validate(settings)])
    placeholder = credentials.environment(_ME)["T"].encode()
    async with _relayed(exchange=lambda request: credentials.exchange(request, _ME)) as ends:
        got = await ends.client.get(b"/", (b"authorization", b"Bearer " + placeholder))
        assert ends.server.got[1].headers[b"authorization"] == b"Bearer the-real-token-0123"
        assert json.loads(got.body)["authorization"] == "Bearer " + "*" * 19
        refused = await ends.client.get(b"/", (b"x-other", b"Bearer " + placeholder))
        assert refused.headers[b":status"] == b"403"
        stream = ends.client.ask(b"/echo", method=b"POST", end=False)
        await ends.client.send(stream, b"a" + placeholder)
        await asyncio.wait_for(ends.client.got[stream].done.wait(), _LONG_S)
        assert ends.client.got[stream].headers[b":status"] == b"403"
        assert all(placeholder not in message.body for message in ends.server.got.values())


async def test_curl_speaks_it_through_tls_that_is_opened(tmp_path: Path) -> None:
    issuer = trustme.CA()
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issuer.issue_cert("good.example").configure_cert(serving)
    issuer.configure_trust(trusting)
    serving.set_alpn_protocols(["h2", "http/1.1"])
    authority = CertificateAuthority(b"secret", "acme")
    (tmp_path / "ca.pem").write_text(authority.ca_pem)
    gate = Gate({"good.example": 0})

    async def serve(*streams: Any) -> None:
        await Peer(streams, client=False, serve=behave).run()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        first = b""
        while (hello := read_client_hello(first)) is None:
            first += await reader.read(65536)
        trusting.set_alpn_protocols(list(hello.alpn))  # the client gets the protocol that the server chose
        port = server.sockets[0].getsockname()[1]
        there = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="good.example")
        chosen = there[1].get_extra_info("ssl_object").selected_alpn_protocol()
        context = authority.context("good.example", chosen)
        inside = await accept_tls((reader, writer), first, context, handshake_s=20)
        gate.http2 = there
        await relay_http2(inside, gate, origin=_ORIGIN)

    door = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server, door:
        proxy = f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"
        (tmp_path / "body").write_bytes(bytes(2_000_000))
        command = ["curl", "-sS", "--http2", "-x", proxy, "--cacert", tmp_path / "ca.pem", "-w", " %{http_version} \n"]
        url = "https://good.example"
        for arguments in ([f"{url}/a", f"{url}/b"], ["--data-binary", f"@{tmp_path}/body", f"{url}/c"]):
            got = await asyncio.to_thread(
                subprocess.run, [*command, *arguments], capture_output=True, text=True, timeout=60
            )
            assert got.returncode == 0, got.stderr
            assert got.stdout.count(" 2 ") == got.stdout.count(":path") > 0
        assert [request.target for request in gate.judged] == ["/a", "/b", "/c"]
        assert 2_000_000 < gate.up < 2_002_000  # with the heads


@pytest.mark.parametrize("data", [b"", b"x"], ids=["empty", "of one byte"])
async def test_frames_that_are_not_taken_need_bounded_memory(data: bytes) -> None:
    answered = asyncio.Event()

    async def wait() -> None:
        await answered.wait()

    async with _relayed(answer_to=wait) as ends:
        stream = ends.client.ask(method=b"POST", end=False)
        frame = len(data).to_bytes(3, "big") + b"\x00\x00" + stream.to_bytes(4, "big") + data
        few = frame * 1000
        ends.client.writer.write(few)  # the control: a client may write small pieces
        with contextlib.suppress(OSError):
            for _ in range(40):
                ends.client.writer.write(few)
                await ends.client.writer.drain()
        if data:
            await asyncio.wait_for(ends.client.closed.wait(), _LONG_S)
        else:
            for _ in range(5):
                await asyncio.sleep(0.1)
                # By its type: isinstance() asks each object for its class, which builds a lazy one of pydantic.
                assert sum(type(one) is DataReceived for one in gc.get_objects()) < 20_000
            answered.set()
            ends.client.http.end_stream(stream)
            ends.client.write()
            assert (await asyncio.wait_for(_done(ends.client, stream), _LONG_S)).headers[b":status"] == b"200"


@pytest.mark.parametrize("count, ends_well", [(10, True), (60, False)])
async def test_heads_that_are_not_taken_need_bounded_memory(count: int, ends_well: bool) -> None:
    async def inform(server: Peer, stream: int) -> None:
        if server.got[stream].served:
            return
        server.got[stream].served = True
        encoded = [server.http.encoder.encode([(b":status", b"103"), *[(b"b", b"z" * 3900)] * 16]) for _ in range(2)]
        for block in [encoded[0], *encoded[1:] * (count - 1)]:  # a few bytes each, but the first
            server.writer.write(len(block).to_bytes(3, "big") + b"\x01\x04" + stream.to_bytes(4, "big") + block)
        server.http.send_headers(stream, [(b":status", b"200")], end_stream=True)
        server.write()

    async with _relayed(serve=inform) as ends:
        ends.client.http.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
        ends.client.write()
        ends.client.paused.clear()
        stream = ends.client.ask()
        await asyncio.wait_for(ends.server.got[stream].done.wait(), _LONG_S)
        if not ends_well:
            await asyncio.wait((ends.relaying,), timeout=_LONG_S)
        assert ends.relaying.done() != ends_well
        ends.client.paused.set()
        if ends_well:
            assert (await asyncio.wait_for(_done(ends.client, stream), _LONG_S)).headers[b":status"] == b"200"


@pytest.mark.parametrize("size", [0, 4096, 2**31])
async def test_a_client_chooses_no_large_table_for_the_heads_that_it_gets(size: int) -> None:
    async def unique(server: Peer, stream: int) -> None:
        if not server.got[stream].served:
            server.got[stream].served = True
            fields = [(b"x-%d-%d" % (stream, number), b"y" * 100) for number in range(60)]
            server.http.send_headers(stream, [(b":status", b"200"), *fields], end_stream=True)
            server.write()

    async with _relayed(serve=unique) as ends:
        await ends.client.get()  # the table has entries
        for one in (8192, size, size):
            ends.client.http.update_settings({SettingCodes.HEADER_TABLE_SIZE: one})
        ends.client.write()
        for _ in range(3):
            got = await ends.client.get()
            assert (got.headers[b":status"], len(got.headers)) == (b"200", 61)
        entries = [len(one.http.encoder.header_table.dynamic_entries) for one in gc.get_objects() if type(one) is End]
        assert max(entries) <= 4096 // 132


async def test_large_headers_pass_in_little_time() -> None:
    value = b"z" * 60_000

    async def answer(server: Peer, stream: int) -> None:
        if not server.got[stream].served:
            server.got[stream].served = True
            encode = server.http.encoder.encode
            server.http.encoder.encode = partial(encode, huffman=False)  # type: ignore[method-assign]
            server.http.send_headers(stream, [(b":status", b"200"), (b"x-a", value)], end_stream=True)
            server.write()

    async with _relayed(serve=answer) as ends:
        before = time.thread_time()
        got = await ends.client.get()
        took = time.thread_time() - before
        assert got.headers[b"x-a"] == value
        before = time.thread_time()
        assert Encoder().encode([(b"x-a", value)])
        assert took < time.thread_time() - before


@pytest.mark.parametrize("trailer", [(b"x-sum", b"5"), (b"content-type", b"x")])
async def test_trailers_of_which_none_may_pass_end_the_message(trailer: tuple[bytes, bytes]) -> None:
    async with _relayed() as ends:
        stream = ends.client.ask(method=b"POST", end=False)
        ends.client.http.send_headers(stream, [trailer], end_stream=True)
        ends.client.write()
        there = await asyncio.wait_for(_done(ends.server, 1), _LONG_S)
        got = await asyncio.wait_for(_done(ends.client, stream), _LONG_S)
        assert (there.reset, got.reset, got.headers[b":status"]) == (None, None, b"200")
        assert there.trailers == dict([trailer] if trailer[0] == b"x-sum" else [])

    async def answer(server: Peer, stream: int) -> None:
        if not server.got[stream].served:
            server.got[stream].served = True
            server.http.send_headers(stream, [(b":status", b"200")])
            server.http.send_headers(stream, [trailer], end_stream=True)
            server.write()

    async with _relayed(serve=answer) as ends:
        got = await ends.client.get()
        assert (got.reset, got.trailers) == (None, there.trailers)


async def test_a_request_that_fails_unexpectedly_is_reset_and_others_go_on() -> None:
    def exchange(request: ProxyRequest) -> PlainExchange:
        if request.target == "/broken":
            raise IndexError
        return PlainExchange(request)

    async with _relayed(exchange=exchange) as ends:
        for _ in range(2):
            assert (await ends.client.get(b"/broken")).reset == 2  # INTERNAL_ERROR
        assert (await ends.client.get()).headers[b":status"] == b"200"


async def test_what_a_server_that_leaves_does_not_serve_may_be_asked_for_again() -> None:
    judged = asyncio.Event()

    async def wait() -> None:
        if len(ends.gate.judged) == 3:
            await judged.wait()

    async with _relayed(answer_to=wait) as ends:
        streams = [ends.client.ask(b"/early", method=b"POST", end=False), ends.client.ask(b"/never")]
        await asyncio.wait_for(ends.client.got[streams[0]].headed.wait(), _LONG_S)
        streams = [streams[1], ends.client.ask(b"/never")]
        while len(ends.gate.judged) < 3:
            await asyncio.sleep(0.01)
        last = ends.server.http.highest_inbound_stream_id - 1
        ends.server.writer.write(b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + last.to_bytes(4, "big") + bytes(4))
        assert (await asyncio.wait_for(_done(ends.client, streams[0]), _LONG_S)).reset == 7  # REFUSED_STREAM
        judged.set()
        assert (await asyncio.wait_for(_done(ends.client, streams[1]), _LONG_S)).reset == 7


async def test_a_long_answer_may_be_taken_in_small_pieces() -> None:
    async with _relayed() as ends:
        stream = ends.client.ask(b"/never", method=b"POST")
        for kind, payload in ((8, b"\x00\x00\x00\x01"), (2, b"\x00\x00\x00\x00\x10")):
            one = len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload
            for _ in range(10):
                ends.client.writer.write(one * 1000)
                await ends.client.writer.drain()
        assert (await ends.client.get()).headers[b":status"] == b"200"


@pytest.mark.parametrize("sent, ends_well", [(b"x" * 10, True), (b"x" * 9, False)])
async def test_a_body_shorter_than_announced_is_broken_off(sent: bytes, ends_well: bool) -> None:
    async with _relayed() as ends:
        stream = ends.client.ask(b"/echo", (b"content-length", b"10"), method=b"POST", end=False)
        await ends.client.send(stream, sent, end=False)
        ends.client.http.send_headers(stream, [(b"x-sum", b"5")], end_stream=True)
        ends.client.write()
        await _done(ends.client, stream)
        assert (ends.client.got[stream].reset is None) == ends_well
        await asyncio.wait_for(ends.server.got[1].done.wait(), _LONG_S)
        assert (ends.server.got[1].reset is None) == ends_well


async def _done(peer: Peer, stream: int) -> Message:
    await peer.got[stream].done.wait()
    return peer.got[stream]


async def test_heads_of_requests_that_wait_need_bounded_memory() -> None:
    answered = asyncio.Event()

    async def wait() -> None:
        await answered.wait()

    async with _relayed(answer_to=wait) as ends:
        encode = ends.client.http.encoder.encode
        ends.client.http.encoder.encode = partial(encode, huffman=False)  # type: ignore[method-assign]
        streams = [ends.client.ask(b"/%d" % number, (b"x-a", b"a" * 60_000)) for number in range(60)]
        async with asyncio.timeout(_LONG_S):
            while len(ends.gate.judged) + len([one for one in streams if ends.client.got[one].reset]) < len(streams):
                await asyncio.sleep(0.01)
        judged = len(ends.gate.judged)
        assert 30 * 60_000 < judged * 60_000 < 2 * 1024 * 1024
        answered.set()
        got = [await _done(ends.client, one) for one in streams]
        assert [one.headers.get(b":status") for one in got] == [b"200"] * judged + [None] * (len(streams) - judged)
        assert {one.reset for one in got[judged:]} == {ErrorCodes.REFUSED_STREAM}
        for _ in range(60):  # what is over counts no more
            assert (await ends.client.get(b"/", (b"x-a", b"a" * 60_000))).headers[b":status"] == b"200"


async def test_a_long_url_is_refused_on_its_stream() -> None:
    async with _relayed() as ends:
        got = await ends.client.get(b"/" + b"a" * 8192)
        assert (got.headers[b":status"], json.loads(got.body)["error"]) == (b"414", "bad_request")
        assert (await ends.client.get(b"/" + b"a" * 8191)).headers[b":status"] == b"200"
        assert [len(request.target) for request in ends.gate.judged] == [8192]


async def test_header_fields_are_counted() -> None:
    async with _relayed() as ends:
        got = await ends.client.get(b"/", *[(b"a", b"")] * 201)
        assert (got.headers[b":status"], json.loads(got.body)["error"]) == (b"431", "bad_request")
        assert (await ends.client.get(b"/", *[(b"a", b"")] * 200)).headers[b":status"] == b"200"
        assert len(ends.gate.judged) == 1


@pytest.mark.parametrize("hints, fields, tail", [(0, 201, 0), (0, 0, 201), (1, 201, 0), (21, 0, 0), (20, 200, 200)])
async def test_header_fields_and_informational_answers_of_a_server_are_counted(
    hints: int, fields: int, tail: int
) -> None:
    async def serve(peer: Peer, stream: int) -> None:
        if peer.got[stream].served:
            return
        peer.got[stream].served = True
        for _ in range(hints):
            peer.http.send_headers(stream, [(b":status", b"103"), *[(b"a", b"")] * fields])
        peer.http.send_headers(stream, [(b":status", b"200"), *[(b"a", b"")] * fields])
        peer.http.send_headers(stream, [(b"a", b"")] * tail or [(b"a", b"")], end_stream=True)
        peer.write()

    async with _relayed(serve=serve) as ends:
        got = await ends.client.get(b"/")
        refused = [one.body["error"] for one in ends.gate.refusals]
        assert refused == ([] if (hints, fields, tail) == (20, 200, 200) else ["bad_gateway"])
        assert (got.reset is None) is (not refused or got.headers[b":status"] == b"502")
        assert (await ends.client.get(b"/")).reset == got.reset  # the connection goes on
