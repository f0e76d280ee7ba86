"""A keeper as tests have it, of limits that most of them do not meet."""

from __future__ import annotations

import time
from collections.abc import Callable

from sandbox.engines.engine import Creator, Engine
from sandbox.keeper.places import KeeperLimits
from sandbox.keeper.sandbox_keeper import SandboxKeeper


def make_keeper(
    engine: Engine,
    *,
    creator: Creator | None = None,
    idle_timeout_s: float = 300.0,
    max_live: int = 64,
    max_live_per_tenant: int = 16,
    stopped_timeout_s: float = 0.0,
    max_stopped: int = 256,
    clock: Callable[[], float] = time.monotonic,
) -> SandboxKeeper:
    """Return a keeper of an engine; what is idle is removed, unless `stopped_timeout_s` has it stopped."""
    return SandboxKeeper(
        engine,
        engine if creator is None else creator,
        KeeperLimits(
            idle_timeout_s=idle_timeout_s,
            max_live=max_live,
            max_live_per_tenant=max_live_per_tenant,
            stopped_timeout_s=stopped_timeout_s,
            max_stopped=max_stopped,
        ),
        clock=clock,
    )
