"""Health: a service is SERVING while everything that it needs answers, otherwise NOT_SERVING.

All services, and the server as a whole (""), need the database; those that work in sandboxes also need the engine. Each
need is checked periodically, one check at a time: a check that hangs is never started a second time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from agent.cancellation import ended
from gateway.errors import Overloaded
from gateway.serving.incoming import SEND_S, SendTimeouts
from gateway.serving.limits import AnonymousConnections
from gateway.storage.database import Database, sign_of_life
from gateway.support.version import airlock_version

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Check = Callable[[], Awaitable[object]]
"""Raises any exception if there is no sign of life."""
log = structlog.get_logger(__name__)
_IN_SANDBOXES = frozenset({"ToolService", "WorkspaceService", "ProcessService", "SandboxService"})
_DATABASE_EVERY_S = 1.0
_ENGINE_EVERY_S = 5.0
# A busy machine answers late, and sending callers elsewhere does not help it.
_LIMIT_S = 3.0
STREAMS = 128
STREAMS_OF_A_HOST = 32
# Each may be reading a message of up to 4 MiB, which nothing else limits.
REFLECTIONS = 16
REFLECTIONS_OF_A_HOST = 4
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Need:
    """What services need: checked every `every_s` seconds, missing if the check fails or takes more than `limit_s`."""

    name: str
    check: Check
    services: frozenset[str]
    every_s: float
    limit_s: float = _LIMIT_S


def needs_of(services: Sequence[str], database: Database, engine: Check) -> tuple[Need, ...]:
    """Return what these services need, by their full names; `engine` checks the engine."""
    in_sandboxes = frozenset(name for name in services if name.rpartition(".")[2] in _IN_SANDBOXES)
    return (
        Need("database", partial(sign_of_life, database), frozenset(("", *services)), _DATABASE_EVERY_S),
        Need("engine", engine, in_sandboxes, _ENGINE_EVERY_S),
    )


class BoundedHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no stubs
    """The health service, for anyone. A status change never waits for a watcher.

    The number of streams is limited, so that they take no known caller's place, and so is their time: a Watch ends
    after an hour, after which clients start another, and sooner if its peer does not read.
    """

    def __init__(self, watch_s: float = 3600.0, send_s: float = SEND_S) -> None:
        super().__init__()
        self._streams = AnonymousConnections(of_connection=STREAMS_OF_A_HOST, of_host=STREAMS_OF_A_HOST, in_all=STREAMS)
        self._watch_s = watch_s
        self._sending = SendTimeouts(send_s)
        self._statuses: dict[str, Any] = {"": SERVING}
        self._changed = asyncio.Event()
        self._draining = False

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Any:  # noqa: N802
        """Return a service's status, with the gateway's version in the trailing metadata."""
        context.set_trailing_metadata((("airlock-version", airlock_version()),))
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

    @property
    def status(self) -> Any:
        """The status of the gateway as a whole."""
        return self._statuses[""]

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a service, unless the gateway drains."""
        if not self._draining:
            self._statuses[service] = status
            self._wake()

    async def enter_graceful_shutdown(self) -> None:
        self._draining = True
        self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Health:
    """Sets the status of the services in `needs`."""

    def __init__(self, service: BoundedHealth, needs: Sequence[Need]) -> None:
        self._service = service
        self._needs = needs
        self._missing: set[str] = set()
        self._published: dict[str, bool] = {}
        self._checks: dict[str, asyncio.Future[object]] = {}
        self._publishing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Check everything once, then periodically until the block ends."""
        await asyncio.gather(*map(self._check, self._needs))
        await self._publish()
        tasks = [asyncio.create_task(self._follow(need), name=f"health of the {need.name}") for need in self._needs]
        try:
            yield
        finally:
            await ended(*tasks, *self._checks.values())

    async def _follow(self, need: Need) -> None:
        while True:
            await asyncio.sleep(need.every_s)
            await self._check(need)
            await self._publish()

    async def _check(self, need: Need) -> None:
        problem = await self._problem(need)
        if problem is not None and need.name not in self._missing:
            log.warning("services do not serve: what they need does not answer", need=need.name, error=problem)
            self._missing.add(need.name)
        elif problem is None and need.name in self._missing:
            log.info("what services need answers again", need=need.name)
            self._missing.remove(need.name)

    async def _problem(self, need: Need) -> str | None:
        """Return why it does not answer; None if it does."""
        check = self._checks.get(need.name)
        if check is None:
            check = self._checks[need.name] = asyncio.ensure_future(need.check())
        await asyncio.wait({check}, timeout=need.limit_s)
        if not check.done():
            return f"no answer for {need.limit_s:g} s"
        del self._checks[need.name]
        error = check.exception()  # any failure means that there is no sign of life
        return None if error is None else f"{type(error).__name__}: {error}"

    async def _publish(self) -> None:
        async with self._publishing:  # otherwise a delayed update could overwrite a newer one
            for service in sorted(frozenset[str]().union(*(need.services for need in self._needs))):
                serves = not any(service in need.services and need.name in self._missing for need in self._needs)
                if self._published.get(service) != serves:
                    await self._service.set(service, SERVING if serves else NOT_SERVING)
                    self._published[service] = serves


class BoundedReflection(ReflectionServicer):  # type: ignore[misc]  # it has no stubs
    """The reflection service, for anyone: few streams at once, each for a minute at most."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self._streams = AnonymousConnections(
            of_connection=REFLECTIONS_OF_A_HOST, of_host=REFLECTIONS_OF_A_HOST, in_all=REFLECTIONS
        )

    async def ServerReflectionInfo(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        try:
            with self._streams.one(context.peer()):
                async with asyncio.timeout(60.0):
                    async for answer in super().ServerReflectionInfo(request_iterator, context):
                        yield answer
        except Overloaded as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the reflection reached its time limit")
