"""HTTP/1.1 between one client and servers: each request is judged, dialled and passed on by itself.

Messages are parsed and written anew by h11, so no server sees bytes that the client framed. Bodies are streamed. What a
server breaks off, the client sees broken off.
"""

import asyncio
from contextlib import suppress

import h11

from gateway.network.http_client import Client, ClientGone, RelayLimits, Streams, first_of
from gateway.network.http_request import Origin, ProxyRequest, Refused, read_request
from gateway.network.http_transfer import Inbound, Transfer, phrase
from gateway.network.raw_relay import relay_raw
from gateway.network.upstream import Exchange, Upstream

_LIMITS = RelayLimits()
# Sent once more if the server closed an idle connection in the meantime (RFC 9110, 9.2.2).
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
_DRAIN_BYTES = 64 * 1024
_DRAIN_S = 1.0


async def relay_http(
    client: Streams,
    upstream: Upstream,
    *,
    first: bytes = b"",
    origin: Origin | None = None,
    limits: RelayLimits = _LIMITS,
) -> None:
    """Serve a client's connection to its end, and close it. `first`: bytes of it that were read already.

    Without an `origin` the client speaks to a proxy, in absolute form; with one to that server, in origin form.
    """
    relay = _Relay(Client(client, first, limits), upstream, origin, limits)
    try:
        while await relay.serve():
            pass
        await relay.client.close()
    except ClientGone:
        pass
    finally:
        relay.release()
        client[1].transport.abort()  # its socket is closed next, whatever is still to be sent


class _Relay:
    """One client's connection, and the connection to the server that served it last."""

    def __init__(self, client: Client, upstream: Upstream, origin: Origin | None, limits: RelayLimits) -> None:
        self.client = client
        self._upstream = upstream
        self._origin = origin
        self._limits = limits
        self._server: tuple[Origin, Streams] | None = None

    def release(self) -> None:
        """Drop the server's connection: what it still buffers is not wanted."""
        if self._server is not None:
            self._server[1][1].transport.abort()
        self._server = None

    async def serve(self) -> bool:
        """Serve one request; return whether another may follow. Raises ClientGone."""
        inbound = Inbound(self.client, self._limits)
        request = None
        try:
            request = read_request(await inbound.read_request(), self._origin)
            exchange = await self.client.attended(self._upstream.judge(request))
            return await self._relay(inbound, request, exchange)
        except Refused as refused:
            self._upstream.refused(refused, request)
            if inbound.http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
                raise ClientGone from refused  # a part of an answer was sent: it must not look complete
            return await self._answer(inbound, refused, request)

    async def _relay(self, inbound: Inbound, request: ProxyRequest, exchange: Exchange) -> bool:
        reused = self._is_connected(request.origin)
        transfer = await self._transfer(inbound, request, exchange)
        try:
            await self._run(transfer)
        except Refused as refused:
            stale = reused and refused.status == 502 and transfer.sent and not transfer.heard
            if not stale or transfer.had_body or request.method not in _REPEATABLE:
                raise
            transfer = await self._transfer(inbound, request, exchange)
            await self._run(transfer)
        if inbound.http.our_state is h11.SWITCHED_PROTOCOL:
            try:
                await self._relay_websocket(transfer)
            except Refused as refused:
                self._upstream.refused(refused, request)
            return False
        if not transfer.leaves_server_usable:
            self.release()
        return inbound.http.our_state is h11.DONE and inbound.http.their_state is h11.DONE

    def _is_connected(self, origin: Origin) -> bool:
        if self._server is None:
            return False
        connected, (reader, writer) = self._server
        return connected == origin and not reader.at_eof() and not writer.is_closing()

    async def _transfer(self, inbound: Inbound, request: ProxyRequest, exchange: Exchange) -> Transfer:
        """Connect to the request's server, unless it is connected."""
        server = self._server
        if server is None or not self._is_connected(request.origin):
            self.release()
            server = await self.client.attended(self._connect(request.origin))
        return Transfer(inbound, server[1], request, exchange, self._upstream.moved)

    async def _connect(self, origin: Origin) -> tuple[Origin, Streams]:
        # Kept here, not by who waits: that may be cancelled just as the connection is made, which nothing would close.
        self._server = server = origin, await self._upstream.dial(origin)
        return server

    async def _run(self, transfer: Transfer) -> None:
        try:
            async with transfer.limited(self._limits.idle_s):
                await first_of(transfer.receive(), transfer.send())
        except TimeoutError as error:
            self.release()
            raise transfer.failed("gateway_timeout", "no byte moved for too long", 504) from error
        except BaseException:
            self.release()
            raise

    async def _relay_websocket(self, transfer: Transfer) -> None:
        exchange = transfer.exchange
        with suppress(OSError):  # TimeoutError is one
            async with transfer.limited(self._limits.idle_s):
                await relay_raw(
                    (self.client.reader, self.client.writer),
                    (transfer.reader, transfer.writer),
                    early=(self.client.take(), transfer.rest),
                    moved=transfer.moved,
                    received=exchange.received,
                    flush=exchange.flush,
                )

    async def _answer(self, inbound: Inbound, refused: Refused, request: ProxyRequest | None) -> bool:
        """Answer in place of a server; return whether it is known where the next request begins."""
        keep = request is not None and await self._drained(inbound)
        body = refused.content
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if not keep:
            headers.append(("Connection", "close"))
        events: list[h11.Event] = [
            h11.Response(status_code=refused.status, headers=headers, reason=phrase(refused.status))
        ]
        if request is None or request.method != "HEAD":
            events.append(h11.Data(data=body))
        try:
            async with asyncio.timeout(self._limits.head_s):
                await inbound.send(*events, h11.EndOfMessage())
        except TimeoutError as error:
            raise ClientGone from error
        return keep and inbound.http.our_state is h11.DONE

    @staticmethod
    async def _drained(inbound: Inbound) -> bool:
        """Read the rest of a small body; return whether the request is complete."""
        left = _DRAIN_BYTES
        with suppress(TimeoutError, Refused):
            async with asyncio.timeout(_DRAIN_S):
                while not inbound.is_complete and left > 0 and not inbound.http.they_are_waiting_for_100_continue:
                    event = await inbound.read_body()
                    left -= len(event.data) if isinstance(event, h11.Data) else 0
        return inbound.is_complete
