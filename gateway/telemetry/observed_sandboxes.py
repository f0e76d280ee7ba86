"""Sandboxes, seen: a span and a time for each that is made, and for each operation that goes over a sandbox's socket.

The daemon's contract has no room for a trace, and tool code has no use for one: what is inside is seen from the
gateway, as the time between asking and the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from opentelemetry.trace import SpanKind

from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import Telemetry
from sandbox.engine import Engine, Sandbox, SandboxSpec
from sandbox.sandbox_keeper import SandboxKeeper


def observed_engine(engine: Engine, telemetry: Telemetry) -> Engine:
    """Return an engine whose create() is told of; the engine itself where there is nobody to tell."""
    return cast(Engine, _ObservedEngine(engine, telemetry)) if telemetry.on else engine


def observed_keeper(keeper: SandboxKeeper, telemetry: Telemetry) -> SandboxKeeper:
    """Return a keeper whose loans are told of; the keeper itself where there is nobody to tell."""
    if not telemetry.on:
        return keeper
    telemetry.instruments.read("airlock.sandbox.live", lambda: keeper.live)
    telemetry.instruments.read(
        "airlock.sandbox.states",
        lambda: [(number, {a.SANDBOX_STATE: state}) for state, number in keeper.states().items()],
    )
    return cast(SandboxKeeper, _ObservedKeeper(keeper, telemetry))


class _ObservedEngine:
    def __init__(self, engine: Engine, telemetry: Telemetry) -> None:
        self._engine = engine
        self._telemetry = telemetry

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the engine."""
        return getattr(self._engine, name)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        telemetry = self._telemetry
        started_s = telemetry.clock()
        kind: str | None = None
        try:
            with telemetry.within("create_sandbox", {}) as span:
                sandbox = await self._engine.create(spec)
                span.set_attribute(a.SANDBOX_ID, sandbox.id)
                return sandbox
        except BaseException as error:
            kind = type(error).__name__
            raise
        finally:
            labels = {a.ERROR_TYPE: kind}
            telemetry.instruments.add("airlock.sandbox.start.duration", telemetry.clock() - started_s, labels)


class _ObservedKeeper:
    def __init__(self, keeper: SandboxKeeper, telemetry: Telemetry) -> None:
        self._keeper = keeper
        self._telemetry = telemetry

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the keeper."""
        return getattr(self._keeper, name)

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with self._lent(self._keeper.acquire(spec)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def acquire_existing(self, spec: SandboxSpec) -> AsyncIterator[Sandbox | None]:
        async with self._lent(self._keeper.acquire_existing(spec)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def _lent(self, loan: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        telemetry = self._telemetry
        started_s = telemetry.clock()
        with telemetry.within("use_sandbox", {}, SpanKind.CLIENT) as span:
            async with loan as sandbox:
                acquire_s = telemetry.clock() - started_s
                telemetry.instruments.add("airlock.sandbox.acquire.duration", acquire_s)
                if sandbox is not None and span.is_recording():
                    span.set_attributes({a.SANDBOX_ID: sandbox.id, a.ACQUIRE_S: round(acquire_s, 6)})
                yield sandbox
