"""SandboxListing: which sandboxes there are, in whatever state, whichever process made them.

The notes in the files of locks and of stopped sandboxes are compared with the containers that the engine has.
"""

import dataclasses
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.parts import Container, Parts, id_of
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import EngineUnavailable, SandboxUnavailable
from sandbox.sandbox import ListedSandbox, Owner, SandboxSpec, digest, owner_of
from sandbox.thread_lock import Note
from sandbox.transition import State

# The exit codes of what a signal ended.
_SIGNALS = {128 + one: one.name for one in signal.Signals}


@dataclass(frozen=True)
class SandboxListing:
    """Answers Register by the files alone; listed() asks the engine."""

    parts: Parts

    def has(self, spec: SandboxSpec) -> bool:
        return self.parts.locks.has(owner_of(spec))

    def stopped(self, spec: SandboxSpec) -> str | None:
        found = self.parts.stopped.read(owner_of(spec))
        return None if found is None else found.note.sandbox

    def stopped_count(self) -> int:
        return len(self.parts.stopped.owners())

    def at_rest(self, owner: Owner) -> ListedSandbox | None:
        """Return the stopped sandbox of a thread, by its file."""
        stopped = self.parts.stopped.read(owner)
        return None if stopped is None else shown(stopped.note, "idle_stopped", stopped.since_s)

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        """Return the sandboxes of a tenant by id: running, stopped, being made, or dead and not yet removed."""
        mine = digest(tenant)
        noted = {look.note.sandbox: look for look in self.parts.locks.looked_at(mine)}
        at_rest = {one.id: one for owner in self.parts.stopped.owners(mine) if (one := self.at_rest(owner))}
        if not noted and not at_rest:
            return []
        containers = await self._containers_of(mine, {*noted, *at_rest})
        found = [one for id_, one in at_rest.items() if id_ not in noted and id_ in containers]
        for id_, look in noted.items():
            container = containers.get(id_)
            state = self._state(look.note, container, resumed=id_ in at_rest)
            one = shown(look.note, state, look.idle_s if state == "running" else None)
            if not one.created_s and container is not None:
                one = dataclasses.replace(one, created_s=float(container["Created"]))
            if state == "failed" and not look.at_work:
                one = dataclasses.replace(one, reason=await self._why_failed(id_))
            found.append(one)
        return sorted(found, key=lambda sandbox: sandbox.id)

    async def _why_failed(self, sandbox_id: str) -> str:
        try:
            return why_ended(await self.parts.containers.ask(docker_requests.container_state, sandbox_id))
        except EngineUnavailable:
            raise
        except SandboxUnavailable:
            return "its container no longer exists"

    async def _containers_of(self, tenant: str, ids: Collection[str]) -> Mapping[str, Container]:
        """Return a tenant's containers, by the ids of their sandboxes; `tenant` is its digest, `ids` are noted."""
        found = await self.parts.containers.labelled({config.KIND_LABEL: "sandbox", config.TENANT_LABEL: tenant})
        # A pooled sandbox has no owner in its labels.
        found += await self.parts.containers.named([id_ for id_ in ids if is_pooled(id_)])
        return {id_of(container): container for container in found}

    def _state(self, note: Note, container: Container | None, *, resumed: bool) -> State:
        """Return the state of a sandbox with a lock file; `resumed` says that it is, or was, started again."""
        if container is None:
            # A sandbox without a container is being made, unless it was begun so long ago: no creation takes longer.
            return "creating" if self.parts.lifetime.clock() < note.created_s + 60.0 else "failed"
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
