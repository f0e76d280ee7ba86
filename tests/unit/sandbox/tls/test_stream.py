"""A TLS stream alone: what its two ends say to each other, and what a peer of bad will may not do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from sandbox.tls.identity import CHANNEL_PROTOCOL, server_context
from sandbox.tls.stream import BrokenStream, TlsStream
from tests.turns import turns
from tests.unit.sandbox.tls.relays import INSTANCE, NAME, authority


@pytest.fixture
async def ends() -> AsyncIterator[tuple[TlsStream, TlsStream]]:
    """The gateway's end and the relay's."""
    mine = authority()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with one, other:
        gateway = TlsStream(one, mine.contexts(CHANNEL_PROTOCOL), server_side=False)
        context = server_context(mine.sandbox_identity(NAME), mine.ca_pem)
        relay = TlsStream(other, context, server_side=True)
        await asyncio.gather(gateway.handshake(), relay.handshake())
        yield gateway, relay


async def all_of(stream: TlsStream) -> bytes:
    received = b""
    while data := await stream.read():
        received += data
    return received


async def test_both_know_each_other_by_name_in_the_newest_tls(ends: tuple[TlsStream, TlsStream]) -> None:
    gateway, relay = ends
    assert (gateway.peer_names, relay.peer_names) == ((f"URI:{NAME}",), (f"URI:airlock://{INSTANCE}/gateway",))
    assert {end.protocol for end in ends} == {CHANNEL_PROTOCOL}
    assert {end._tls.version() for end in ends} == {"TLSv1.3"}


async def test_what_has_arrived_when_a_direction_ends_is_still_read(ends: tuple[TlsStream, TlsStream]) -> None:
    gateway, relay = ends
    said = os.urandom(90_000)
    await relay.write(memoryview(said))
    await gateway._receive()  # records that nobody has asked for yet, the last of them in part
    await gateway.end()
    await relay.write(memoryview(b"more"))
    await relay.end()
    assert await all_of(gateway) == said + b"more"
    assert await all_of(relay) == b""


async def test_bytes_after_the_end_are_a_violation(ends: tuple[TlsStream, TlsStream]) -> None:
    gateway, relay = ends
    await relay.end()
    assert await gateway.read() == b""
    relay.connection.send(b"x")
    with pytest.raises(BrokenStream, match="after the end"):
        await gateway.closed()


async def test_bytes_that_come_with_the_end_are_a_violation_and_hold_nothing_up(
    ends: tuple[TlsStream, TlsStream],
) -> None:
    gateway, relay = ends
    with contextlib.suppress(ssl.SSLWantReadError):
        relay._tls.unwrap()
    relay.connection.send(relay._outgoing.read() + b"\x17\x03\x03\x00\x20 and what is no record at all")
    assert await gateway.read() == b""
    await gateway.end()
    with pytest.raises(BrokenStream, match="after the end"):
        await gateway.closed()


async def test_a_record_that_was_changed_on_its_way_is_not_read(ends: tuple[TlsStream, TlsStream]) -> None:
    gateway, relay = ends
    relay._tls.write(b"hello")
    record = bytearray(relay._outgoing.read())
    record[-1] ^= 1
    relay.connection.send(record)
    with pytest.raises(OSError, match="bad record mac"):
        await gateway.read()


async def test_the_event_loop_runs_while_a_record_comes_byte_by_byte(
    ends: tuple[TlsStream, TlsStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, relay = ends
    await relay.write(memoryview(b"x" * 100))
    monkeypatch.setattr("sandbox.tls.stream._PIECE_BYTES", 1)
    async with turns() as counted:
        assert await gateway.read() == b"x" * 100
        assert counted.count >= 100


async def test_the_event_loop_runs_while_a_handshake_comes_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.tls.stream._PIECE_BYTES", 1)
    mine = authority()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with one, other:
        gateway = TlsStream(one, mine.contexts(CHANNEL_PROTOCOL), server_side=False)
        relay = TlsStream(other, server_context(mine.sandbox_identity(NAME), mine.ca_pem), server_side=True)
        async with turns() as counted:
            await asyncio.gather(gateway.handshake(), relay.handshake())
            assert counted.count >= 500


async def test_a_peer_that_makes_more_be_sent_than_it_reads_is_cut(
    ends: tuple[TlsStream, TlsStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, relay = ends
    monkeypatch.setattr("sandbox.tls.stream._UNSENT_LIMIT_BYTES", -1)
    await relay.write(memoryview(b"x"))
    with pytest.raises(BrokenStream, match="more than it reads"):
        await gateway.read()
