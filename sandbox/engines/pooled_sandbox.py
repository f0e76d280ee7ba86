"""Spares: sandboxes that are made before anybody asks for one, and belong to nobody until they are claimed.

    spare = await spares.make_spare(SpareKind.of(spec))     # it came up, said hello, and waits
    sandbox = await spares.claim(spare, spec)               # looked over, and then the sandbox of spec's thread
    await spares.discard(spare)                             # or it goes, with all that it has

A spare has its image, runtime and whole size from the start, for a container's ulimits and tmpfs do not change: that is
its kind. Tenant, thread, environment, secrets and policy it gets with the claim, or with each call, and never before.
It is claimed once, for one thread, and never comes back from there.

PooledEngine decides how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Sandbox, SandboxLimits, SandboxSpec

# No other id begins so: those of threads begin with a digest.
_PREFIX = "pool-"


@dataclass(frozen=True)
class SpareKind:
    """What a spare is made of: spares of one kind can take each other's place."""

    image: str
    runtime: str
    limits: SandboxLimits

    @classmethod
    def of(cls, spec: SandboxSpec) -> Self:
        """Return the kind that a spec asks for."""
        return cls(spec.image, spec.runtime, spec.limits)

    @property
    def spec(self) -> SandboxSpec:
        """A spec of nobody's that asks for this kind."""
        return SandboxSpec("", "", self.image, runtime=self.runtime, limits=self.limits)


def spare_id(suffix: str) -> str:
    """Return the id of a spare, and of the sandbox that it becomes."""
    return f"{_PREFIX}{suffix}"


def is_spare(sandbox_id: str) -> bool:
    """Return whether a sandbox was made before anybody asked for it; it keeps its id when it is somebody's."""
    return sandbox_id.startswith(_PREFIX)


class Spare(Protocol):
    """A sandbox that nobody has."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> SpareKind: ...
    @property
    def alive(self) -> bool:
        """Whether nothing is known against it."""
        ...

    async def ping(self) -> bool:
        """Return whether it answers within a second; one that does not is not to be claimed."""
        ...


class SpareRefused(SandboxUnavailable):
    """A spare was not fit to be claimed, and is gone; str() says why."""


class Spares(Protocol):
    """An engine that can make sandboxes before anybody asks. Raises SandboxError subclasses."""

    async def make_spare(self, kind: SpareKind) -> Any:
        """Return a spare that came up and was verified, as create() does of a sandbox; what fails leaves nothing."""
        ...

    async def claim(self, spare: Any, spec: SandboxSpec) -> Sandbox | None:
        """Return a spare as the sandbox of a thread that has no sandbox and no files; None for any other thread.

        It is looked over before: that it answers, what holds it, that nothing runs in it and no file is there. With
        the least doubt it is removed and SpareRefused raised. None leaves the spare as it was. A caller that gives up
        leaves neither the spare nor anything of the thread.
        """
        ...

    async def discard(self, spare: Any) -> None:
        """Remove a spare and all that it has."""
        ...
