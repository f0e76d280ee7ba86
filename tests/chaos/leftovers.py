"""What is left of a gateway instance that should not be: on the engine, in the channel directory, in the database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.engines.docker.container_config import (
    HELD_LABEL,
    INSTANCE_LABEL,
    KIND_LABEL,
    POOL_LABEL,
    SANDBOX_LABEL,
    TENANT_LABEL,
    THREAD_LABEL,
    volume_of,
)
from sandbox.sandbox import owner_by_name
from tests.chaos.own_engine import OwnEngine
from tests.gateway_process import Home

_FIXED = ("locks", "stopped", "carriers", "pool")
_LEGAL = {
    # Found, running or as a half of one, for the process that made it died before it reported it.
    "": {"creating", "running", "removed"},
    "creating": {"running", "failed", "removed"},
    "running": {"running", "idle_stopped", "failed", "removed"},
    "idle_stopped": {"running", "idle_stopped", "removed"},
    # Alive after all: it could not be removed when it failed, for the engine was away.
    "failed": {"running", "idle_stopped", "removed"},
    "removed": set(),
}


def orphans(engine: OwnEngine, home: Home, channels: Path, threads: Iterable[tuple[str, str]]) -> list[str]:
    """Return what an instance has that is none of these threads', by tenant and name: a sentence each."""
    found = _found(engine, home.instance)
    pooled = {one.sandbox for one in found.containers if one.pooled}
    live = {one.sandbox for one in found.containers if one.state == "running" and not one.pooled}
    stopped = {one.sandbox for one in found.containers if one.state == "exited" and not one.pooled}
    wrong = [f"{one}" for one in found.containers if one.sandbox not in live | stopped | pooled]
    wrong += [f"{one} waits in the pool" for one in found.containers if one.pooled and one.state != "running"]
    owners = [one.owner for one in found.containers if not one.pooled]
    wrong += [f"{owners.count(owner)} sandboxes of {owner}" for owner in set(owners) if owners.count(owner) > 1]

    locks = channels / "locks"
    noted = {_sandbox(path) for path in locks.glob("*.lock") if not path.stem.endswith("-ground")}
    wrong += _both("runs", live, "has a lock file", noted)
    wrong += _both(
        "is stopped", stopped, "is said to be", {_sandbox(path) for path in channels.glob("stopped/*.stopped")}
    )
    waiting = {path.stem.removeprefix(f"{home.instance}-") for path in channels.glob("pool/*.lock")}
    wrong += _both("waits in the pool", pooled, "has a lock file there", waiting)
    places = {path.name for path in channels.iterdir() if path.is_dir()} - set(_FIXED)
    wrong += _both("is there", live | stopped | pooled, "has a channel directory", places)
    wrong += [f"{path} is left" for path in (*channels.glob("carriers/*"), *channels.glob("stopped/*.half"))]

    # A claim and the volume that it names are there both, or neither.
    held = {volume_of(home.instance, name) for name in found.claimed | pooled}
    wrong += [f"volume {name} is claimed, and is not there" for name in held - found.volumes]
    mine = {volume_of(home.instance, owner_by_name(tenant, thread)[1]) for tenant, thread in threads}
    wrong += [f"volume {name} is no thread's" for name in found.volumes - mine - held if "workspace" in name]
    return wrong


def _both(one: str, these: set[str], other: str, those: set[str]) -> list[str]:
    """Return a sentence for each sandbox that is in one of two sets only, which ought to be the same."""
    return [
        *(f"sandbox {name or '(none)'} {one}, but none {other}" for name in these - those),
        *(f"sandbox {name or '(none)'} {other}, but none {one}" for name in those - these),
    ]


def unfinished(home: Home) -> list[str]:
    """Return what the database says is under way, and the calls that are over and do not say how they ended."""
    calls = home.rows("SELECT id, name, gateway FROM tool_calls WHERE state = 'executing'")
    silent = home.rows("SELECT id, name, state FROM tool_calls WHERE finished_us IS NOT NULL AND outcome IS NULL")
    marked = home.rows("SELECT name, deletion FROM threads WHERE deletion IS NOT NULL")
    held = home.rows("SELECT tenant, name, gateway FROM holds")
    return [
        *(f"call {call} is executing" for call in calls),
        *(f"call {call} is over and has no outcome" for call in silent),
        *(f"thread {thread} is marked" for thread in marked),
        *(f"a hold {hold}" for hold in held),
    ]


def wrong_histories(home: Home, states: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the histories of sandboxes; `states` are those of the sandboxes that there are."""
    reported: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for sandbox, state, why in home.rows("SELECT sandbox, state, reason FROM sandbox_transitions ORDER BY id"):
        reported.setdefault(sandbox, []).append(state)
        reasons.setdefault(sandbox, []).append(f"{state} ({why})")
    wrong = [
        f"sandbox {sandbox} is {states[sandbox]} and has no history" for sandbox in states.keys() - reported.keys()
    ]
    for sandbox, history in reported.items():
        before = ""
        for state in history:
            if state not in _LEGAL[before]:
                wrong.append(f"sandbox {sandbox}: {' -> '.join(reasons[sandbox])}")
                break
            before = state
        # Nothing stays of what did not come up; what ran and died is removed by the next process.
        gone = {"removed"} if "running" in history else {"removed", "failed"}
        ends = {states[sandbox]} if sandbox in states else gone
        if history[-1] not in ends:
            wrong.append(f"sandbox {sandbox} is {states.get(sandbox, 'gone')}: {' -> '.join(reasons[sandbox])}")
    return wrong


def states_of(engine: OwnEngine, instance: str) -> dict[str, str]:
    """Return what the sandboxes of an instance are, by id, in the words of their history."""
    words = {"running": "running", "exited": "idle_stopped"}
    found = _found(engine, instance).containers
    return {one.sandbox: words.get(one.state, one.state) for one in found if not one.pooled}


@dataclass(frozen=True)
class _Container:
    """What the engine says of a container; `pooled` says that it waits in the pool."""

    state: str
    kind: str
    sandbox: str
    owner: str
    pooled: bool


@dataclass(frozen=True)
class _Found:
    """What an instance has on an engine; `claimed` are the pooled sandboxes that are threads' now."""

    containers: list[_Container]
    volumes: set[str]
    claimed: set[str]


def _found(engine: OwnEngine, instance: str) -> _Found:
    volumes = _listed(engine, "volume ls", instance, "{{.Name}}", (HELD_LABEL, TENANT_LABEL, THREAD_LABEL))
    owners = {held: f"{tenant}-{thread}" for _, held, tenant, thread in volumes if held}
    labels = (KIND_LABEL, SANDBOX_LABEL, POOL_LABEL, TENANT_LABEL, THREAD_LABEL)
    containers = []
    for state, kind, sandbox, pool, tenant, thread in _listed(engine, "ps -a", instance, "{{.State}}", labels):
        owner = owners.get(pool, "") if pool else f"{tenant}-{thread}"
        containers.append(_Container(state, kind, sandbox, owner, pooled=not owner))
    return _Found(containers, {name for name, *_ in volumes}, set(owners))


def _listed(engine: OwnEngine, listing: str, instance: str, first: str, labels: Iterable[str]) -> list[list[str]]:
    shown = "\t".join([first, *('{{.Label "' + label + '"}}' for label in labels)])
    reported = engine.docker(*listing.split(), "--filter", f"label={INSTANCE_LABEL}={instance}", "--format", shown)
    return [line.split("\t") for line in reported.splitlines()]


def _sandbox(path: Path) -> str:
    """Return which sandbox a file is of; "" for none."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["sandbox"])
    except (OSError, ValueError, KeyError):
        return ""
