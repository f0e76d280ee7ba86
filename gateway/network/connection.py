"""One connection of tool code to the proxy: what it asks for, and what is relayed then."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Literal

from agent.cancellation import ended
from gateway.network.client_bytes import ClientBytes, EndOfConnection
from gateway.network.client_hello import ANSWER_BYTES, HANDSHAKE, ClientHello, asks_again, read_client_hello, tls_record
from gateway.network.decision import denied
from gateway.network.http_client import first_of
from gateway.network.http_exit import serve_opened, serve_proxied, serve_tunnelled
from gateway.network.http_request import Refused
from gateway.network.outgoing import Ended, Exits, Outgoing
from gateway.network.proxy_requests import (
    CONNECTED,
    SOCKS_CONNECTED,
    SOCKS_VERSION,
    http_refusal,
    read_connect,
    read_socks,
    socks_refusal,
)
from gateway.support.hosts import address_of
from sandbox.daemon.relay import Direction

_HEAD_S = 30.0
# What some server could read as the beginning of a request: blank lines and spaces, then any token as the method. Few
# binary protocols begin with a letter in this way. LDAP may begin with a digit, but control characters follow. git://
# begins with the line's length in digits, but has a NUL in that line.
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_GIT = rb"[0-9a-f]{4}git-[a-z-]+ [^\0\n]*"
_METHOD = re.compile(
    rb"\s*(?!%b\0)(?:[A-Za-z]%b*(?:[ \t\v\f]|\r+[^\r\n])|%b+[ \t\v\f\r]+[!-~])" % (_GIT, _TOKEN, _TOKEN)
)
_METHOD_BEGUN = re.compile(rb"\s*(?:%b|%b+[ \t\v\f\r]*)?" % (_GIT, _TOKEN))
_LINE_LIMIT_BYTES = 64 * 1024
# Records of TLS: servers pass over alerts before the handshake, and some over the version of a record. And what SSL 2
# began with, which some still read, up to the length that they do.
_TLS = re.compile(
    rb"[\x14-\x18]\x03|\x16[\0-\x0f].(?:\0\0|..\x01)|\x15[\0-\x0f].\0\x02|\x14[\0-\x0f].\0\x01"
    rb"|[\x80-\xc7].\x01(?:\x03.|\0\x02)",
    re.DOTALL,
)
_TLS_BEGUN = re.compile(
    rb"[\x14-\x18]|[\x14-\x16][\0-\x0f].{0,2}|\x16[\0-\x0f]...|[\x80-\xc7](?:.(?:\x01[\0\x03]?)?)?", re.DOTALL
)
# A server that reads the PROXY protocol reads TLS behind it. Its text form begins as a request does.
_PROXY_HEADER = b"\r\n\r\n\0"
# Records that may come before the second hello: cipher changes, alerts, and data that the server drops.
_PASSED_OVER = (20, 21, 23)
_LIMIT_PASSED_OVER = 256
_RECORD_LIMIT_BYTES = 16 * 1024 + 256


async def serve(connection: socket.socket, exits: Exits) -> None:
    """Serve one connection to its end, and close it. Never raises for what the client or the server does."""
    client = ClientBytes(connection)
    with closing(connection):
        try:
            async with asyncio.timeout(_HEAD_S):
                await client.more()
                if client.rest[0] == SOCKS_VERSION:
                    kind: Literal["socks", "connect", "http"] = "socks"
                else:
                    while len(client.rest) < 8 and b"CONNECT ".startswith(client.rest.upper()):
                        await client.more()
                    kind = "connect" if client.rest[:8].upper() == b"CONNECT " else "http"
            if kind == "http":
                await serve_proxied(client, exits)
                return
            answers = (SOCKS_CONNECTED, socks_refusal) if kind == "socks" else (CONNECTED, http_refusal)
            try:
                async with asyncio.timeout(_HEAD_S):
                    target = await (read_socks(client) if kind == "socks" else read_connect(client))
                outgoing = exits.outgoing(target, asyncio.current_task())
            except Refused as refused:
                await client.send(answers[1](refused))
                await client.linger()
                return
            if not await _tunnel(client, outgoing, exits, *answers):
                await client.linger()
        except (EndOfConnection, OSError, TimeoutError):
            pass  # the client is gone, or says nothing


async def _tunnel(
    client: ClientBytes, outgoing: Outgoing, exits: Exits, connected: bytes, refusal: Callable[[Refused], bytes]
) -> bool:
    """Return whether it carried HTTP, whose relay has closed the client's connection."""
    is_http = False
    policy, target = outgoing.policy.policy(), outgoing.target
    is_opened = exits.opening.opens(target.host, target.port, policy)
    try:
        try:
            if not (is_opened and policy.judges_requests(target.host, target.port)):
                await first_of(outgoing.decide(), client.watch())
            upstream = None if is_opened else await outgoing.dial()
        except Refused as refused:
            await client.send(refusal(refused))
            return False
        if upstream is None:
            await client.send(connected)
            async with asyncio.timeout(_HEAD_S):  # no server is connected yet, so no other limit holds
                hello = await _check_first(client, outgoing, only_tls=True)
            if hello is None:
                raise EndOfConnection
            is_http = True
            await serve_opened(client, exits, outgoing, hello)
            return True
        with closing(upstream):
            await client.send(connected)
            is_http = await _relay_checked(client, upstream, outgoing)
            if is_http:  # each request is judged then, and the connection recorded, as those to a proxy are
                await serve_tunnelled(client, exits, outgoing, upstream)
    except Refused as refused:
        outgoing.refuse(refused)
    except Ended as ended:
        outgoing.outcome = str(ended)
    except (EndOfConnection, OSError):
        outgoing.outcome = outgoing.outcome or "broken"
    except asyncio.CancelledError:
        outgoing.outcome = outgoing.outcome or "cancelled"
        raise
    finally:
        if not is_http:
            exits.ended(outgoing)
    return is_http


async def _relay_checked(client: ClientBytes, upstream: socket.socket, outgoing: Outgoing) -> bool:
    """Relay both ways to the end, or until the client turns out to speak plain HTTP: return True then.

    What the client says first is checked; a server may speak before it.
    """
    answer = _Answer(outgoing)
    back = Direction(upstream, client.connection, answer.seen)
    forward = asyncio.create_task(_forward(client, upstream, outgoing, answer))
    try:
        await asyncio.gather(back.ended, forward)
    except _PlainHttp:
        if not outgoing.bytes_down:
            return True
        raise denied(outgoing.target, _rule(outgoing), "the client speaks HTTP to a server that spoke first") from None
    finally:
        back.close()  # at once: from here on no byte may follow
        await ended(forward)
    return False


class _PlainHttp(Exception):
    """The client speaks plain HTTP."""


class _Answer:
    """Counts what a server sends, and says whether it asks for a second hello."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._begun: bytes | None = None
        self._asks = False
        self._known = asyncio.Event()

    def seen(self, piece: memoryview) -> None:
        self._outgoing.count_down(len(piece))
        if not piece:
            self._known.set()
        if self._begun is None or self._known.is_set():
            return
        self._begun += piece[:ANSWER_BYTES]
        asks = asks_again(self._begun)
        if asks is not None:
            self._asks = asks
            self._known.set()

    def expect(self) -> None:
        """Look at what comes from now on."""
        self._begun = b""

    async def asks(self) -> bool:
        """Return whether it asks for a second hello, once that is known."""
        await self._known.wait()
        return self._asks


async def _forward(client: ClientBytes, upstream: socket.socket, outgoing: Outgoing, answer: _Answer) -> None:
    loop = asyncio.get_running_loop()

    async def send(size: int) -> None:
        outgoing.count_up(size)
        sent, client.rest = client.rest[:size], client.rest[size:]
        await loop.sock_sendall(upstream, sent)

    try:
        hello = await _check_first(client, outgoing)
        if hello is not None:
            answer.expect()
            await send(hello.size_bytes)
            if await first_of(answer.asks(), client.watch()):
                await _pass_over(client, outgoing, send)
                await _check_hello(client, outgoing)
        await send(len(client.rest))
    except EndOfConnection:  # it only listens, or was cut before it was understood: then it gets no more through
        upstream.shutdown(socket.SHUT_WR)
        return
    with closing(Direction(client.connection, upstream, lambda piece: outgoing.count_up(len(piece)))) as direction:
        await direction.ended


async def _pass_over(client: ClientBytes, outgoing: Outgoing, send: Callable[[int], Awaitable[None]]) -> None:
    """Send the records that servers pass over before a second hello."""
    for _ in range(_LIMIT_PASSED_OVER):
        await asyncio.sleep(0)  # where bytes wait, nothing else here lets others have their turn
        while len(client.rest) < 5:
            await client.more()
        kind, length = tls_record(client.rest)
        if kind == HANDSHAKE:
            return
        if kind not in _PASSED_OVER or not 0 < length <= _RECORD_LIMIT_BYTES:
            break
        while len(client.rest) < 5 + length:
            await client.more()
        await send(5 + length)
    raise denied(outgoing.target, _rule(outgoing), "the TLS handshake is not understood: no second ClientHello follows")


def _rule(outgoing: Outgoing) -> str:
    return outgoing.decision.rule if outgoing.decision is not None else ""


async def _more_of_line(client: ClientBytes, outgoing: Outgoing) -> None:
    if len(client.rest) > _LINE_LIMIT_BYTES:
        raise denied(outgoing.target, _rule(outgoing), "the client sends a first line without end")
    await client.more()


async def _check_first(client: ClientBytes, outgoing: Outgoing, *, only_tls: bool = False) -> ClientHello | None:
    """Check what the client says first: the name in a TLS handshake. Raises Refused, and _PlainHttp for HTTP.

    Returns None for anything but TLS, which is refused with `only_tls`.
    """
    if not client.rest:
        await client.more()
    target = outgoing.target
    while not _TLS.match(client.rest) and _TLS_BEGUN.fullmatch(client.rest):
        await client.more()
    if only_tls and not _TLS.match(client.rest):
        reason = "the requests of this connection are judged, and it is neither TLS nor asked for in plain HTTP"
        raise denied(target, _rule(outgoing), reason, advice=f"use https://{target.host}")
    while _METHOD_BEGUN.fullmatch(client.rest):
        await _more_of_line(client, outgoing)
    if _METHOD.match(client.rest):
        while outgoing.bytes_down and b"\n" not in client.rest.lstrip():
            await _more_of_line(client, outgoing)
        # Where a server speaks first, other protocols begin with a word, too: SMTP, FTP.
        if not outgoing.bytes_down or b"HTTP/" in client.rest.lstrip().partition(b"\n")[0].upper():
            raise _PlainHttp
        return None
    if client.rest.startswith(_PROXY_HEADER):
        reason = "the client sends a header of the PROXY protocol, behind which a TLS handshake may follow"
        raise denied(target, _rule(outgoing), reason)
    return await _check_hello(client, outgoing) if _TLS.match(client.rest) else None


async def _check_hello(client: ClientBytes, outgoing: Outgoing) -> ClientHello:
    """Check that a TLS handshake names the host, in plain text. Raises Refused."""
    target = outgoing.target
    advice = f"connect to {target.host} by that name"
    try:
        while (hello := read_client_hello(client.rest)) is None:
            await client.more()
    except ValueError as error:
        raise denied(target, _rule(outgoing), f"the TLS handshake is not understood: {error}", advice=advice) from error
    if hello.encrypted:
        reason = "the TLS handshake hides its server name (ECH)"
        raise denied(target, _rule(outgoing), reason, advice="switch ECH off")
    name = (hello.server_name or "").lower().removesuffix(".")
    if name != (target.host if address_of(target.host) is None else ""):
        said = f"the TLS handshake names {name[:100] or 'no server'!r}"
        raise denied(target, _rule(outgoing), said, advice=advice)
    return hello
