"""Health and reflection, which take no credential, within bounds of their own: they must not take others' place.

A stream of theirs is refused past so many, in all and from one host, and ends by itself: a Watch after an hour, for
clients begin another at once, and a reflection after a minute, which no tool needs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha._async import ReflectionServicer

STREAMS = 128
STREAMS_OF_A_HOST = 32
_WATCH_S = 3600.0
_REFLECTION_S = 60.0
Context = grpc.aio.ServicerContext[Any, Any]


class AnonymousStreams:
    """The open streams of callers that are not known."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def one(self, peer: str) -> Iterator[bool]:
        """Count a stream from a peer, as grpc names it, until the block ends; False where there may be no more."""
        host = peer.rpartition(":")[0]  # a peer has as many ports as it likes
        if self._open.total() >= STREAMS or self._open[host] >= STREAMS_OF_A_HOST:
            yield False
            return
        self._open[host] += 1
        try:
            yield True
        finally:
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]


class BoundedHealth(HealthServicer):  # type: ignore[misc]  # it has no stubs
    """The health service."""

    def __init__(self, streams: AnonymousStreams, watch_s: float = _WATCH_S) -> None:
        super().__init__()
        self._streams = streams
        self._watch_s = watch_s

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        """Tell of a service's state, now and whenever it changes."""
        with self._streams.one(context.peer()) as held:
            if not held:
                await _refuse(context)
            try:
                async with asyncio.timeout(self._watch_s):
                    await super().Watch(request, context)
            except TimeoutError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "this watch was open for long: begin another")


class BoundedReflection(ReflectionServicer):  # type: ignore[misc]  # it has no stubs
    """The reflection service."""

    def __init__(self, names: tuple[str, ...], streams: AnonymousStreams) -> None:
        super().__init__(names)
        self._streams = streams

    async def ServerReflectionInfo(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        """Answer questions about the services."""
        with self._streams.one(context.peer()) as held:
            if not held:
                await _refuse(context)
            try:
                async with asyncio.timeout(_REFLECTION_S):
                    async for answer in super().ServerReflectionInfo(request_iterator, context):
                        yield answer
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "this reflection was open for long")


async def _refuse(context: Context) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of health and reflection are open")
