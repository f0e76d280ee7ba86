"""What things cost: the counts of the code, times measured with `measuring`, and what is assumed of other systems.

Tests compare the counts with what the code does (test_counts.py). Times are processor times on the machine of the
measurement, some 2.5 GHz and two processors; docs/capacity.md has them beside how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

WRITES_OF: Mapping[str, int] = MappingProxyType({"writing": 2, "reading": 1})
"""Transactions of a call: one before it and one with its outcome, or the outcome alone if it only reads."""
READS_OF_CALL = 1
ROWS_OF: Mapping[str, int] = MappingProxyType({"writing": 4, "reading": 3})
"""Rows written: the journal's, the audit's record, the head of its chain; for one that writes, the journal's again."""
GROUP_LIMIT = 128
CONNECTIONS = 7
"""To PostgreSQL, of one process: four readers, authentication, the writer, and one more when all are busy."""

# Reads a second of an idle gateway, by what is read.
IDLE_READS_PER_S: Mapping[str, float] = MappingProxyType(
    {"policies": 4.0, "unhosted runs": 4.0, "expired leases": 1.0, "health": 1.0, "approvals": 0.1}
)
RENEWALS_OF_A_LEASE = 5
"""So often is a lease renewed in its length."""

CLAIM_WRITES: Mapping[str, int] = MappingProxyType({"Lease": 2, "PersistentVolumeClaim": 1, "Pod": 1})
"""API calls of a gateway that claims a pooled sandbox: the thread's gate shut with what is to be, and what is and the
gate open again; its volume; its Pod."""
CREATION_WRITES: Mapping[str, int] = MappingProxyType({"PersistentVolumeClaim": 1, "Pod": 1})
"""Of who makes a sandbox: for the pool, or for a thread behind its gate."""
GATE_WRITES: Mapping[str, int] = MappingProxyType({"Lease": 3})
"""Of who makes one for a thread, besides: the gate shut, what is to be, and what is and the gate open again."""
POOL_MAKERS = 2
"""So many sandboxes of its pool does a process make at a time."""
CLUSTER_WRITES_OF_A_POD = 8
"""What others write until a Pod is ready: its binding, four statuses of the kubelet, the volume and its binding."""
END_WRITES = 5
"""Deletion of Pod and volume, the kubelet's last two statuses, the record."""


@dataclass(frozen=True)
class Statements:
    """What one transaction of the writer sends while it has the writers' lock, its commit included.

    `short` are writes of one statement in a savepoint: a lease, or a claim that came late.
    """

    begun: int = 0
    ended: int = 0
    short: int = 0
    claims: int = 0
    tenants: int = 1

    def count(self) -> int:
        heads = min(self.tenants, self.ended + self.claims)
        # The records and the heads are each one statement for all, sent in a pipeline.
        audit = heads + 2 if heads else 0
        return self.begun + self.ended + 3 * self.short + CLAIM_STATEMENTS * self.claims + audit + 1


CLAIM_STATEMENTS = 6
"""A takeover of a run in a transaction: the savepoint, the claim, what it continues from, and what it has used."""


@dataclass(frozen=True)
class Costs:
    """Seconds unless the name says otherwise."""

    # Measured: processor time of the gateway's process for a call, with eight clients.
    gateway_s: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({"writing": 3.0e-3, "reading": 2.7e-3})
    )
    # Measured: a statement of the writer, at both ends.
    statement_s: float = 0.2e-3
    read_s: float = 0.1e-3
    sandbox_s: float = 6e-3
    # Assumed: a network within a zone, a disk of a cloud, a server for the database.
    round_trip_s: float = 0.2e-3
    sync_s: float = 1e-3
    database_processors: int = 8
    max_connections: int = 100
    # Measured: what is resident.
    gateway_mib: float = 110.0
    daemon_mib: float = 10.0
    relay_mib: float = 20.0
    log_bytes: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({"writing": 3.1e3, "reading": 2.4e3})
    )
    # Assumed of Kubernetes: one API server and etcd of their usual sizes.
    api_s: float = 5e-3
    api_writes_per_s: float = 1000.0
    watch_events_per_s: float = 50_000.0
    event_s: float = 0.2e-3
    watch_lag_s: float = 0.1
    pod_ready_s: float = 3.0
    pods_of_a_node: int = 110
    node_mib: float = 64 * 1024.0
    pids_of_a_node: int = 32_768

    def held_s(self, sent: Statements) -> float:
        """Return how long a transaction has the writers' lock."""
        return sent.count() * (self.statement_s + self.round_trip_s) + self.sync_s


COSTS = Costs()
