"""Metrics of the admission queues."""

from __future__ import annotations

from typing import Protocol

from gateway.telemetry.telemetry import Telemetry


class Admission(Protocol):
    """The admission queues (gateway.serving.admission); the attributes of a snapshot are numbers."""

    def snapshot(self) -> object: ...


def observe_admission(telemetry: Telemetry, admission: Admission) -> None:
    """Register the gauges and counters of the queues."""
    for name in ("at_work", "limit", "waiting", "streams", "admitted", "refused", "waited"):
        telemetry.instruments.read(f"airlock.admission.{name}", lambda name=name: getattr(admission.snapshot(), name))  # type: ignore[misc]
