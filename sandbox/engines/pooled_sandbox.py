"""Pooled sandboxes: made before a thread asks for one, and without an owner until they are claimed.

    pooled = await source.make_pooled(PoolKind.of(spec))    # it came up, said hello, and waits
    sandbox = await source.claim(pooled, spec)              # checked, and then the sandbox of spec's thread
    await source.discard(pooled)                            # or it goes, with all that it has

A pooled sandbox has its image, runtime and whole size from the start, for a container's ulimits and tmpfs do not
change: that is its kind. Tenant, thread, environment, secrets and policy it gets with the claim, or with each call, and
never before. It is claimed once, for one thread, and never comes back from there.

SandboxPool decides how many there are.
"""

from dataclasses import dataclass
from typing import Any, Protocol, Self

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Sandbox, SandboxLimits, SandboxSpec

# Ids of threads' own sandboxes begin with a digest.
_PREFIX = "pool-"


@dataclass(frozen=True)
class PoolKind:
    """What a pooled sandbox is made of: sandboxes of one kind can take each other's place."""

    image: str
    runtime: str
    limits: SandboxLimits

    @classmethod
    def of(cls, spec: SandboxSpec) -> Self:
        return cls(spec.image, spec.runtime, spec.limits)

    @property
    def spec(self) -> SandboxSpec:
        return SandboxSpec("", "", self.image, runtime=self.runtime, limits=self.limits)


def pooled_id(suffix: str) -> str:
    """Return the id of a pooled sandbox, and of the sandbox that it becomes."""
    return f"{_PREFIX}{suffix}"


def is_pooled(sandbox_id: str) -> bool:
    """Return whether a sandbox was made for the pool; it keeps its id when it is claimed."""
    return sandbox_id.startswith(_PREFIX)


@dataclass(frozen=True, eq=False)
class PooledSandbox:
    """A sandbox without an owner; `pids` counts the daemon's own processes and threads (pooled_checks.settled())."""

    sandbox: ChannelSandbox
    kind: PoolKind
    pids: int

    @property
    def id(self) -> str:
        return self.sandbox.id

    @property
    def alive(self) -> bool:
        """Whether it may still be claimed."""
        return self.sandbox.alive

    async def ping(self) -> bool:
        """Return whether it answers within a second; one that does not is not to be claimed."""
        return await self.sandbox.ping()


class PooledRefused(SandboxUnavailable):
    """A pooled sandbox was not fit to be claimed, and is gone; str() says why."""


class PoolSource(Protocol):
    """Makes pooled sandboxes. Raises SandboxError subclasses."""

    async def make_pooled(self, kind: PoolKind) -> Any:
        """Return a pooled sandbox that came up and was verified, as create() does; what fails leaves nothing."""

    async def claim(self, pooled: Any, spec: SandboxSpec) -> Sandbox | None:
        """Return a pooled sandbox as that of a thread without sandbox or files; None for any other thread.

        It is looked over before: that it answers, what holds it, that nothing runs in it and no file is there. With
        the least doubt it is removed and PooledRefused raised. None leaves the pooled sandbox as it was. A caller that
        gives up leaves neither the pooled sandbox nor anything of the thread.
        """

    async def discard(self, pooled: Any) -> None: ...
