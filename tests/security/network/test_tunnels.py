"""Raw tunnels: what goes first through them is what was asked for; bytes, ends and records are exact."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import pytest
import trustme

from tests.security.network.loopback_door import (
    LOOPBACK,
    LoopbackDoor,
    allow,
    body,
    closed,
    connect,
    echo_bytes,
    policy,
    socks,
    status,
)
from tests.unit.gateway.network.relayed import OK, Handler, Server, saying

OTHER = b"Host: other.test\r\n\r\n"


def hello(name: str | None) -> bytes:
    """Return a ClientHello of OpenSSL, in one record."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def extended(record: bytes, kind: int, data: bytes) -> bytes:
    """Return a ClientHello of OpenSSL with another extension."""
    message = bytearray(record[9:])
    at = 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    extension = kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data
    message[at : at + 2] = (int.from_bytes(message[at : at + 2], "big") + len(extension)).to_bytes(2, "big")
    message += extension
    return in_records(b"\x01" + len(message).to_bytes(3, "big") + bytes(message))


def in_records(message: bytes, size: int = 16_000) -> bytes:
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def sni(name: bytes) -> bytes:
    return (len(name) + 3).to_bytes(2, "big") + b"\x00" + len(name).to_bytes(2, "big") + name


SSL2 = b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + bytes(37)
PROXY = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00"
TLS: dict[str, Callable[[str], bytes]] = {
    "another name": lambda host: hello("other.test"),
    "a name below": lambda host: hello(f"a.{host}"),
    "no name": lambda host: hello(None),
    "another name in many records": lambda host: in_records(hello("other.test")[5:], 20),
    "the name twice": lambda host: extended(hello(host), 0, sni(b"other.test")),
    "a name with NUL": lambda host: extended(hello(None), 0, sni(host.encode() + b"\x00.other.test")),
    "ECH": lambda host: extended(hello(host), 0xFE0D, bytes(64)),
    "ESNI": lambda host: extended(hello(host), 0xFFCE, bytes(64)),
    "an alert before": lambda host: b"\x15\x03\x01\x00\x02\x01\x5a" + hello("other.test"),
    "a cipher change before": lambda host: b"\x14\x03\x03\x00\x01\x01" + hello("other.test"),
    "data before": lambda host: b"\x17\x03\x03\x00\x01\x00" + hello("other.test"),
    "an empty record before": lambda host: b"\x16\x03\x01\x00\x00" + hello("other.test"),
    "another message before": lambda host: b"\x16\x03\x01\x00\x04\x00\x00\x00\x00" + hello("other.test"),
    "SSL 2": lambda host: SSL2,
    "SSL 2 of a version that is not one": lambda host: SSL2[:3] + b"\x03\x05" + SSL2[5:],
    "records of a version that is not one": lambda host: b"\x16\x04\x00" + hello("other.test")[3:],
    "an alert of a version that is not one": lambda host: b"\x15\x04\x00\x00\x02\x01\x5a" + hello("other.test"),
    "an empty record of such a version": lambda host: b"\x16\x04\x00\x00\x00" + hello("other.test"),
    "a header of the PROXY protocol": lambda host: PROXY + hello("other.test"),
    "noise": lambda host: b"\x16\x03\x01\x00\x20" + bytes(32),
}


@pytest.mark.parametrize("what", TLS)
async def test_a_tls_handshake_that_names_another_server_or_hides_it_does_not_get_through(
    door: LoopbackDoor, what: str
) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", server.port)
    writer.write(TLS[what]("allowed.test"))
    assert await closed(reader) == b""
    assert await door.recorded(1) == [("deny", "r0", "policy_denied")]
    assert (door.records[0].details["bytes_up"], door.records[0].details["bytes_down"]) == (0, 0)
    assert "connect" in door.records[0].details["reason"] or "TLS" in door.records[0].details["reason"]
    said = hello("allowed.test")  # the control
    reader, writer = await door.tunnel("allowed.test", server.port)
    writer.write(said)
    assert await asyncio.wait_for(reader.readexactly(len(said)), 20) == said


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_a_handshake_in_many_pieces_and_records_passes_whole(door: LoopbackDoor, size: int) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    reader, writer = await door.tunnel("Allowed.Test.", server.port)
    said = in_records(hello("ALLOWED.test")[5:], 100) + b"more"
    for at in range(0, len(said), size):
        writer.write(said[at : at + size])
        await asyncio.sleep(0)
    assert await asyncio.wait_for(reader.readexactly(len(said)), 20) == said


async def test_tls_to_an_address_has_no_name(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes)
    door.policy = policy()
    reader, writer = await door.tunnel("127.0.0.1", server.port)
    writer.write(hello("127.0.0.1.other.test"))
    assert await closed(reader) == b""
    reader, writer = await door.tunnel("127.0.0.1", server.port)
    writer.write(hello(None))
    assert await asyncio.wait_for(reader.readexactly(5), 20) == hello(None)[:5]


async def test_real_tls_passes_end_to_end(door: LoopbackDoor) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("allowed.test", "other.test").configure_cert(context)
    server = await door.serve(echo_bytes, "allowed.test", tls=context)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)
    reader, writer = await door.tunnel("allowed.test", server.port)
    await writer.start_tls(trusting, server_hostname="allowed.test")
    writer.write(b"x" * 200_000)
    assert await asyncio.wait_for(reader.readexactly(200_000), 20) == b"x" * 200_000
    _, writer = await door.tunnel("allowed.test", server.port)
    with pytest.raises(ConnectionError):
        await writer.start_tls(trusting, server_hostname="other.test")


CIPHER_CHANGE, EARLY_DATA = b"\x14\x03\x03\x00\x01\x01", b"\x17\x03\x03\x00\x04data"
SECOND: dict[str, Callable[[], bytes]] = {
    "another name": lambda: CIPHER_CHANGE + hello("other.test"),
    "another name after data": lambda: EARLY_DATA + CIPHER_CHANGE + hello("other.test"),
    "no name": lambda: hello(None),
    "ECH": lambda: extended(hello("allowed.test"), 0xFE0D, bytes(64)),
    "another kind of record": lambda: b"\x18" + hello("allowed.test")[1:],
    "empty records": lambda: b"\x17\x03\x03\x00\x00" + hello("allowed.test"),
}


async def one_group(door: LoopbackDoor) -> tuple[Server, ssl.SSLContext]:
    """Return a TLS server that asks for a second hello of clients of OpenSSL, and a context that trusts it."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ecdh_curve("secp521r1")
    authority.issue_cert("allowed.test", "other.test").configure_cert(context)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)
    return await door.serve(echo_bytes, "allowed.test", tls=context), trusting


@pytest.mark.parametrize("what", SECOND)
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_second_hello_that_names_another_server_does_not_get_through(
    door: LoopbackDoor, what: str, *, at_once: bool
) -> None:
    server, _ = await one_group(door)
    reader, writer = await door.tunnel("allowed.test", server.port)
    writer.write(hello("allowed.test") + (SECOND[what]() if at_once else b""))
    asked = await asyncio.wait_for(reader.readexactly(5), 20)
    assert asked[:3] == b"\x16\x03\x03"
    await asyncio.wait_for(reader.readexactly(int.from_bytes(asked[3:], "big")), 20)
    if not at_once:
        writer.write(SECOND[what]())
    left = await closed(reader)
    assert left in (b"", CIPHER_CHANGE)
    assert await door.recorded(1) == [("deny", "r0", "policy_denied")]


async def test_a_client_that_never_sends_the_second_hello_is_ended(door: LoopbackDoor) -> None:
    random = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
    retry = b"\x16\x03\x03\x00\x2a\x02\x00\x00\x26\x03\x03" + bytes.fromhex(random) + bytes(4)

    async def ask_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(retry)
        await reader.read()

    server = await door.serve(ask_again, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", server.port)
    writer.write(hello("allowed.test") + 10_000 * EARLY_DATA)
    assert await closed(reader) == retry
    assert await door.recorded(1) == [("deny", "r0", "policy_denied")]
    assert door.records[0].details["bytes_up"] < 5_000


async def test_a_second_hello_of_the_same_name_passes(door: LoopbackDoor) -> None:
    server, trusting = await one_group(door)
    reader, writer = await door.tunnel("allowed.test", server.port)
    await writer.start_tls(trusting, server_hostname="allowed.test")
    writer.write(b"x" * 200_000)
    assert await asyncio.wait_for(reader.readexactly(200_000), 20) == b"x" * 200_000
    writer.close()


async def test_a_tunnel_ends_with_a_server_that_closes_and_a_client_that_leaves_before_the_first_answer(
    door: LoopbackDoor,
) -> None:
    async def close_at_once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def listen(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    closing = await door.serve(close_at_once, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", closing.port)
    await asyncio.wait_for(closing.closed.wait(), 20)
    await asyncio.sleep(0.1)
    writer.write(hello("allowed.test"))
    writer.write_eof()
    assert await closed(reader) == b""
    silent = await door.serve(listen, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", silent.port)
    writer.write(hello("allowed.test"))
    writer.write_eof()
    await asyncio.wait_for(silent.closed.wait(), 20)
    assert await closed(reader) == b""
    assert [one[0] for one in await door.recorded(2)] == ["allow", "allow"]


async def test_what_may_be_ssl_2_waits_until_it_is_clear(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", server.port)
    for at in range(len(SSL2)):
        writer.write(SSL2[at : at + 1])
        await asyncio.sleep(0.01)
    assert await closed(reader) == b""
    assert (await door.recorded(1), door.records[0].details["bytes_up"]) == ([("deny", "r0", "policy_denied")], 0)


HTTP = {
    "another host": b"GET / HTTP/1.1\r\n" + OTHER,
    "after empty lines": b"\r\n\r\n\nGET / HTTP/1.1\r\n" + OTHER,
    "after spaces": b"  \tGET / HTTP/1.1\r\n" + OTHER,
    "in small letters": b"get / HTTP/1.1\r\n" + OTHER,
    "a method of one letter": b"G / HTTP/1.1\r\n" + OTHER,
    "a method with a hyphen": b"M-SEARCH / HTTP/1.1\r\n" + OTHER,
    "a method with digits": b"G3T / HTTP/1.1\r\n" + OTHER,
    "a method that begins with an underscore": b"_X / HTTP/1.1\r\n" + OTHER,
    "a method that begins with a hyphen": b"-X / HTTP/1.1\r\n" + OTHER,
    "a method that begins with a digit": b"0 / HTTP/1.1\r\n" + OTHER,
    "a method that is a sign": b"$ / HTTP/1.1\r\n" + OTHER,
    "a method like a length": b"0032git-upload-pack / HTTP/1.1\r\n" + OTHER,
    "many spaces after a sign": b"*   \t/ HTTP/1.1\r\n" + OTHER,
    "a bare CR after a sign": b"!\r/ HTTP/1.1\r\n" + OTHER,
    "a long method": b"X" * 5000 + b" / HTTP/1.1\r\n" + OTHER,
    "a tab": b"GET\t/ HTTP/1.1\r\n" + OTHER,
    "a form feed": b"GET\f/ HTTP/1.1\r\n" + OTHER,
    "a bare CR": b"GET\r/ HTTP/1.1\r\n" + OTHER,
    "CONNECT in the tunnel": b"CONNECT other.test:443 HTTP/1.1\r\n" + OTHER,
    "connect in the tunnel": b"connect other.test:443 HTTP/1.1\r\n" + OTHER,
    "CONNECT after an empty line": b"\r\nCONNECT other.test:443 HTTP/1.1\r\n" + OTHER,
    "absolute form": b"GET http://other.test/ HTTP/1.1\r\n" + OTHER,
    "two hosts": b"GET / HTTP/1.1\r\nHost: allowed.test:%d\r\n" + OTHER,
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "h2c": b"GET / HTTP/1.1\r\nHost: allowed.test:%d\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
    "an upgrade to TLS": b"GET / HTTP/1.1\r\nHost: allowed.test:%d\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n",
}


@pytest.mark.parametrize("way", ["connect", "socks"])
@pytest.mark.parametrize("what", HTTP)
async def test_plain_http_in_a_tunnel_goes_to_its_host_only_however_it_begins(
    door: LoopbackDoor, what: str, way: str
) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    reader, writer = await opened(door, way, server.port)
    writer.write(HTTP[what].replace(b"%d", b"%d" % server.port))
    writer.write_eof()
    answer = await closed(reader)
    assert 400 <= status(answer) < 600
    assert OTHER not in answer
    assert (await door.recorded(1))[0][2] != ""
    assert door.records[0].details["bytes_up"] == 0


async def opened(door: LoopbackDoor, way: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if way == "connect":
        return await door.tunnel("allowed.test", port)
    reader, writer = await door.connect()
    writer.write(socks("allowed.test", port))
    assert (await asyncio.wait_for(reader.readexactly(12), 20))[2:4] == b"\x05\x00"
    return reader, writer


@pytest.mark.parametrize("way", ["connect", "socks"])
async def test_plain_http_in_a_tunnel_reaches_its_own_host(door: LoopbackDoor, way: str) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    reader, writer = await opened(door, way, server.port)
    writer.write(b"\r\nGET / HTTP/1.1\r\nHost: Allowed.Test:%d\r\nConnection: close\r\n\r\n" % server.port)
    assert (await closed(reader)).endswith(b"ok")
    writer.close()
    assert (await door.recorded(1)) == [("allow", "r0", "completed")]


RAW = {
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "Redis, by hand": b"PING\r\n",
    "Redis, a command of a letter": b"$1\r\na\r\n",
    "git": b"0032git-upload-pack /project.git\0host=allowed.test\0",
    "FIX": b"8=FIX.4.2\x019=5\x0135=0\x01",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "PostgreSQL": b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    "LDAP": b"0\x0c\x02\x01\x01`\x07\x02\x01\x03\x04\x00\x80\x00",
    "LDAP, as long as a space": b"0 \x02\x01\x01`\x1b\x02\x01\x03\x04\x0ecn=admin,dc=a,b\x80\x06secret",
    "LDAP, as long as a tab": b"0\t\x02\x01\x01`\x04\x02\x01\x03\x04",
    "LDAP, as long as a CR": b"0\r\x02\x01\x01`\x08\x02\x01\x03\x04\x00\x80\x01a",
    "a length, then text": b"!\x00\x00\x00/ HTTP/1.1\r\n",
    "MQTT": b"\x10\x1a\x00\x04MQTT\x04\x02",
    "AMQP": b"AMQP\x00\x00\x09\x01",
    "DNS": b"\x00\x1d\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00",
    "telnet": b"\xff\xfb\x01\xff\xfd\x03",
    "MongoDB": b"\x16\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\xdd\x07\x00\x00",
    "MessagePack-RPC": b"\x94\x00\x01\xa4ping\x90",
    "SunRPC": b"\x80\x00\x01\x20\x00\x00\x00\x01\x00\x00\x00\x00",
    "bytes": bytes(range(128, 256)),
}


@pytest.mark.parametrize("what", RAW)
async def test_other_protocols_pass_as_they_are(door: LoopbackDoor, what: str) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", server.port)
    writer.write(RAW[what])
    assert await asyncio.wait_for(reader.readexactly(len(RAW[what])), 20) == RAW[what]


async def test_what_begins_as_a_request_could_waits_only_until_it_is_clear(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    for said, answered in ((RAW["git"], True), (RAW["LDAP"], True), (b"_X / HTTP/1.1\r\n" + OTHER, False)):
        reader, writer = await door.tunnel("allowed.test", server.port)
        for byte in said:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        if answered:
            assert await asyncio.wait_for(reader.readexactly(len(said)), 20) == said
        else:
            assert status(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)) == 400


def banner(*answers: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        await echo_bytes(reader, writer)

    return handle


async def test_where_a_server_speaks_first_the_client_may_answer_in_words_but_not_in_http(door: LoopbackDoor) -> None:
    server = await door.serve(banner(), "allowed.test")
    for said, expected in ((b"EHLO me.test\r\n", b"EHLO me.test\r\n"), (b"GET / HTTP/1.1\r\n" + OTHER, b"")):
        reader, writer = await door.tunnel("allowed.test", server.port)
        assert await asyncio.wait_for(reader.readline(), 20) == b"220 ready\r\n"
        writer.write(said)
        writer.write_eof()
        assert await closed(reader) == expected
    assert [one[0] for one in await door.recorded(2)] == ["allow", "deny"]


# --- ends ---


async def test_each_end_may_close_its_half_first(door: LoopbackDoor) -> None:
    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d bytes" % len(await reader.read()))

    got = bytearray()

    async def speak_and_listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all I say")
        writer.write_eof()
        got.extend(await reader.read())

    answering = await door.serve(answer_at_the_end, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", answering.port)
    writer.write(b"\x00" * 100_000)
    writer.write_eof()
    assert await closed(reader) == b"100000 bytes"
    speaking = await door.serve(speak_and_listen, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", speaking.port)
    assert await closed(reader) == b"all I say"
    writer.write(b"\x00 still there")
    writer.write_eof()
    await asyncio.wait_for(speaking.closed.wait(), 20)
    assert got == b"\x00 still there"
    assert await door.recorded(2) == [("allow", "r0", "completed")] * 2
    counted = [(one.details["bytes_up"], one.details["bytes_down"]) for one in door.records]
    assert counted == [(100_000, 12), (13, 9)]


async def test_an_early_end_of_either_side_ends_the_other_and_is_on_record(door: LoopbackDoor) -> None:
    async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Nothing to say."""

    closing = await door.serve(close_at_once, "allowed.test")
    reader, writer = await door.tunnel("allowed.test", closing.port)
    assert await closed(reader) == b""
    writer.close()
    listening = await door.serve(echo_bytes, "allowed.test")
    for said in (b"", b"\x00abc"):
        _, writer = await door.tunnel("allowed.test", listening.port)
        writer.write(said)
        writer.close()
        await asyncio.wait_for(listening.closed.wait(), 20)
        listening.closed.clear()
    reader, writer = await door.tunnel("allowed.test", listening.port)
    writer.transport.abort()
    await asyncio.wait_for(listening.closed.wait(), 20)
    assert len(await door.recorded(4)) == 4
    assert {one[0] for one in door.records.seen()} == {"allow"}


async def test_a_refusal_arrives_whole_although_the_client_went_on_sending(door: LoopbackDoor) -> None:
    reader, writer = await door.connect()
    writer.write(connect("denied.test", 443) + bytes(300_000))
    answer = await closed(reader)
    assert (status(answer), body(answer)["host"]) == (403, "denied.test")


async def test_each_connection_is_on_record_once_with_the_bytes_that_the_server_counted(door: LoopbackDoor) -> None:
    counted = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = len(await reader.read())
        writer.write(b"y" * (got * 2))
        counted.append((got, got * 2))

    server = await door.serve(count, "allowed.test")
    for size in (1, 1000, 300_000):
        reader, writer = await door.tunnel("allowed.test", server.port)
        writer.write(bytes(size))
        writer.write_eof()
        assert len(await closed(reader)) == size * 2
    await door.recorded(3)
    assert [(one.details["bytes_up"], one.details["bytes_down"]) for one in door.records] == counted
    assert [one.size_bytes for one in door.records] == [3 * size for size in (1, 1000, 300_000)]
    assert {(one.kind, one.tool, one.call_id, one.thread) for one in door.records} == {
        ("connection", "connect", "call_1", "t")
    }


# --- what is no request ---

BAD_CONNECT = [
    b"CONNECT allowed.test HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test: HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:0 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:65536 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:-1 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:0x50 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:http HTTP/1.1\r\n\r\n",
    b"CONNECT :80 HTTP/1.1\r\n\r\n",
    b"CONNECT / HTTP/1.1\r\n\r\n",
    b"CONNECT http://allowed.test:80 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:80/path HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:80\r\n\r\n",
    b"CONNECT allowed.test:80 HTTP/2.0\r\n\r\n",
    b"CONNECT  allowed.test:80 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:80 other.test:80 HTTP/1.1\r\n\r\n",
    b"CONNECT \xff\xfe.test:80 HTTP/1.1\r\n\r\n",
    b"CONNECT allowed.test:80 HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
]


@pytest.mark.parametrize("request_", BAD_CONNECT)
async def test_a_connect_that_is_not_plainly_written_is_no_connection(door: LoopbackDoor, request_: bytes) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    answer = await door.ask(request_)
    assert (status(answer) in (400, 431), body(answer)["error"]) == (True, "bad_request")
    assert (server.connections, len(door.records)) == (0, 0)
    await door.tunnel("allowed.test", server.port)


BAD_SOCKS = {
    b"\x05\x01\x02": b"\x05\xff",  # with a password only
    b"\x05\x00": b"\x05\xff",
    b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50": b"\x05\x00\x05\x07",  # BIND
    b"\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50": b"\x05\x00\x05\x07",  # UDP
    b"\x05\x01\x00\x05\x01\x00\x09\x7f\x00\x00\x01\x00\x50": b"\x05\x00\x05\x08",
    b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x50": b"\x05\x00\x05\x01",
    b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00": b"\x05\x00\x05\x01",
    b"\x05\x01\x00\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50": b"\x05\x00\x05\x01",
    b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00\r\n\r\n": b"HTTP",  # SOCKS 4
}


@pytest.mark.parametrize("request_", BAD_SOCKS)
async def test_socks_that_is_not_a_connection_by_tcp_is_answered_and_ends(door: LoopbackDoor, request_: bytes) -> None:
    server = await door.serve(echo_bytes, "allowed.test")
    door.policy = policy(allow(), operator=[LOOPBACK])
    assert (await door.ask(request_)).startswith(BAD_SOCKS[request_])
    assert (server.connections, len(door.records)) == (0, 0)
    await opened(door, "socks", server.port)
