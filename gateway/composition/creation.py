"""The decorators around the creation of sandboxes. Their order is here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.sandboxes.counted_creation import CountedCreation, QuotasOf
from gateway.telemetry.observed_sandboxes import ObservedCreation
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from sandbox.engines.docker.image_pulls import ImagePulls, PullingCreation
from sandbox.engines.engine import Creator, Engine
from sandbox.engines.fair_creation import FairCreation
from sandbox.engines.sandbox_pool import SandboxPool


@dataclass(frozen=True)
class Creation:
    """The outermost creator, and the pool in it."""

    creator: Creator
    pool: SandboxPool | None


def decorated_creation(
    engine: Engine,
    *,
    pooled: Callable[[Creator], SandboxPool] | None,
    pulls: ImagePulls | None,
    telemetry: Telemetry,
    quotas: Quotas,
    quotas_of: QuotasOf,
) -> Creation:
    """Return the creation of an engine's sandboxes with all decorators. None for `pooled` or `pulls` omits it.

    From the innermost out: tenants take turns, which the pool does not wait for when it makes its own sandboxes; a
    ready sandbox is claimed; a missing image is pulled; all this is timed; and it is counted, before it costs anything.
    """
    creator: Creator = FairCreation(engine)
    pool = None
    if pooled is not None:
        creator = pool = pooled(creator)
    if pulls is not None:
        creator = PullingCreation(creator, pulls)
    if telemetry.on:
        creator = ObservedCreation(creator, telemetry)
    return Creation(CountedCreation(creator, engine, quotas, quotas_of), pool)
