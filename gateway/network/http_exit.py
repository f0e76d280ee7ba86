"""The requests of one client's HTTP connection, each judged, over connections to the outside that are on record."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from gateway.network.client_bytes import ClientBytes
from gateway.network.client_hello import ClientHello
from gateway.network.credentials import Caller, CredentialExchange
from gateway.network.decision import Target, denied
from gateway.network.http2_relay import relay_http2
from gateway.network.http_client import Streams
from gateway.network.http_relay import relay_http
from gateway.network.http_request import Headers, Origin, ProxyRequest, Refused, refusal
from gateway.network.outgoing import BYTE_LIMIT, Ended, Exits, Outgoing
from gateway.network.tls_server import accept_tls
from gateway.network.upstream import Exchange, PlainExchange

_HANDSHAKE_S = 30.0


async def serve_proxied(client: ClientBytes, exits: Exits) -> None:
    """Serve a client that speaks HTTP to a proxy, in absolute form, to its end."""
    async with _closing(HttpExit(exits)) as exit_:
        await relay_http(await _streams(client), exit_, first=client.rest)


async def serve_tunnelled(client: ClientBytes, exits: Exits, outgoing: Outgoing, connection: socket.socket) -> None:
    """Serve a client that speaks plain HTTP through a tunnel to its end; records the tunnel's connection."""
    origin = Origin("http", outgoing.target.host, outgoing.target.port)
    async with _closing(HttpExit(exits, outgoing, connection)) as exit_:
        await relay_http(await _streams(client), exit_, first=client.rest, origin=origin)


async def serve_opened(client: ClientBytes, exits: Exits, outgoing: Outgoing, hello: ClientHello) -> None:
    """Open the TLS of a client, whose ClientHello was read, and serve its HTTP to its end; records `outgoing`.

    HTTP/2 is spoken where the client and the server both do. Where requests are decided one by one there is no server
    before the first that is allowed, so the client chooses: see http2_relay.py on servers that speak HTTP/1.1 only.
    """
    origin = Origin("https", outgoing.target.host, outgoing.target.port)
    async with _closing(HttpExit(exits, outgoing)) as exit_:
        if outgoing.decision is None:
            exit_.protocol = exits.opening.protocol(origin.host, origin.port, hello.alpn)
        elif "h2" in hello.alpn:
            outgoing = await exit_.dial_early(outgoing)
        context = exits.opening.authority.context(origin.host, exit_.protocol)
        try:
            inside = await accept_tls(await _streams(client), client.rest, context, handshake_s=_HANDSHAKE_S)
        except OSError as error:
            what = getattr(error, "reason", None) or error.strerror or type(error).__name__
            outgoing.refuse(refusal(502, "tls_failed", f"the client's TLS handshake failed: {what}", outgoing.target))
            return
        if exit_.protocol == "h2":
            await relay_http2(inside, exit_, origin=origin)
        else:
            await relay_http(inside, exit_, origin=origin)


async def _streams(client: ClientBytes) -> Streams:
    return await asyncio.open_connection(sock=client.connection)


@asynccontextmanager
async def _closing(exit_: "HttpExit") -> AsyncIterator["HttpExit"]:
    """Record what is open at the end of the block, however it ends."""
    try:
        yield exit_
    except BaseException as error:
        exit_.cut("cancelled" if isinstance(error, asyncio.CancelledError) else "broken")
        raise
    finally:
        exit_.close()


class HttpExit:
    """Satisfies upstream.Upstream, for one client's connection.

    `begun` is what the client asked for as a tunnel: decided, unless requests to that host are decided one by one, and
    connected already where there is a `connection`.
    """

    def __init__(self, exits: Exits, begun: Outgoing | None = None, connection: socket.socket | None = None) -> None:
        self._exits = exits
        self._current = begun
        self._connection = connection
        self._server: Streams | None = None
        self.protocol = "http/1.1"
        self._is_shared = False  # the server's connection, by requests at once
        self._next: Outgoing | None = None
        # Requests that are being judged, several at once in HTTP/2.
        self._judging: dict[int, Outgoing] = {}
        # An approver is asked about a tunnel once; of requests that are decided one by one, about each.
        self._decided_whole = begun is not None and begun.decision is not None
        self._task = asyncio.current_task()  # that of the client, which judge() and dial() need not run in

    async def judge(self, request: ProxyRequest) -> Exchange:
        target = _target(request)
        current = self._current if self._is_to(target) else None
        one = self._exits.outgoing(target, self._task) if current is None else self._exits.request(target)
        self._judging[id(request)] = one
        judges_requests = one.policy.policy().judges_requests(target.host, target.port)
        try:
            await one.decide(asked=current is not None and self._decided_whole and not judges_requests)
            exchange, used = await self._exchange(request, one)
        except asyncio.CancelledError:
            if current is not None:  # the client withdrew it, and no connection was made for it: nothing to record
                del self._judging[id(request)]
            raise
        except Refused:
            raise
        except Exception as error:
            raise one.undecided(error) from error
        del self._judging[id(request)]
        one.credentials = used
        if current is None:
            self._next = one
        elif current.decision is None:  # the first that is allowed in a tunnel, which is dialled for it
            current.decision = one.decision
            current.carries(one, alone=True)
        return _Judged(exchange, partial(self._begin, one))

    def _begin(self, one: Outgoing) -> None:
        """Note that a request goes over the connection that is open by now. Raises Refused if it may no longer."""
        policy, current = one.policy.policy(), self._current
        if one.decision is not None and one.decision.policy_version != policy.version:  # it waited, for its turn say
            now = one.policy.judge(one.target, one.call)
            if now.verdict == "deny":
                raise denied(one.target, now.rule, now.reason)
        if current is None or current is one:
            return
        if not (self._is_shared or self._decided_whole or current.bytes_up):  # it was dialled for this request
            current.decision = one.decision
        current.carries(one, alone=not self._is_shared)
        current.credentials |= one.credentials

    async def _exchange(self, request: ProxyRequest, one: Outgoing) -> tuple[Exchange, frozenset[str]]:
        opening = self._exits.opening
        if not opening.has_credentials:
            return PlainExchange(request), frozenset()
        callers = dict.fromkeys(Caller(call.agent, call.tool) for call in (one.call, *one.others))
        exchange: CredentialExchange = await opening.credentials.exchange(request, *callers)
        return exchange, frozenset(exchange.used)

    def _is_to(self, target: Target) -> bool:
        current = self._current
        return current is not None and (current.target.host, current.target.port) == (target.host, target.port)

    async def dial_early(self, begun: Outgoing) -> Outgoing:
        """Connect before the client's first request, to see which protocol the server chooses.

        A failure is recorded; the first request tries again, with the connection that is returned then.
        """
        try:
            self._server = await self._secured(await begun.dial(), begun.target, self._exits.opening.trust().http2)
        except Refused as refused:
            begun.refuse(refused)
            self._record(begun)
            self._current = self._another(begun)
            return self._current
        self.protocol = _negotiated(self._server)
        return begun

    def _another(self, ended: Outgoing) -> Outgoing:
        """Return a connection for requests that were judged for one that has ended."""
        one = self._exits.outgoing(ended.target, self._task)
        one.decision, one.requests = ended.decision, ended.requests
        return one

    async def dial(self, origin: Origin) -> Streams:
        return await self._dial(origin, self._exits.opening.trust().http1)

    async def dial_http2(self, origin: Origin) -> tuple[Streams, bool]:
        try:
            server = await self._dial(origin, self._exits.opening.trust().http2)
        except Refused as refused:
            if self._current is not None:
                self._current.refuse(refused)
            raise
        self._is_shared = _negotiated(server) == "h2"
        if self._is_shared:
            return server, True
        self._exits.opening.chose_http1(origin.host, origin.port)
        return server, False

    async def _dial(self, origin: Origin, trust: ssl.SSLContext) -> Streams:
        if self._server is not None:
            server, self._server = self._server, None
            return server
        if self._connection is not None:
            connection, self._connection = self._connection, None
            return await asyncio.open_connection(sock=connection)
        one = self._next
        if one is None and self._current is not None and self._current.address:  # closed by the server meanwhile
            one = self._another(self._current)
        if one is not None:
            self._record(self._current)
            self._current, self._next = one, None
        current = self._current
        if current is None:
            raise RuntimeError("a request is judged before its server is dialled")
        connection = await current.dial()
        if origin.scheme == "http":
            return await asyncio.open_connection(sock=connection)
        return await self._secured(connection, current.target, trust)

    async def _secured(self, connection: socket.socket, target: Target, trust: ssl.SSLContext) -> Streams:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await asyncio.open_connection(sock=connection, ssl=trust, server_hostname=target.host)
        except ssl.SSLCertVerificationError as error:
            reason = f"the certificate of {target.shown} is not valid: {error.verify_message}"
            raise refusal(502, "bad_certificate", reason, target) from error
        except TimeoutError as error:
            raise refusal(504, "timed_out", f"{target.shown} did not finish the TLS handshake", target) from error
        except OSError as error:
            reason = f"the TLS handshake with {target.shown} failed: {getattr(error, 'reason', None) or error.strerror}"
            raise refusal(502, "tls_failed", reason, target) from error

    def refused(self, refused: Refused, request: ProxyRequest | None) -> None:
        one = self._judging.pop(id(request), None)
        if one is None:
            one, self._next = self._next, None
        current = self._current
        is_over = current is None or current.refused is refused or refused.body.get("error") == BYTE_LIMIT
        if one is None and current is not None and self.protocol == "h2" and not is_over:
            # The connection goes on, with other requests.
            one = self._exits.request(current.target if request is None else _target(request))
            one.decision = current.decision
        if one is not None:
            one.refuse(refused)
            self._record(one)
        elif current is not None:
            current.refuse(refused)

    def moved(self, up: int, down: int) -> None:
        one = self._current
        if one is None:
            return
        try:
            one.count_up(up)
            one.count_down(down)
        except Ended as ended:
            raise refusal(403, str(ended), "the limit of bytes of one connection is reached", one.target) from ended

    def cut(self, outcome: str) -> None:
        """Note how the open connection ended, unless that is known."""
        if self._current is not None:
            self._current.outcome = self._current.outcome or outcome

    def close(self) -> None:
        """Record what is open."""
        for one in (*self._judging.values(), self._next, self._current):
            self._record(one)
        self._judging.clear()
        self._next = self._current = None
        if self._connection is not None:
            self._connection.close()
        if self._server is not None:
            self._server[1].transport.abort()

    def _record(self, one: Outgoing | None) -> None:
        if one is not None:
            self._exits.ended(one)


class _Judged:
    """Satisfies upstream.Exchange. A relay asks for the headers as it sends them: which connection is known then.

    Between the decision and that, another request may have had its turn, and with it a connection of its own.
    """

    def __init__(self, exchange: Exchange, begin: Callable[[], None]) -> None:
        self.sent, self.answered = exchange.sent, exchange.answered
        self.received, self.flush = exchange.received, exchange.flush
        self._exchange = exchange
        self._begin = begin

    @property
    def headers(self) -> Headers:
        self._begin()
        return self._exchange.headers


def _target(request: ProxyRequest) -> Target:
    return Target(request.origin.host, request.origin.port, request.method, request.paths)


def _negotiated(server: Streams) -> str:
    return server[1].get_extra_info("ssl_object").selected_alpn_protocol() or "http/1.1"
