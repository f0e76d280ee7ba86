"""Health and reflection, which need no credential, with limits of their own so that they take no known caller's place.

The number of streams is limited in all and by address, and so is their time: a Watch ends after an hour, after which
clients start another, and a reflection after a minute. A Watch ends sooner if its peer does not read.
gateway/serving/first_message_timeout.py limits the calls that answer once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from gateway.errors import Overloaded
from gateway.serving.anonymous_connections import AnonymousConnections
from gateway.serving.incoming import SEND_S, SendTimeouts
from gateway.support.version import airlock_version

STREAMS = 128
STREAMS_OF_A_HOST = 32
# Each may be reading a message of up to 4 MiB, which nothing else limits.
REFLECTIONS = 16
REFLECTIONS_OF_A_HOST = 4
_WATCH_S = 3600.0
_REFLECTION_S = 60.0
VERSION_METADATA = "airlock-version"
Context = grpc.aio.ServicerContext[Any, Any]


def _limited(of_host: int, in_all: int) -> AnonymousConnections:
    return AnonymousConnections(of_connection=of_host, of_host=of_host, in_all=in_all)


class BoundedHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no stubs
    """The health service. A status change never waits for a watcher."""

    def __init__(self, watch_s: float = _WATCH_S, send_s: float = SEND_S) -> None:
        super().__init__()
        self._streams = _limited(STREAMS_OF_A_HOST, STREAMS)
        self._watch_s = watch_s
        self._sending = SendTimeouts(send_s)
        self._statuses: dict[str, Any] = {"": health_pb2.HealthCheckResponse.SERVING}
        self._changed = asyncio.Event()
        self._draining = False

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Any:  # noqa: N802
        """Return a service's status, with the gateway's version in the trailing metadata."""
        context.set_trailing_metadata(((VERSION_METADATA, airlock_version()),))
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        """Send a service's status now and on each change."""
        try:
            with self._streams.one(context.peer()):
                await self._watch(request.service, context)
        except Overloaded as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the watch reached its time limit: start another")

    async def _watch(self, service: str, context: Context) -> None:
        last: Any = None
        until = asyncio.get_running_loop().time() + self._watch_s
        while True:
            changed = self._changed
            status = self._statuses.get(service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != last:
                last = status
                with self._sending.small_message():
                    await context.write(health_pb2.HealthCheckResponse(status=status))
            else:
                # Not around the write: while grpc sends a message it accepts no status.
                async with asyncio.timeout_at(until):
                    await changed.wait()

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a service, unless the gateway drains."""
        if not self._draining:
            self._statuses[service] = status
            self._wake()

    async def enter_graceful_shutdown(self) -> None:
        self._draining = True
        self._statuses = dict.fromkeys(self._statuses, health_pb2.HealthCheckResponse.NOT_SERVING)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class BoundedReflection(ReflectionServicer):  # type: ignore[misc]  # it has no stubs
    """The reflection service."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self._streams = _limited(REFLECTIONS_OF_A_HOST, REFLECTIONS)

    async def ServerReflectionInfo(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        try:
            with self._streams.one(context.peer()):
                async with asyncio.timeout(_REFLECTION_S):
                    async for answer in super().ServerReflectionInfo(request_iterator, context):
                        yield answer
        except Overloaded as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the reflection reached its time limit")
