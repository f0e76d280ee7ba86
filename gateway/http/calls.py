"""Calls of the services with the credential of an HTTP request, its address and its certificate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request

from gateway.client import Client
from gateway.errors import Cancelled, DeadlineExceeded, InvalidArgument, TooLarge
from gateway.serving.in_process import Channel, InProcessServices, Metadata, Origin
from gateway.support.heavy_work import HeavyWork, Work, at_once
from gateway.support.hosts import peer_at

BODY_LIMIT_BYTES = 4 * 1024 * 1024
"""Of a body that is read whole; the limit of a gRPC request."""
BODY_TIMEOUT_S = 20.0
_CODED_AT_ONCE_BYTES = 16 * 1024
_TRACE = ("traceparent", "tracestate")


class InProcessClient(Client):
    """A client of this process' own services. It belongs to one HTTP request or session, and needs no closing."""

    def __init__(self, channel: Channel, secret: str) -> None:
        # Nothing is tried again: the caller decides that, as over gRPC.
        super().__init__("in-process", secret, retry=None)
        self._own_channel = channel

    def _open_channel(self) -> Any:
        return self._own_channel


@dataclass(frozen=True)
class Calls:
    """Makes calls for HTTP requests."""

    services: InProcessServices
    heavy_work: HeavyWork

    def work_for(self, tenant: str, size_bytes: int) -> Work:
        """Return what codes a message of this size: a large one in a turn of its tenant, since that delays others."""
        return at_once if size_bytes <= _CODED_AT_ONCE_BYTES else self.heavy_work.of(tenant)

    def client(self, request: Request) -> InProcessClient:
        """Return a client with the caller's credential; a call raises Unauthenticated if it has none."""
        return InProcessClient(self.services.channel(origin_of(request)), bearer_of(request))


def origin_of(request: Request) -> Origin:
    """Return where a request comes from, written as grpc writes peers."""
    certificate = getattr(request.state, "certificate", None)
    peer = "unix:" if request.client is None else peer_at(*request.client)
    return Origin(peer, {} if certificate is None else {"x509_pem_cert": (certificate,)})


def metadata_of(request: Request) -> Metadata:
    """Return the metadata of calls for a request: the credential and the trace context, and nothing else."""
    headers = request.headers
    credential = [("authorization", value) for value in headers.getlist("authorization")[:1]]
    return (*credential, *((name, headers[name]) for name in _TRACE if name in headers))


def unquoted(part: str) -> str:
    """Return a part of a path, decoded; raises InvalidArgument."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"the path has {part[:128]!r}, which is not UTF-8 once it is decoded") from None


def bearer_of(request: Request) -> str:
    """Return the bearer secret of a request, "" if it has none or another scheme."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


async def body_of(request: Request, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """Return the whole body of a request; raises TooLarge, DeadlineExceeded, Cancelled."""
    parts: list[bytes] = []
    size_bytes = 0
    async for part in pieces_of(request):
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise TooLarge(f"the body of the request has more than {limit_bytes:,} bytes", limit_bytes=str(limit_bytes))
        parts.append(part)
    return b"".join(parts)


async def pieces_of(request: Request, may_pause: Callable[[], bool] = lambda: False) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives; raises DeadlineExceeded if it stalls, Cancelled if the peer leaves.

    While it `may_pause`, the next piece may take any time.
    """
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(None if may_pause() else BODY_TIMEOUT_S):
                part = await anext(stream, None)
        except TimeoutError:
            raise DeadlineExceeded("the body of the request did not arrive in time") from None
        except ClientDisconnect:
            raise Cancelled("the client closed the connection") from None
        if part is None:
            return
        if part:
            yield part
