"""Limits, stalls and slow ends: each costs its own connection, ends in its own time, and leaves the others alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

import gateway.network.connection
import gateway.network.door
from tests.security.network.loopback_door import (
    WAIT_S,
    LoopbackDoor,
    allow,
    body,
    closed,
    connect,
    echo_bytes,
    get,
    policy,
    socks,
    status,
)
from tests.unit.gateway.network.relayed import OK, answer, echo, saying

SHORT_S = 0.3


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has a moment to say what it wants, and overdue connections are looked for all the time."""
    monkeypatch.setattr(gateway.network.connection, "_HEAD_S", SHORT_S)
    monkeypatch.setattr(gateway.network.door, "_WATCH_S", 0.02)


async def exchange(door: LoopbackDoor, port: int) -> None:
    """The control: another connection works meanwhile."""
    reader, writer = await door.tunnel("a.test", port)
    writer.write(b"\x00ping")
    assert await asyncio.wait_for(reader.readexactly(5), WAIT_S) == b"\x00ping"
    writer.close()


@contextlib.contextmanager
def never_accepting() -> Iterator[int]:
    """A port whose queue of connections is full."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


# --- how many ---


async def test_over_the_limit_of_connections_at_once_the_next_is_a_429_until_one_ends(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.network.door, "_OVER_LIMIT_S", 0.0)  # each is recorded
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"), connections=2)
    first, second = await door.tunnel("a.test", server.port), await door.tunnel("a.test", server.port)
    for request in (connect("a.test", server.port), get("a.test", server.port)):
        said = await door.ask(request)
        assert (status(said), body(said)["error"], body(said)["host"]) == (429, "too_many_connections", "a.test")
    assert (await door.ask(socks("a.test", server.port)))[2:4] == b"\x05\x01"
    first[1].write(b"\x00x")
    assert await first[0].readexactly(2) == b"\x00x"
    second[1].close()
    await door.recorded(4)
    await exchange(door, server.port)
    assert {one for one in door.records.seen() if one[2] != "completed"} == {("deny", "", "too_many_connections")}


async def test_over_the_limit_of_a_minute_the_next_is_a_429_whatever_became_of_the_others(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.network.door, "_OVER_LIMIT_S", WAIT_S)
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"), connections_per_minute=3)
    kept = await door.tunnel("a.test", server.port)
    assert [status(await door.ask(connect("no.test", 80))) for _ in range(4)] == [403, 403, 429, 429]
    assert status(await door.ask(get("a.test", server.port))) == 429
    # A loop over a limit does not fill the audit: of those in a second one is recorded, and the next counts the rest.
    await door.recorded(3)
    over = [entry for entry in door.records if entry.outcome == "too_many_connections"]
    assert len(over) == 1
    kept[1].write(b"\x00x")
    assert await kept[0].readexactly(2) == b"\x00x"
    door.policy = policy(allow("a.test"), connections_per_minute=4)
    await exchange(door, server.port)
    await door.recorded(4)
    assert sum(int(str(entry.details.get("over_limit_before", 0))) for entry in door.records) == 2


async def test_clients_that_say_nothing_are_bounded_and_wait_inside_the_sandbox(
    door: LoopbackDoor, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"), connections=4)
    silent = [await door.connect() for _ in range(60)]
    await asyncio.sleep(0.05)
    taken = 60 - door.sandbox.network.queue.qsize()
    assert taken <= 4 + 16 + 2
    await exchange(door, server.port)  # after those that were there before
    assert len(silent) == 60


async def test_a_lost_connection_does_not_stop_the_door(door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandbox.errors import SandboxError

    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"))
    monkeypatch.setattr(gateway.network.door, "_ACCEPT_AGAIN_S", 0.01)
    take, failures = door.sandbox.network.queue.get, [SandboxError("no descriptors left")] * 4

    async def accept() -> socket.socket:
        if failures:
            raise failures.pop()
        return await take()

    monkeypatch.setattr(door.sandbox.network, "accept", accept)
    for _ in range(6):
        await exchange(door, server.port)
    assert not failures


# --- how much ---


async def test_no_more_bytes_pass_than_the_limit_either_way_and_the_record_is_exact(door: LoopbackDoor) -> None:
    got = [0]

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                got[0] += len(data)

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(100):
            writer.write(bytes(1000))
            await writer.drain()
            await asyncio.sleep(0)

    taking, giving = await door.serve(take, "a.test"), await door.serve(give, "b.test")
    door.policy = policy(allow("a.test", "b.test"), bytes_up=5000, bytes_down=7000)
    reader, writer = await door.tunnel("a.test", taking.port)
    for _ in range(100):
        writer.write(bytes(1000))
        await asyncio.sleep(0)
    assert await closed(reader) == b""
    await asyncio.wait_for(taking.closed.wait(), WAIT_S)
    reader, _ = await door.tunnel("b.test", giving.port)
    down = len(await closed(reader))
    assert await door.recorded(2) == [("allow", "r0", "byte_limit")] * 2
    assert door.records[0].details["bytes_up"] == got[0] <= 5000
    assert door.records[1].details["bytes_down"] == down <= 7000
    door.policy = policy(allow("a.test", "b.test"), bytes_up=100_000, bytes_down=100_000)
    reader, _ = await door.tunnel("b.test", giving.port)
    assert len(await closed(reader)) == 100_000


async def test_of_http_no_more_bytes_pass_than_the_limit(door: LoopbackDoor) -> None:
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + bytes(50_000)
    server = await door.serve(saying(large), "a.test")
    door.policy = policy(allow("a.test"), bytes_down=10_000)
    assert len(await door.ask(get("a.test", server.port))) <= 10_000
    assert await door.recorded(1) == [("allow", "r0", "byte_limit")]
    assert door.records[0].details["bytes_down"] <= 10_000
    door.policy = policy(allow("a.test"), bytes_down=60_000)
    assert (await door.ask(get("a.test", server.port))).endswith(bytes(50_000))


async def test_a_slow_reader_and_a_slow_writer_hold_up_only_themselves(door: LoopbackDoor) -> None:
    sent = [0]

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(100_000))
                await writer.drain()
                sent[0] += 100_000

    pouring, server = await door.serve(pour, "b.test"), await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test", "b.test"))
    lazy, _ = await door.connect()
    _.transport.pause_reading()  # type: ignore[attr-defined]
    _.write(connect("b.test", pouring.port))
    reader, slow = await door.tunnel("a.test", server.port)
    for byte in b"\x00slow":
        slow.write(bytes([byte]))
        await exchange(door, server.port)
    assert await asyncio.wait_for(reader.readexactly(5), WAIT_S) == b"\x00slow"
    before = -1
    while before != sent[0]:  # it stands still: what is under way is bounded by the sockets
        before = sent[0]
        await asyncio.sleep(0.1)
    assert sent[0] < 32 * 1024 * 1024
    assert lazy is not None


# --- how long ---

STALLS = {
    "nothing": b"",
    "half a word": b"CON",
    "half a CONNECT": b"CONNECT a.test:80 HT",
    "half a head of CONNECT": b"CONNECT a.test:80 HTTP/1.1\r\nHost: a",
    "a SOCKS version": b"\x05",
    "a SOCKS greeting": b"\x05\x01\x00",
    "half a SOCKS request": b"\x05\x01\x00\x05\x01\x00\x03\x06a.te",
}


@pytest.mark.parametrize("what", STALLS)
async def test_a_client_that_does_not_say_what_it_wants_is_closed(door: LoopbackDoor, hasty: None, what: str) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.connect()
    writer.write(STALLS[what])
    await exchange(door, server.port)
    assert await closed(reader) in (b"", b"\x05\x00")


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_a_client_whose_tls_would_be_opened_and_does_not_begin_it_is_closed(
    door: LoopbackDoor, hasty: None, first: bytes
) -> None:
    server = await door.serve(saying(OK), "a.test")
    door.policy = policy(allow("a.test", methods=["GET"]))
    reader, writer = await door.tunnel("a.test", server.port)
    writer.write(first)
    assert await closed(reader) == b""
    assert await door.recorded(1) == [("allow", "", "broken")]
    assert status(await door.ask(get("a.test", server.port))) == 200


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00", b"GE", b"\r\n", b"\x00once"])
async def test_a_tunnel_without_a_byte_is_closed_as_idle(door: LoopbackDoor, hasty: None, first: bytes) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"), idle_s=SHORT_S)
    reader, writer = await door.tunnel("a.test", server.port)
    busy = await door.tunnel("a.test", server.port)
    writer.write(first)
    closing = asyncio.create_task(closed(reader))
    while not closing.done():  # the control: bytes keep a tunnel open
        busy[1].write(b"\x00")
        assert await busy[0].readexactly(1) == b"\x00"
        await asyncio.sleep(SHORT_S / 20)
    assert await door.recorded(1) == [("allow", "r0", "idle")]
    busy[1].write(b"\x00")
    assert await busy[0].readexactly(1) == b"\x00"


async def test_a_connection_ends_after_its_time_in_all_however_busy(door: LoopbackDoor, hasty: None) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"), total_s=SHORT_S)
    reader, writer = await door.tunnel("a.test", server.port)
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        async with asyncio.timeout(WAIT_S):
            while True:
                writer.write(b"\x00")
                await reader.readexactly(1)
    assert await door.recorded(1) == [("allow", "r0", "time_limit")]


@pytest.mark.parametrize("limit", ["idle_s", "total_s"])
async def test_time_limits_hold_for_plain_http_by_the_proxy_too(door: LoopbackDoor, hasty: None, limit: str) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    never, server = await door.serve(silent, "b.test"), await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test", "b.test"), **{limit: SHORT_S})
    assert await door.ask(get("b.test", never.port)) == b""
    assert await door.recorded(1) == [("allow", "r0", "idle" if limit == "idle_s" else "time_limit")]
    await asyncio.wait_for(never.closed.wait(), WAIT_S)
    await exchange(door, server.port)


async def test_a_server_that_does_not_accept_is_a_504_in_its_time(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "a.test", "b.test")
    door.policy = policy(allow("a.test", "b.test"), connect_s=SHORT_S)
    with never_accepting() as port:
        stalled = [asyncio.create_task(door.ask(ask("b.test", port))) for ask in (connect, get, socks)]
        await exchange(door, server.port)
        for said in (await stalled[0], await stalled[1]):
            assert (status(said), body(said)["error"], body(said)["port"]) == (504, "timed_out", port)
        assert (await stalled[2])[2:4] == b"\x05\x04"


async def test_a_name_server_that_does_not_answer_is_a_504_in_its_time(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test", "b.test"), connect_s=SHORT_S)
    look = door.lookup

    async def lookup(host: str, port: int) -> list[str]:
        if host == "b.test":
            await asyncio.Event().wait()
        return await look(host, port)

    monkeypatch.setattr(door, "lookup", lookup)
    stalled = asyncio.create_task(door.ask(connect("b.test", 80)))
    await exchange(door, server.port)
    said = await stalled
    assert (status(said), body(said)["error"]) == (504, "timed_out")


# --- many ---


async def test_two_hundred_tunnels_at_once_all_work(door: LoopbackDoor) -> None:
    door.policy = policy(allow("a.test"), connections=220)
    server = await door.serve(echo_bytes, "a.test")
    tunnels = await asyncio.gather(*(door.tunnel("a.test", server.port) for _ in range(200)))
    for number, (_, writer) in enumerate(tunnels):
        writer.write(b"\x00%3d" % number)
    said = await asyncio.gather(*(reader.readexactly(4) for reader, _ in tunnels))
    assert said == [b"\x00%3d" % number for number in range(200)]
    for _, writer in tunnels:
        writer.close()
    assert await door.recorded(200) == [("allow", "r0", "completed")] * 200


async def test_a_request_after_a_long_pause_of_a_kept_connection_works(door: LoopbackDoor) -> None:
    """The control of the time limits: a server that closed meanwhile is dialled again, and both are on record."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    server = await door.serve(once, "a.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.connect()
    for _ in range(3):
        writer.write(f"GET http://a.test:{server.port}/ HTTP/1.1\r\nHost: a.test:{server.port}\r\n\r\n".encode())
        assert (await answer(reader))[1] == b"ok"
        await asyncio.wait_for(server.closed.wait(), WAIT_S)
        server.closed.clear()
    writer.close()
    assert await door.recorded(3) == [("allow", "r0", "completed")] * 3


async def test_requests_that_are_refused_on_one_connection_do_not_fill_the_audit(door: LoopbackDoor) -> None:
    server = await door.serve(echo, "a.test")
    door.policy = policy(allow("a.test", methods=["GET"]), connections_per_minute=5)
    reader, writer = await door.connect()
    where = f"a.test:{server.port}"
    for number in range(50):
        method = "DELETE" if number else "GET"
        writer.write(f"{method} http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
        assert status((await answer(reader))[0]) == (403 if number else 200)
    assert len([entry for entry in door.records if entry.verdict == "deny"]) <= 5
