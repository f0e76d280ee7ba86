"""Sandboxes of the in-memory engine that were stopped for being idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.owner import Owner, owner_of
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.transition import TOO_LONG


@dataclass(frozen=True)
class StoppedSandbox:
    """What the next start of a stopped sandbox has to know; `processes` ended with its stops."""

    id: str
    spec: SandboxSpec
    created_s: float
    processes: int
    since_s: float

    def listed(self) -> ListedSandbox:
        spec = self.spec
        return ListedSandbox(
            self.id, spec.thread, spec.image, spec.runtime, self.created_s, "idle_stopped", self.since_s
        )


class StoppedSandboxes:
    """One per owner, longest stopped first. `on_removed` gets each removed sandbox and the reason."""

    def __init__(self, on_removed: Callable[[StoppedSandbox, str], None]) -> None:
        self.by_owner: dict[Owner, StoppedSandbox] = {}
        self._on_removed = on_removed

    def add(self, sandbox: StoppedSandbox) -> None:
        self.by_owner[owner_of(sandbox.spec)] = sandbox

    def remove(self, owners: list[Owner], reason: str) -> None:
        """Remove the sandboxes of owners, as far as they have stopped ones."""
        for owner in owners:
            if owner in self.by_owner:
                self._on_removed(self.by_owner.pop(owner), reason)

    def trim(self, latest_s: float, limit: int) -> int:
        """Remove those stopped until `latest_s`, and those over the limit; return their number.

        Over the limit, the tenant with the most loses its longest stopped one.
        """
        surplus = [owner for owner, stopped in self.by_owner.items() if stopped.since_s <= latest_s]
        kept = [owner for owner in self.by_owner if owner not in surplus]
        while len(kept) > limit:
            (most, _), *_ = Counter(tenant for tenant, _ in kept).most_common(1)
            surplus.append(next(owner for owner in kept if owner[0] == most))
            kept.remove(surplus[-1])
        self.remove(surplus, TOO_LONG)
        return len(surplus)
