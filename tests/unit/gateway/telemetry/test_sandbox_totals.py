"""What sandboxes use together, over sandboxes that are made up."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.telemetry.gauges import SandboxTotals
from sandbox.errors import DaemonLost
from sandbox.sandbox import Sandbox
from sandbox.usage import Usage


class Fakes:
    """Sandboxes by their ids, with what each says that it uses; an error is what its daemon answers with."""

    def __init__(self, **used: Usage | Exception | None) -> None:
        self.used = used

    def living(self) -> list[Sandbox]:
        return [cast(Sandbox, _Fake(name)) for name in self.used]

    async def read(self, sandbox: Any) -> Usage | None:
        said = self.used[sandbox.id]
        if isinstance(said, Exception):
            raise said
        return said


class _Fake:
    def __init__(self, id_: str) -> None:
        self.id = id_


def used(cpu_s: float, mib: int = 1) -> Usage:
    return Usage(cpu_s=cpu_s, memory_bytes=mib, pids=3)


async def test_processor_time_only_grows_and_what_lives_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(a=used(10.0), b=used(2.0, 5), silent=None, lost=DaemonLost("gone"), unknown=Usage())
    monkeypatch.setattr("gateway.telemetry.gauges.read_usage", fakes.read)
    totals = SandboxTotals(fakes.living)
    await totals.read()
    assert (totals.cpu_s, totals.memory_bytes, totals.pids) == (0.0, 6, 6), "what was before is not counted"
    fakes.used = {"a": used(11.5), "b": used(0.5, 2)}
    await totals.read()
    assert (totals.cpu_s, totals.memory_bytes, totals.pids) == (2.0, 3, 6), "b was stopped and started again"
    fakes.used = {"c": used(7.0)}
    await totals.read()
    assert (totals.cpu_s, totals.memory_bytes, totals.pids) == (2.0, 1, 3)
