"""What a namespace of sandboxes may have at most: its ResourceQuota and LimitRange, made from the tenants' policies.

The gateway keeps these limits itself. The cluster's are for what it cannot see: a gateway that was broken into, or many
that create at the same time. So they refuse nothing that the gateway allows.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from sandbox.engines.kubernetes.manifests import EPHEMERAL, RELAY_BYTES, RELAY_CPUS, Site, millis_of
from sandbox.engines.kubernetes.resources import LIMIT_RANGES, QUOTAS, Made
from sandbox.sandbox import SandboxLimits


@dataclass(frozen=True)
class Allowance:
    """The most of what shares a namespace: sandboxes that live at once, threads with files, the largest sandbox."""

    sandboxes: int
    workspaces: int
    largest: SandboxLimits

    def covering(self, limits: SandboxLimits) -> Self:
        """Return this with room for a sandbox of these limits, too: a run keeps the policy that it began with."""
        mine = self.largest
        largest = replace(
            mine,
            memory_bytes=max(mine.memory_bytes, limits.memory_bytes),
            cpus=max(mine.cpus, limits.cpus),
            workspace_bytes=max(mine.workspace_bytes, limits.workspace_bytes),
        )
        return replace(self, largest=largest)


Allowances: TypeAlias = Callable[[str | None], Awaitable[Allowance | None]]
"""Returns what a tenant, by its name, is allowed now, or all tenants together; None for no limit."""


async def unlimited(_tenant: str | None) -> None:
    """Satisfies Allowances."""
    return


def resource_quota(site: Site, allowance: Allowance) -> Made:
    """Return the most that a namespace may have.

    Twice as many Pods as may live: one ends while the next comes up, files are carried, and gateways that create at
    the same time pass their limit for a moment.
    """
    largest, pods = allowance.largest, 2 * allowance.sandboxes
    claims = allowance.workspaces + pods
    hard = {
        "pods": pods,
        "limits.cpu": math.ceil(pods * (largest.cpus + RELAY_CPUS)),
        "limits.memory": pods * (largest.memory_bytes + RELAY_BYTES),
        "persistentvolumeclaims": claims,
        "requests.storage": claims * largest.workspace_bytes,
    }
    metadata = {"name": site.shared_name(QUOTAS), "labels": site.labels("limits")}
    spec = {"hard": {name: canonical(amount) for name, amount in hard.items()}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}


def limit_range(site: Site, allowance: Allowance) -> Made:
    """Return the most that one container, or one claim, of a namespace may have."""
    largest = allowance.largest
    container = {
        "cpu": canonical(max(millis_of(largest.cpus), 1000 * RELAY_CPUS), milli=True),
        "memory": canonical(max(largest.memory_bytes, RELAY_BYTES)),
        "ephemeral-storage": EPHEMERAL,
    }
    limits = [
        # The API would make the same defaults of the maximum.
        {"type": "Container", "max": container, "default": container, "defaultRequest": container},
        {"type": "PersistentVolumeClaim", "max": {"storage": canonical(largest.workspace_bytes)}},
    ]
    metadata = {"name": site.shared_name(LIMIT_RANGES), "labels": site.labels("limits")}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}


def canonical(amount: int, *, milli: bool = False) -> str:
    """Return a quantity as the API writes it, so that what it says can be compared with what was asked for."""
    if milli and amount % 1000:
        return f"{amount}m"
    amount = min(amount // 1000 if milli else amount, 2**63 - 1)
    for suffix in ("", "k", "M", "G", "T", "P"):
        if not amount or amount % 1000:
            return f"{amount}{suffix}"
        amount //= 1000
    return f"{amount}E"
