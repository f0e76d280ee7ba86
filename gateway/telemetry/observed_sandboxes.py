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
from sandbox.engines.engine import Creator
from sandbox.keeper.keeper import Keeper, Leases
from sandbox.sandbox import Sandbox, SandboxSpec

_Leased = TypeVar("_Leased", bound=Sandbox | None)


def observe_states(keeper: Keeper, telemetry: Telemetry) -> None:
    """Report how many sandboxes this process has, and in which states."""
    telemetry.instruments.read("airlock.sandbox.live", lambda: keeper.live)
    telemetry.instruments.read(
        "airlock.sandbox.states",
        lambda: [(number, {a.SANDBOX_STATE: state}) for state, number in keeper.states().items()],
    )


class ObservedCreation:
    """Satisfies Creator; each creation has a span, and its time is recorded."""

    def __init__(self, inner: Creator, telemetry: Telemetry) -> None:
        self.inner = inner
        self._telemetry = telemetry

    async def create(self, spec: SandboxSpec) -> Sandbox:
        telemetry = self._telemetry
        started_s = telemetry.clock()
        kind: str | None = None
        try:
            with telemetry.within("create_sandbox", {}) as span:
                sandbox = await self.inner.create(spec)
                span.set_attribute(a.SANDBOX_ID, sandbox.id)
                return sandbox
        except BaseException as error:
            kind = type(error).__name__
            raise
        finally:
            labels = {a.ERROR_TYPE: kind}
            telemetry.instruments.add("airlock.sandbox.start.duration", telemetry.clock() - started_s, labels)


class ObservedLeases:
    """Satisfies Leases; each lease has a span, and the time to acquire it is recorded."""

    def __init__(self, inner: Leases, telemetry: Telemetry) -> None:
        self._inner = inner
        self._telemetry = telemetry

    def acquire(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._observed(self._inner.acquire(spec))

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        return self._observed(self._inner.acquire_existing(spec))

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
