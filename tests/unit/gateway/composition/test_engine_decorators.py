"""The order of the engines around an engine: what may be refused is asked first, and the pool is past the turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gateway.composition.engine_decorators import decorated_engine
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from sandbox.engines.docker.image_pulls import ImagePulls
from sandbox.engines.engine import Engine
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.pooled_engine import PooledEngine
from tests.unit.gateway.telemetry.seen import watching


def around(innermost: MemoryEngine, telemetry: Telemetry, **options: Any) -> list[str]:
    """Return the names of an engine and those in it, from the outermost in."""
    engine, pool = decorated_engine(
        innermost, telemetry=telemetry, quotas=cast(Quotas, None), quotas_of=cast(Any, None), **options
    )
    names = []
    while isinstance(engine, EngineDecorator):
        assert not isinstance(engine, PooledEngine) or engine is pool
        names.append(type(engine).__name__.strip("_"))
        engine = engine.engine
    assert engine is innermost
    return names


@pytest.fixture
def innermost(tmp_path: Path) -> MemoryEngine:
    return MemoryEngine(root=tmp_path)


def test_what_is_refused_is_refused_before_it_costs_and_what_is_ready_waits_for_no_turn(
    innermost: MemoryEngine,
) -> None:
    def pooled(inner: Engine) -> PooledEngine:
        return PooledEngine(inner, innermost, limit=1)

    names = around(innermost, watching().telemetry, pooled=pooled, pulls=cast(ImagePulls, object()))
    assert names == ["CountedCreation", "ObservedEngine", "PullingEngine", "PooledEngine", "FairCreation"]


def test_a_gateway_without_pool_pulls_and_telemetry_has_turns_and_quotas_all_the_same(innermost: MemoryEngine) -> None:
    assert around(innermost, Telemetry.off(), pooled=None, pulls=None) == ["CountedCreation", "FairCreation"]
