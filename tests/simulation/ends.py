"""Which resource ends first: what each carries, and how much of it so many gateways use at a moderate load."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.simulation.calls import carried
from tests.simulation.costs import (
    CLAIM_WRITES,
    CLUSTER_WRITES_OF_A_POD,
    CONNECTIONS,
    COSTS,
    CREATION_WRITES,
    END_WRITES,
    IDLE_READS_PER_S,
    READS_OF_CALL,
    RENEWALS_OF_A_LEASE,
    Statements,
)

# A gateway's moderate load.
CALLS_PER_S, CLAIMS_PER_S, LIVE, THREADS = 50.0, 0.5, 100, 1_000
_LEASE_S: Final = 5.0
WRITES_OF_A_SANDBOX = sum((*CLAIM_WRITES.values(), *CREATION_WRITES.values(), CLUSTER_WRITES_OF_A_POD, END_WRITES))
"""Writes to the API server in the life of a sandbox, by whoever; each is an event of a watch."""
_CLUSTER_PODS: Final = 150_000
_ETCD_MIB: Final = 2 * 1024.0
_POD_KIB, _THREAD_KIB = 10.0, 5.0
CELL, CELLS_OF_A_CLUSTER = 10, 5


@functools.cache
def lock_calls_per_s() -> float:
    """Return what a database's lock carries of calls, half of them reading, from ten gateways."""
    return carried(CELL).calls_per_s


@dataclass(frozen=True)
class Resource:
    """`used` returns the share that `gateways` on `databases` and `clusters` use of one; 1.0 is all of it."""

    name: str
    limit: str
    used: Callable[[float, float, float], float]


def _processor(gateways: float, databases: float, clusters: float) -> float:
    calls_s = CALLS_PER_S * sum(COSTS.gateway_s.values()) / 2
    events_per_s = gateways / databases * CLAIMS_PER_S * WRITES_OF_A_SANDBOX
    return calls_s + events_per_s * COSTS.event_s


def _leases(gateways: float, databases: float, clusters: float) -> float:
    return gateways / databases * RENEWALS_OF_A_LEASE / _LEASE_S * COSTS.held_s(Statements(short=1))


def _reads(gateways: float, databases: float, clusters: float) -> float:
    each = sum(IDLE_READS_PER_S.values()) + READS_OF_CALL * CALLS_PER_S
    return gateways / databases * each * COSTS.read_s / COSTS.database_processors


def _deliveries(gateways: float, databases: float, clusters: float) -> float:
    # Each gateway watches the objects of its own database's gateways.
    seen = gateways / databases
    return gateways / clusters * CLAIMS_PER_S * WRITES_OF_A_SANDBOX * seen / COSTS.watch_events_per_s


RESOURCES = (
    Resource("a gateway's processor", "1 processor", _processor),
    Resource(
        "the writers' lock: calls",
        "{lock:,.0f} calls/s",
        lambda gateways, databases, clusters: gateways / databases * CALLS_PER_S / lock_calls_per_s(),
    ),
    Resource("the writers' lock: leases", "the same lock", _leases),
    Resource(
        "PostgreSQL's connections",
        f"max_connections: {COSTS.max_connections}",
        lambda gateways, databases, clusters: gateways / databases * CONNECTIONS / COSTS.max_connections,
    ),
    Resource("PostgreSQL's processors: reads", f"{COSTS.database_processors} processors", _reads),
    Resource(
        "the API server's writes",
        f"{COSTS.api_writes_per_s:,.0f}/s",
        lambda gateways, databases, clusters: (
            gateways / clusters * CLAIMS_PER_S * WRITES_OF_A_SANDBOX / COSTS.api_writes_per_s
        ),
    ),
    Resource("events to watches", f"{COSTS.watch_events_per_s:,.0f}/s", _deliveries),
    Resource(
        "etcd",
        "2 GiB",
        lambda gateways, databases, clusters: (
            gateways / clusters * (LIVE * _POD_KIB + THREADS * _THREAD_KIB) / 1024 / _ETCD_MIB
        ),
    ),
    Resource(
        "Pods of a cluster",
        f"{_CLUSTER_PODS:,}",
        lambda gateways, databases, clusters: gateways / clusters * LIVE / _CLUSTER_PODS,
    ),
)


@dataclass(frozen=True)
class Node:
    """How many sandboxes fit a node, by what they use."""

    working: str
    by_pods: int
    by_memory: int
    by_pids: int

    @property
    def fits(self) -> int:
        return min(self.by_pods, self.by_memory, self.by_pids)


def nodes() -> tuple[Node, ...]:
    """Return what fits a node of 64 GiB: idle sandboxes, working ones as they usually are, and all at their limits."""
    own_mib = COSTS.daemon_mib + COSTS.relay_mib + 1
    return tuple(
        Node(what, COSTS.pods_of_a_node, int(COSTS.node_mib / (own_mib + mib)), COSTS.pids_of_a_node // pids)
        for what, mib, pids in (
            ("idle", 0, 12),
            ("one in four works, in 512 MiB", 128, 40),
            ("at its limits", 1024, 512),
        )
    )
