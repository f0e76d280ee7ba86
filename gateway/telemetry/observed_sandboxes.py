"""Observes sandboxes: a span and a duration for each creation and for each operation over a sandbox's socket.

No trace continues inside a sandbox: the gateway measures the time between request and answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from opentelemetry.trace import SpanKind

from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import Telemetry
from sandbox.engines.engine import Engine
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.keeper.keeper import Keeper
from sandbox.keeper.keeper_decorator import KeeperDecorator
from sandbox.sandbox import Sandbox, SandboxSpec

_Leased = TypeVar("_Leased", bound=Sandbox | None)


def observed_engine(engine: Engine, telemetry: Telemetry) -> Engine:
    """Return an engine whose create() is observed; the engine itself if telemetry is off."""
    return _ObservedEngine(engine, telemetry) if telemetry.on else engine


def observed_keeper(keeper: Keeper, telemetry: Telemetry) -> Keeper:
    """Return a keeper whose leases are observed; the keeper itself if telemetry is off."""
    if not telemetry.on:
        return keeper
    telemetry.instruments.read("airlock.sandbox.live", lambda: keeper.live)
    telemetry.instruments.read(
        "airlock.sandbox.states",
        lambda: [(number, {a.SANDBOX_STATE: state}) for state, number in keeper.states().items()],
    )
    return _ObservedKeeper(keeper, telemetry)


class _ObservedEngine(EngineDecorator):
    def __init__(self, engine: Engine, telemetry: Telemetry) -> None:
        super().__init__(engine)
        self._telemetry = telemetry

    async def create(self, spec: SandboxSpec) -> Sandbox:
        telemetry = self._telemetry
        started_s = telemetry.clock()
        kind: str | None = None
        try:
            with telemetry.within("create_sandbox", {}) as span:
                sandbox = await self.engine.create(spec)
                span.set_attribute(a.SANDBOX_ID, sandbox.id)
                return sandbox
        except BaseException as error:
            kind = type(error).__name__
            raise
        finally:
            labels = {a.ERROR_TYPE: kind}
            telemetry.instruments.add("airlock.sandbox.start.duration", telemetry.clock() - started_s, labels)


class _ObservedKeeper(KeeperDecorator):
    def __init__(self, keeper: Keeper, telemetry: Telemetry) -> None:
        super().__init__(keeper)
        self._telemetry = telemetry

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with self._observed(self.keeper.acquire(spec)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def acquire_existing(self, spec: SandboxSpec) -> AsyncIterator[Sandbox | None]:
        async with self._observed(self.keeper.acquire_existing(spec)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def _observed(self, lease: AbstractAsyncContextManager[_Leased]) -> AsyncIterator[_Leased]:
        telemetry = self._telemetry
        started_s = telemetry.clock()
        with telemetry.within("use_sandbox", {}, SpanKind.CLIENT) as span:
            async with lease as sandbox:
                acquire_s = telemetry.clock() - started_s
                telemetry.instruments.add("airlock.sandbox.acquire.duration", acquire_s)
                if sandbox is not None and span.is_recording():
                    span.set_attributes({a.SANDBOX_ID: sandbox.id, a.ACQUIRE_S: round(acquire_s, 6)})
                yield sandbox
