"""Health: each service says SERVING while all that it needs answers, and NOT_SERVING while one of these does not.

Everything needs the database, and so the whole (""), too. What works in sandboxes needs their engine as well. Each is
asked again and again, once at a time: one that hangs is waited for by a single question, however long it hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog
from grpc_health.v1 import health_pb2

from gateway.storage.database import Database
from gateway.storage.settings_store import sign_of_life

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Ask = Callable[[], Awaitable[object]]
"""Asks for a sign of life; raises, whatever it likes, where there is none."""

log = structlog.get_logger(__name__)
_IN_SANDBOXES = frozenset({"ToolService", "WorkspaceService", "ProcessService", "SandboxService"})
_DATABASE_LOOK_S = 1.0
_ENGINE_LOOK_S = 5.0
# A machine that is busy answers late, and callers who are sent elsewhere make it no less busy.
_LIMIT_S = 3.0


class Told(Protocol):
    """The health service, which ignores what it is told once the gateway drains."""

    async def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        """Set the status of a service."""


@dataclass(frozen=True)
class Need:
    """What services need: asked each `look_s` seconds, and gone when it says so or nothing for `limit_s` seconds."""

    name: str
    ask: Ask
    services: frozenset[str]
    look_s: float
    limit_s: float = _LIMIT_S


def needs_of(services: Sequence[str], database: Database, engine: Ask) -> tuple[Need, ...]:
    """Return what these services need, by their full names; `engine` asks for the engine's sign of life."""
    in_sandboxes = frozenset(name for name in services if name.rpartition(".")[2] in _IN_SANDBOXES)
    return (
        Need("database", partial(sign_of_life, database), frozenset(("", *services)), _DATABASE_LOOK_S),
        Need("engine", engine, in_sandboxes, _ENGINE_LOOK_S),
    )


class Health:
    """The status of the services that are needed by the names in `needs`; others it leaves alone."""

    def __init__(self, told: Told, needs: Sequence[Need]) -> None:
        self._told = told
        self._needs = needs
        self._gone: set[str] = set()
        self._said: dict[str, bool] = {}
        self._under_way: dict[str, asyncio.Task[str | None]] = {}
        self._saying = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Have looked at everything once, and look again and again until the block ends."""
        await asyncio.gather(*map(self._look, self._needs))
        await self._say()
        tasks = [asyncio.create_task(self._follow(need), name=f"health of the {need.name}") for need in self._needs]
        try:
            yield
        finally:
            for task in (*tasks, *self._under_way.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._under_way.values(), return_exceptions=True)

    async def _follow(self, need: Need) -> None:
        while True:
            await asyncio.sleep(need.look_s)
            await self._look(need)
            await self._say()

    async def _look(self, need: Need) -> None:
        why = await self._why_gone(need)
        if why is not None and need.name not in self._gone:
            log.warning("services do not serve: what they need is gone", need=need.name, error=why)
        elif why is None and need.name in self._gone:
            log.info("what services need is back", need=need.name)
        (self._gone.discard if why is None else self._gone.add)(need.name)

    async def _why_gone(self, need: Need) -> str | None:
        """Return why it does not answer; None when it does."""
        asked = self._under_way.get(need.name)
        if asked is None:
            asked = self._under_way[need.name] = asyncio.create_task(_asked(need.ask))
        await asyncio.wait({asked}, timeout=need.limit_s)
        if not asked.done():
            return f"no answer for {need.limit_s:g} s"
        del self._under_way[need.name]
        return asked.result()

    async def _say(self) -> None:
        async with self._saying:  # or one that waits for a watcher would say what was true before
            for service in sorted(frozenset[str]().union(*(need.services for need in self._needs))):
                serves = not any(service in need.services and need.name in self._gone for need in self._needs)
                if self._said.get(service) != serves:
                    await self._told.set(service, SERVING if serves else NOT_SERVING)
                    self._said[service] = serves


async def _asked(ask: Ask) -> str | None:
    try:
        await ask()
    except Exception as error:  # whatever is wrong, there is no sign of life
        return f"{type(error).__name__}: {error}"
    return None
