"""Leases: what calls ask for a thread's sandbox. SandboxKeeper implements them.

Concerns of leasing, such as ImageGate, are Leases around Leases.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from sandbox.errors import ImageRefused
from sandbox.sandbox import Sandbox, SandboxSpec


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
