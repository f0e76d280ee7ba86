"""The queues in front of the calls, seen: what is under way, what waits, what was refused."""

from __future__ import annotations

from typing import Protocol

from gateway.telemetry.telemetry import Telemetry


class Admission(Protocol):
    """The queues; see gateway.serving.admission. The attributes of a snapshot are figures."""

    def snapshot(self) -> object: ...


def observe_admission(telemetry: Telemetry, admission: Admission) -> None:
    """Have the gauges and counters of the queues read whenever somebody asks."""
    for name in ("at_work", "limit", "waiting", "streams", "admitted", "refused", "waited"):
        telemetry.instruments.read(f"airlock.admission.{name}", lambda name=name: getattr(admission.snapshot(), name))  # type: ignore[misc]
