"""Health and reflection, which take no credential, within bounds of their own: they must not take others' place.

A stream is refused past so many, in all and from one address, and ends by itself: a Watch after an hour, for clients
begin another at once, and a reflection after a minute, which no tool needs. A Watch whose peer does not take what it is
sent ends sooner. gateway/serving/first_message_timeout.py bounds the calls that answer once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from gateway.errors import Overloaded
from gateway.serving.anonymous_connections import AnonymousConnections
from gateway.serving.incoming import SEND_S, Sending
from gateway.support.version import airlock_version

STREAMS = 128
STREAMS_OF_A_HOST = 32
# Each may be reading a message of 4 MiB, which nothing else bounds.
REFLECTIONS = 16
REFLECTIONS_OF_A_HOST = 4
_WATCH_S = 3600.0
_REFLECTION_S = 60.0
VERSION_METADATA = "airlock-version"
Context = grpc.aio.ServicerContext[Any, Any]


class AnonymousStreams:
    """The open streams of callers that are not known."""

    def __init__(self, of_host: int = STREAMS_OF_A_HOST, in_all: int = STREAMS) -> None:
        self._open = AnonymousConnections(of_connection=of_host, of_host=of_host, in_all=in_all)

    @contextmanager
    def one(self, peer: str) -> Iterator[bool]:
        """Count a stream from a peer, as grpc names it, until the block ends; False where there may be no more."""
        try:
            end = self._open.begin(peer)
        except Overloaded:
            yield False
            return
        try:
            yield True
        finally:
            end()


class BoundedHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no stubs
    """The health service. Nothing that changes a status waits for a watcher."""

    def __init__(self, streams: AnonymousStreams, watch_s: float = _WATCH_S, send_s: float = SEND_S) -> None:
        super().__init__()
        self._streams = streams
        self._watch_s = watch_s
        self._sending = Sending(send_s)
        self._statuses: dict[str, Any] = {"": health_pb2.HealthCheckResponse.SERVING}
        self._changed = asyncio.Event()
        self._draining = False

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Any:  # noqa: N802
        """Return a service's state, and in the metadata which release answers."""
        context.set_trailing_metadata(((VERSION_METADATA, airlock_version()),))
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        """Send a service's state, now and whenever it changes."""
        with self._streams.one(context.peer()) as admitted:
            if not admitted:
                await _refuse(context)
            try:
                await self._watch(request.service, context)
            except TimeoutError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "this watch was open for long: begin another")

    async def _watch(self, service: str, context: Context) -> None:
        last: Any = None
        until = asyncio.get_running_loop().time() + self._watch_s
        while True:
            changed = self._changed
            status = self._statuses.get(service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != last:
                last = status
                with self._sending.one():
                    await context.write(health_pb2.HealthCheckResponse(status=status))
            else:
                # Not around the write: while a message is on its way grpc takes no status.
                async with asyncio.timeout_at(until):
                    await changed.wait()

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a service, until the gateway drains."""
        if not self._draining:
            self._statuses[service] = status
            self._wake()

    async def enter_graceful_shutdown(self) -> None:
        """Have no service serve from now on."""
        self._draining = True
        self._statuses = dict.fromkeys(self._statuses, health_pb2.HealthCheckResponse.NOT_SERVING)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class BoundedReflection(ReflectionServicer):  # type: ignore[misc]  # it has no stubs
    """The reflection service."""

    def __init__(self, names: tuple[str, ...], streams: AnonymousStreams | None = None) -> None:
        super().__init__(names)
        self._streams = streams or AnonymousStreams(REFLECTIONS_OF_A_HOST, REFLECTIONS)

    async def ServerReflectionInfo(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        """Answer questions about the services."""
        with self._streams.one(context.peer()) as admitted:
            if not admitted:
                await _refuse(context)
            try:
                async with asyncio.timeout(_REFLECTION_S):
                    async for answer in super().ServerReflectionInfo(request_iterator, context):
                        yield answer
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "this reflection was open for long")


async def _refuse(context: Context) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of health and reflection are open")
