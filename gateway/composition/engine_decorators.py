"""What stands around the engine that makes sandboxes. Its order is here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from gateway.sandboxes.counted_creation import QuotasOf, counted_creation
from gateway.telemetry.observed_sandboxes import observed_engine
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from sandbox.engines.docker.image_pulls import ImagePulls, pulling_engine
from sandbox.engines.engine import Engine
from sandbox.engines.fair_creation import fair_creation
from sandbox.engines.pooled_engine import PooledEngine


def decorated_engine(
    engine: Engine,
    *,
    pooled: Callable[[Engine], PooledEngine] | None,
    pulls: ImagePulls | None,
    telemetry: Telemetry,
    quotas: Quotas,
    quotas_of: QuotasOf,
) -> tuple[Engine, PooledEngine | None]:
    """Return the engine with all that stands around it, and the pool of it, which `pooled` puts around an engine.

    From the innermost out: tenants take turns, but for the pool, which makes its sandboxes past that; what is ready is
    claimed; an image that is missing is pulled; all this is timed; and it is counted, before any of it costs anything.
    None for `pooled` and `pulls` goes without.
    """
    around = fair_creation(engine)
    pool = None
    if pooled is not None:
        around = pool = pooled(around)
    if pulls is not None:
        around = pulling_engine(around, pulls)
    return counted_creation(observed_engine(around, telemetry), quotas, quotas_of), pool
