"""TLS that the gateway opens, without a sandbox: its requests are watched, and it is on record however it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

import gateway.network.door
from gateway.network.http_client import Streams
from gateway.network.opening import Opening, Trust
from tests.security.network.loopback_door import LoopbackDoor, allow, closed, policy
from tests.unit.gateway.network.relayed import OK, Handler, Server, answer, saying

GET_ONLY = allow("a.test", methods=["GET"])
WATCH_S = 0.02


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.network.door, "_WATCH_S", WATCH_S)


async def opened(
    door: LoopbackDoor, directory: Path, handler: Handler, *rules: Mapping[str, Any], alpn: Sequence[str] = ()
) -> Server:
    """Serve a.test in TLS, which the gateway trusts and, because of the rules, opens."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("a.test").configure_cert(context)
    if alpn:
        context.set_alpn_protocols(alpn)
    door.door.opening = Opening("acme", (), b"secret", trust_in(authority))
    door.policy = policy(*rules)
    return await door.serve(handler, "a.test", tls=context)


def trust_in(authority: trustme.CA) -> Callable[[], Trust]:
    # Not the default context: to load the authorities of the machine takes longer than most tests of this.
    trust = Trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for one, protocols in zip(trust, (["http/1.1"], ["h2", "http/1.1"]), strict=True):
        authority.configure_trust(one)
        one.set_alpn_protocols(protocols)
    return lambda: trust


def trusting(door: LoopbackDoor) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=door.door.opening.authority.ca_pem)


async def secured(door: LoopbackDoor, port: int) -> Streams:
    reader, writer = await door.tunnel("a.test", port)
    await writer.start_tls(trusting(door), server_hostname="a.test")
    return reader, writer


def request(port: int, path: str = "/") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n".encode()


async def test_a_connection_whose_requests_are_judged_stays_while_they_are_allowed(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    server = await opened(door, tmp_path, saying(OK), GET_ONLY)
    reader, writer = await secured(door, server.port)
    for rules in ([GET_ONLY], [GET_ONLY], [GET_ONLY, allow("b.test")]):
        door.policy = policy(*rules)
        writer.write(request(server.port))
        assert (await answer(reader))[1] == b"ok"
        await asyncio.sleep(5 * WATCH_S)
    door.policy = policy(allow("a.test", methods=["POST"]))
    assert await closed(reader) == b""
    assert await door.recorded(1) == [("allow", "r0", "policy_changed")]
    assert server.connections == 1


async def test_a_request_after_the_server_closed_its_connection_is_allowed_as_long_as_it_lasts(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    released = asyncio.Event()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b" /late " in await reader.readuntil(b"\r\n\r\n"):
            await released.wait()
        writer.write(OK)
        await writer.drain()

    server = await opened(door, tmp_path, answer_late, GET_ONLY)
    reader, writer = await secured(door, server.port)
    writer.write(request(server.port))
    assert (await answer(reader))[1] == b"ok"
    await asyncio.wait_for(server.closed.wait(), 20)
    writer.write(request(server.port, "/late"))
    async with asyncio.timeout(20):
        while server.connections < 2:
            await asyncio.sleep(WATCH_S)
    await asyncio.sleep(5 * WATCH_S)
    released.set()
    assert (await answer(reader))[1] == b"ok"
    writer.close()
    assert await door.recorded(2) == [("allow", "r0", "completed")] * 2


async def test_a_later_request_on_a_connection_ends_when_the_policy_denies_it(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    async def first_whole_then_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        await reader.read()

    both, first = allow("a.test", url_paths=["/first", "/second"]), allow("a.test", url_paths=["/first"])
    server = await opened(door, tmp_path, first_whole_then_without_end, both)
    reader, writer = await secured(door, server.port)
    writer.write(request(server.port, "/first"))
    assert (await answer(reader))[1] == b"ok"
    writer.write(request(server.port, "/second"))
    await reader.readuntil(b"\r\n\r\n")
    door.policy = policy(first)
    await closed(reader)
    assert await door.recorded(1) == [("allow", "r0", "policy_changed")]


@pytest.mark.parametrize("stalled", ["client", "server"])
async def test_what_is_ended_in_a_handshake_is_on_record_and_no_longer_counts(
    door: LoopbackDoor, tmp_path: Path, stalled: str
) -> None:
    server = await opened(door, tmp_path, saying(OK), GET_ONLY)
    silent = await door.serve(_reads_only, "a.test")
    if stalled == "server":  # it is connected before its client's handshake, as both could speak HTTP/2
        door.door.opening.opens = lambda *_: True  # type: ignore[method-assign]
        door.policy = policy(allow("a.test"))
    reader, writer = await door.tunnel("a.test", silent.port if stalled == "server" else server.port)
    received, sent, context = ssl.MemoryBIO(), ssl.MemoryBIO(), trusting(door)
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname="a.test").do_handshake()
    writer.write(sent.read())
    if stalled == "client":
        await reader.readexactly(5)  # the gateway's part of the handshake has come
        for task in door.door._serving:
            task.cancel()
    else:
        async with asyncio.timeout(20):
            while not silent.connections:
                await asyncio.sleep(WATCH_S)
        door.policy = policy(allow("b.test"))
    await closed(reader)
    outcome = "policy_changed" if stalled == "server" else "cancelled"
    assert [one[2] for one in await door.recorded(1)] == [outcome]
    assert door.door.shared.open == 0


async def _reads_only(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()
    while await reader.read(1000):
        pass
