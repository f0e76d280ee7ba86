"""DockerListing: which sandboxes a tenant has, in whatever state, whichever process made them.

What is noted in the files of locks and of stopped sandboxes is compared with the containers that the engine has.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_ground import DockerGround
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import EngineUnavailable, SandboxUnavailable
from sandbox.owner import Owner, digest, owner_of
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.thread_lock import Note
from sandbox.transition import State

# A sandbox without a container is being made, unless it was begun so long ago: no creation takes longer.
_MAKING_S = 60.0
# The exit codes of what a signal ended.
_SIGNALS = {128 + one: one.name for one in signal.Signals}


class DockerListing(DockerGround):
    """The ground with a look at what stands on it."""

    def stopped(self, spec: SandboxSpec) -> str | None:
        """Return the id of what is stopped of a tenant and thread, by its file."""
        found = self._stopped.read(owner_of(spec))
        return None if found is None else found.note.sandbox

    def stopped_count(self) -> int:
        """Return how many sandboxes of the instance are stopped, by their files."""
        return len(self._stopped.owners())

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        """Return the sandboxes of a tenant that live, are stopped, being made, or dead and not removed yet, by id."""
        mine = digest(tenant)
        noted = {look.note.sandbox: look for look in self._locks.looked_at(mine)}
        resting = {one.id: one for owner in self._stopped.owners() if owner[0] == mine if (one := self._resting(owner))}
        if not noted and not resting:
            return []
        containers = await self._containers_of(mine, {*noted, *resting})
        found = [one for id_, one in resting.items() if id_ not in noted and id_ in containers]
        for id_, look in noted.items():
            container = containers.get(id_)
            state = self._state(look.note, container, resumed=id_ in resting)
            one = shown(look.note, state, look.idle_s if state == "running" else None)
            if not one.created_s and container is not None:
                one = dataclasses.replace(one, created_s=float(container["Created"]))
            if state == "failed" and not look.at_work:
                one = dataclasses.replace(one, reason=await self._why_failed(id_))
            found.append(one)
        return sorted(found, key=lambda sandbox: sandbox.id)

    async def _why_failed(self, sandbox_id: str) -> str:
        name = config.container_name(self._instance, sandbox_id)
        try:
            return why_ended(await self._requests.ask(docker_requests.container_state, name))
        except EngineUnavailable:
            raise
        except SandboxUnavailable:
            return "its container is not there any more"

    def _resting(self, owner: Owner) -> ListedSandbox | None:
        """Return what is stopped of a thread, by its file."""
        stopped, since_s = self._stopped.read(owner), self._stopped.since_s(owner)
        return None if stopped is None else shown(stopped.note, "idle_stopped", since_s)

    async def _containers_of(self, tenant: str, ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return a tenant's containers, by the ids of their sandboxes; `tenant` is its digest, `ids` are noted."""
        labels = {**self._labels("sandbox"), config.TENANT_LABEL: tenant}
        found = await self._requests.ask(docker_requests.list_containers, labels)
        # What was made before it was anybody's has no owner in its labels.
        names = [config.container_name(self._instance, id_) for id_ in ids if is_pooled(id_)]
        found += await self._requests.ask(docker_requests.named_containers, names) if names else []
        return {container["Labels"][config.SANDBOX_LABEL]: container for container in found}

    def _state(self, note: Note, container: Mapping[str, Any] | None, *, resumed: bool) -> State:
        """Return what a sandbox is that has a lock file; `resumed` says that it is started again, or was."""
        if container is None:
            return "creating" if self._clock() < note.created_s + _MAKING_S else "failed"
        if container["State"] == "running":
            return "running"
        return "creating" if container["State"] == "created" or resumed else "failed"


def why_ended(state: Mapping[str, Any]) -> str:
    """Return why a container does not run, by the State of GET /containers/{name}/json."""
    if state["Status"] != "exited":
        return f"its container is {state['Status']}"
    code = int(state["ExitCode"])
    killed = f" ({_SIGNALS[code]})" if code in _SIGNALS else ""
    memory = "; the kernel had killed something in it for memory" if state.get("OOMKilled") else ""
    return f"its container ended with exit code {code}{killed}{memory}"


def shown(note: Note, state: State, since_s: float | None = None) -> ListedSandbox:
    """Return a sandbox as lists show it."""
    return ListedSandbox(note.sandbox, note.thread, note.image, note.runtime, note.created_s, state, since_s)
