"""The order of the creators around an engine: what may be refused comes first, and the pool waits for no turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gateway.composition.sandboxes import decorated_creation
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from sandbox.engines.docker.image_pulls import ImagePulls
from sandbox.engines.engine import Creator
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.pooled_sandbox import PoolSource
from sandbox.engines.sandbox_pool import SandboxPool
from tests.unit.gateway.telemetry.seen import watching


def around(innermost: MemoryEngine, telemetry: Telemetry, **options: Any) -> list[str]:
    """Return the names of the creators around an engine, from the outermost in."""
    creator: Any
    creator, pool = decorated_creation(
        innermost, telemetry=telemetry, quotas=cast(Quotas, None), quotas_of=cast(Any, None), **options
    )
    names = []
    while creator is not innermost:
        assert not isinstance(creator, SandboxPool) or creator is pool
        names.append(type(creator).__name__)
        creator = creator.inner
    return names


@pytest.fixture
def innermost(tmp_path: Path) -> MemoryEngine:
    return MemoryEngine(root=tmp_path)


def test_what_is_refused_is_refused_before_it_costs_and_what_is_ready_waits_for_no_turn(
    innermost: MemoryEngine,
) -> None:
    def pooled(inner: Creator) -> SandboxPool:
        return SandboxPool(inner, innermost, cast(PoolSource, object()), limit=1)

    names = around(innermost, watching().telemetry, pooled=pooled, pulls=cast(ImagePulls, object()))
    assert names == ["CountedCreation", "ObservedCreation", "PullingCreation", "SandboxPool", "FairCreation"]


def test_a_gateway_without_pool_pulls_and_telemetry_has_turns_and_quotas_all_the_same(innermost: MemoryEngine) -> None:
    assert around(innermost, Telemetry.off(), pooled=None, pulls=None) == ["CountedCreation", "FairCreation"]
