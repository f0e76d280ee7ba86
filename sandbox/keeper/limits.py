"""The limits that a keeper enforces; those on numbers hold for all gateways of the engine together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeeperLimits:
    """An idle sandbox is stopped after `idle_timeout_s`, and removed when stopped for `stopped_timeout_s`.

    A `stopped_timeout_s` of 0 removes idle sandboxes at once. `max_live` and `max_live_per_tenant` limit the living
    sandboxes, `max_stopped` the stopped ones.
    """

    idle_timeout_s: float
    max_live: int
    max_live_per_tenant: int
    stopped_timeout_s: float
    max_stopped: int

    @property
    def keeps_stopped(self) -> bool:
        """Whether idle sandboxes are stopped rather than removed."""
        return self.stopped_timeout_s > 0
