"""The queues in front of the calls, seen: what is under way, what waits, what was refused."""

from __future__ import annotations

from gateway.serving.admission import Admission
from gateway.telemetry.telemetry import Telemetry


def observe_admission(telemetry: Telemetry, admission: Admission) -> None:
    """Have the gauges and counters of the queues read whenever somebody asks."""
    for name in ("at_work", "waiting", "streams", "admitted", "refused", "waited"):
        telemetry.instruments.read(f"airlock.admission.{name}", lambda name=name: getattr(admission.snapshot(), name))  # type: ignore[misc]
