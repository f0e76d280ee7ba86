"""Sandboxes, snapshots and usage as E2B's REST answers have them."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.client import SandboxStats, Snapshot
from gateway.e2b.access import access_token
from gateway.storage.e2b_store import RUNNING, E2bSandbox
from gateway.tenancy.tenants import Tenant

ENVD_VERSION = "0.6.1"
"""The newest envd without metadata of files and entries in events, which the SDKs then refuse by themselves."""
_CLIENT = "airlock"


def connection(sandbox: E2bSandbox, key_id: str) -> Mapping[str, Any]:
    """Return what an SDK needs to use a sandbox."""
    return {
        "sandboxID": sandbox.id,
        "templateID": sandbox.options.get("template", ""),
        "clientID": _CLIENT,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": access_token(sandbox, key_id),
        # What the code interpreter's SDK sends with requests about contexts.
        "trafficAccessToken": access_token(sandbox, key_id),
        "domain": None,
    }


def listed(sandbox: E2bSandbox, tenant: Tenant) -> Mapping[str, Any]:
    """Return a sandbox as lists show it."""
    section = tenant.policy.document.sandbox
    return {
        "sandboxID": sandbox.id,
        "templateID": sandbox.options.get("template", ""),
        "clientID": _CLIENT,
        "envdVersion": ENVD_VERSION,
        "startedAt": shown_at(sandbox.created_us),
        "endAt": shown_at(sandbox.ends_us if sandbox.ends_us is not None else sandbox.created_us),
        "state": "running" if sandbox.state == RUNNING else "paused",
        "metadata": sandbox.options.get("metadata", {}),
        "cpuCount": math.ceil(section.cpus),
        "memoryMB": section.memory_mib,
        "diskSizeMB": section.workspace_mib,
    }


def detail(sandbox: E2bSandbox, tenant: Tenant, key_id: str) -> Mapping[str, Any]:
    """Return everything about a sandbox."""
    pauses = sandbox.options.get("on_timeout") == "pause"
    return {
        **listed(sandbox, tenant),
        **({} if sandbox.state == RUNNING else {"pauseMode": "filesystem"}),
        "envdAccessToken": access_token(sandbox, key_id),
        "domain": None,
        "allowInternetAccess": sandbox.options.get("internet"),
        "lifecycle": {
            "onTimeout": "pause" if pauses else "kill",
            "autoResume": bool(sandbox.options.get("auto_resume")),
        },
    }


def metric(stats: SandboxStats, now_us: int) -> Mapping[str, Any]:
    """Return a reading of a sandbox's usage. What is not known is 0, which E2B requires to be a number."""
    cpus = stats.cpus_limit or 1.0
    workspace = stats.workspace
    return {
        "timestamp": shown_at(now_us),
        "timestampUnix": now_us // 1_000_000,
        "cpuCount": math.ceil(cpus),
        "cpuUsedPct": round(100 * (stats.cpus or 0.0) / cpus, 2),
        "memUsed": stats.memory_bytes or 0,
        "memTotal": stats.memory_limit_bytes or 0,
        "memCache": 0,
        "diskUsed": workspace.used_bytes if workspace else 0,
        "diskTotal": (workspace.limit_bytes or 0) if workspace else 0,
    }


def snapshot(one: Snapshot) -> Mapping[str, Any]:
    """Return a snapshot."""
    return {"snapshotID": one.id, "names": []}


def shown_at(at_us: int) -> str:
    """Return a time in RFC 3339."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
