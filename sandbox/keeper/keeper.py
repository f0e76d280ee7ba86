"""What the keeper offers: leases, for calls; and what is known of the leased sandboxes, for operators and metrics.

SandboxKeeper implements both. Concerns of leasing, such as ImageGate, are Leases around Leases.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from sandbox.errors import ImageRefused
from sandbox.sandbox import ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import State


class Leases(Protocol):
    """Leases each thread its one sandbox, for as long as a call takes. Raises SandboxError subclasses."""

    def acquire(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Lease the sandbox of the spec's tenant and thread; raises SandboxError when there can be none.

        Calls of one thread share it. A sandbox made for another spec is replaced once no call uses it.
        """

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        """Lease the sandbox of the spec's tenant and thread; None where none lives, for nothing is made.

        A sandbox made for another spec is leased as it is, and stays.
        """


class Keeper(Protocol):
    """What is known of the leased sandboxes, and when their idle time ends."""

    @property
    def live(self) -> int:
        """How many sandboxes this process has or makes."""

    def states(self) -> Mapping[State, int]:
        """Return how many sandboxes this process is making, how many it has, and how many of all are stopped."""

    def at_hand(self, tenant: str, thread: str) -> Sandbox | None:
        """Return a thread's sandbox if this process has it, without a lease: it does not reset the idle timer.

        The sandbox may be removed meanwhile, which raises DaemonLost in the caller.
        """

    def users(self, tenant: str, thread: str) -> int:
        """Return how many calls of this process are under way in a thread's sandbox."""

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox as Engine.stop() does; where none is to stay stopped it is removed."""

    def ends_s(self, one: ListedSandbox, spec: SandboxSpec) -> float | None:
        """Return when an idle sandbox is stopped, or a stopped one removed, unless a call asks for it.

        In seconds since 1970, and a moment early, for idle sandboxes are swept at intervals. None for never.
        """


@dataclass(frozen=True)
class ImageGate:
    """Satisfies Leases; acquire() raises ImageRefused for a spec whose image the operator does not allow.

    The policy notes why when it makes the spec. A sandbox that was made while its image was allowed is not leased
    either. Looking at one that lives stays possible.
    """

    inner: Leases

    def acquire(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        if spec.refused:
            raise ImageRefused(spec.refused)
        return self.inner.acquire(spec)

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        return self.inner.acquire_existing(spec)
