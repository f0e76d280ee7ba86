"""The model's gateway beside a real one: what it predicts for clients that share a machine with all that they use."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tests.simulation.costs import COSTS, Costs
from tests.simulation.events import Process, Server, Signal, Simulation
from tests.simulation.gateways import Database, Gateway

_SECONDS = 10.0


@dataclass(frozen=True)
class Measured:
    """A call as it was measured; `cpu_s` is by who used the processor, `other_processors` what others took of them."""

    cpu_s: Mapping[str, float]
    latency_s: float
    calls_per_s: float
    log_bytes: float
    other_processors: float


class _Shared(Server):
    """One thread, on processors that it shares; what others use of them stretches its work."""

    def __init__(self, simulation: Simulation, places: int, machine: Server, stretch: float) -> None:
        super().__init__(simulation, places)
        self._machine, self._stretch = machine, stretch

    def serve(self, seconds: float) -> Generator[float | Signal, Any, None]:
        yield from self.take()
        yield from self._machine.serve(seconds * self._stretch)
        self.leave()


def predicted_calls_per_s(one: Measured, kind: str, *, clients: int, processors: int, sync_s: float) -> float:
    """Return what so many clients get of one gateway, by what a call takes of each processor."""
    simulation = Simulation(1)
    machine = Server(simulation, processors)
    stretch = processors / max(0.5, processors - one.other_processors)
    costs = replace(COSTS, gateway_s={kind: one.cpu_s["gateway"]}, round_trip_s=0.0, sync_s=sync_s, sandbox_s=0.0)
    gateway = _gateway(simulation, costs, machine, stretch)
    client_thread = _Shared(simulation, 1, machine, stretch)
    elsewhere = _Shared(simulation, clients, machine, stretch)

    def client() -> Process:
        while True:
            yield from client_thread.serve(one.cpu_s["client"])
            # The database's work is in the time that a transaction has the lock, and takes a processor too.
            yield from elsewhere.serve(one.cpu_s["sandbox"] + one.cpu_s["database"])
            yield from gateway.call(kind)

    gateway.start()
    for _ in range(clients):
        simulation.start(client())
    simulation.run(_SECONDS)
    return gateway.counts.done / _SECONDS


def _gateway(simulation: Simulation, costs: Costs, machine: Server, stretch: float) -> Gateway:
    gateway = Gateway(Database(simulation, replace(costs, gateway_s=MappingProxyType(dict(costs.gateway_s)))))
    gateway.loop = _Shared(simulation, 1, machine, stretch)
    return gateway
