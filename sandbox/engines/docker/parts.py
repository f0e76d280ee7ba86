"""What the collaborators of a Docker engine share: the parts that own one thing each, and the gates of threads."""

import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.engines.background import BackgroundTasks
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.channels import Channels
from sandbox.engines.docker.docker_requests import Client, DockerRequests
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.lock_directory import LockDirectory, PoolLocks, StoppedSandboxes
from sandbox.engines.docker.relays import Relays
from sandbox.engines.docker.shared_directory import SharedDirectory
from sandbox.engines.docker.workspace_claims import WorkspaceClaims
from sandbox.engines.lifetime import Lifetime
from sandbox.sandbox import LeftSandbox, ListedSandbox, Owner, SandboxSpec, owner_of
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import CLAIM_LOST, OnTransition, State, Transition
from sandbox.usage import Usage, usage_of
from sandbox.v1 import channel_pb2 as pb

_Value = TypeVar("_Value")
Container = Mapping[str, Any]
"""A container as GET /containers/json shows it."""


@dataclass(frozen=True)
class Containers:
    """Containers by the ids of their sandboxes. Raises as DockerRequests.ask()."""

    requests: DockerRequests
    instance: str
    channels: Channels

    def name(self, sandbox_id: str) -> str:
        return config.container_name(self.instance, sandbox_id)

    async def ask(self, request: Callable[[Client, str], _Value], sandbox_id: str) -> _Value:
        return await self.requests.ask(request, self.name(sandbox_id))

    async def remove(self, sandbox_id: str) -> None:
        """Remove a container and its channel. One that is gone is no error."""
        await self.ask(docker_requests.remove_container, sandbox_id)
        await self.channels.remove(sandbox_id)

    async def stop(self, sandbox_id: str) -> None:
        """Stop a container, which keeps all but its memory."""
        await self.ask(docker_requests.stop_container, sandbox_id)
        await self.channels.stopped(sandbox_id)

    async def remove_each(self, found: Collection[Container]) -> None:
        """Remove containers of any kind, with the channels of those that have one."""
        for container in found:
            await self.requests.ask(docker_requests.remove_container, container["Id"])
            if config.SANDBOX_LABEL in container["Labels"]:
                await self.channels.remove(id_of(container))

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        stats = await self.ask(docker_requests.container_stats, sandbox.id)
        if stats is None:
            return None
        found = usage_of(stats)
        if sandbox.runtime == "runc":
            return found
        # Run with --ignore-cgroups, gVisor is in the host's own group: it limits no processes, and its counts are of
        # more than the tenant's. In a group of its own, most of what counts as processes are threads of its kernel.
        return Usage() if found.pids_limit is None else replace(found, pids=None, pids_limit=None)

    async def labelled(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        return await self.requests.ask(
            docker_requests.list_containers, {config.INSTANCE_LABEL: self.instance, **labels}
        )

    async def of_kind(self, kind: str, owner: Owner | None = None) -> list[dict[str, Any]]:
        labels = {} if owner is None else config.owner_labels(self.instance, owner)
        return await self.labelled({config.KIND_LABEL: kind, **labels})

    async def named(self, sandbox_ids: Collection[str]) -> list[dict[str, Any]]:
        names = [self.name(sandbox_id) for sandbox_id in sandbox_ids]
        return await self.requests.ask(docker_requests.named_containers, names) if names else []

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this instance runs, by its id, pooled ones too."""
        return {id_of(one): one["State"] == "running" for one in await self.of_kind("sandbox")}


def id_of(container: Container) -> str:
    """Return the id of a container's sandbox."""
    return str(container["Labels"][config.SANDBOX_LABEL])


@dataclass(frozen=True)
class Attached:
    """A sandbox with this process' channel to it, and its thread's lock; `sandbox` is None until it is used."""

    owner: Owner
    channel: Channel
    lock: ThreadLock
    sandbox: ChannelSandbox | None = None

    def close(self) -> None:
        self.channel.close()
        self.lock.close()


class AttachedSandboxes:
    """The sandboxes that this process uses, or has adopted from an earlier one and not used yet, by their ids."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self.by_id: dict[str, Attached] = {}

    def adopt(self, sandbox_id: str, owner: Owner, channel: Channel, lock: ThreadLock) -> None:
        """Attach a sandbox that an earlier process left; its lock is behind its gate, which opens."""
        self.by_id[sandbox_id] = Attached(owner, channel, lock)
        lock.hold()
        lock.leave()

    def adopted(self) -> Sequence[LeftSandbox]:
        return [LeftSandbox(id_, *one.owner) for id_, one in self.by_id.items() if one.sandbox is None]

    def use(
        self,
        note: Note,
        spec: SandboxSpec,
        channel: Channel,
        posture: pb.Posture,
        lock: ThreadLock,
        *,
        outdated: bool = False,
    ) -> ChannelSandbox:
        """Return a sandbox that came up or was found, attached; its lock is behind its gate, which opens."""
        record = EngineRecord(lock, outdated, note.ended_processes, partial(self._lifetime.overdue_s, note))
        sandbox = ChannelSandbox(note.sandbox, spec, channel, posture, record)
        lock.hold()
        lock.leave()
        self.let_go(note.sandbox)
        self.by_id[note.sandbox] = Attached(owner_of(spec), channel, lock, sandbox)
        return sandbox

    def let_go(self, sandbox_id: str) -> None:
        """Drop a sandbox, but for the channel of an adopted one, which its next use has."""
        attached = self.by_id.pop(sandbox_id, None)
        if attached is not None:
            attached.lock.close()
            if attached.sandbox is not None:
                attached.channel.close()

    def close(self) -> None:
        """Close all of them. They live on."""
        for attached in self.by_id.values():
            attached.close()
        self.by_id.clear()


@dataclass(frozen=True)
class Gate:
    """A thread's lock behind its gate, and its note."""

    owner: Owner
    lock: ThreadLock
    note: Note


@dataclass
class Parts:
    """Shared by the collaborators of one engine. What is in `background` is waited for before the engine closes."""

    instance: str
    channel_root: Path
    runtime_image: str
    requests: DockerRequests
    lifetime: Lifetime
    on_transition: OnTransition

    def __post_init__(self) -> None:
        self.locks = LockDirectory(self.channel_root, self.instance)
        self.pool_locks = PoolLocks(self.channel_root, self.instance)
        self.stopped = StoppedSandboxes(self.channel_root, self.instance, self.lifetime.clock)
        self.claims = WorkspaceClaims(self.requests, self.instance, self.runtime_image)
        self.setup = EngineSetup(self.requests, self.locks, self.instance, self.runtime_image)
        self.containers = Containers(self.requests, self.instance, self._channels())
        self.attached = AttachedSandboxes(self.lifetime)
        self.background = BackgroundTasks()

    @property
    def channels(self) -> Channels:
        return self.containers.channels

    def _channels(self) -> Channels:
        site = self.requests.relays
        if site is None:
            return SharedDirectory(self.channel_root, self.requests.threads.requests)
        return Relays(self.requests, self.instance, site, self.setup.runtime)

    def new_suffix(self) -> str:
        return secrets.token_hex(4)

    def record(self, owner: Owner, note: Note, state: State, reason: str, *, observed: bool = False) -> None:
        self.on_transition(Transition(*owner, note.sandbox, state, reason, note.thread, observed))

    def note(self, spec: SandboxSpec, sandbox_id: str, made: str, pooled: str) -> Note:
        """Return the note of a sandbox that is made now. `pooled` has its files; "" for the thread's own volume."""
        created_s = self.lifetime.clock()
        return Note(sandbox_id, made, spec.thread, spec.image, spec.runtime, created_s=created_s, held=pooled)

    # --- the gate of a thread's lock; the claims of dead processes are undone there ---

    @asynccontextmanager
    async def gate(self, owner: Owner) -> AsyncIterator[Gate | None]:
        """Be behind the gate of an owner's sandbox as enter_existing() is; its lock is closed at the end."""
        gate = await self.enter_existing(owner)
        try:
            yield gate
        finally:
            if gate is not None:
                gate.lock.close()

    async def enter_existing(self, owner: Owner) -> Gate | None:
        """Enter the gate of an owner's sandbox, which is there or is being made; None for none.

        What a process left that died during a claim is removed.
        """
        found = await self.locks.enter_existing(owner)
        if found is None:
            return None
        lock, note = found
        if not note.unchecked:
            return Gate(owner, lock, note)
        with closing(lock):
            await self.unclaim(owner, note.sandbox)
            lock.retire()
        self.record(owner, note, "removed", CLAIM_LOST)
        return None

    async def unclaim(self, owner: Owner, pooled: str) -> None:
        """Remove a pooled sandbox whose claim was not finished, behind the gate of the thread that it was meant for."""
        await self.containers.remove(pooled)
        await self.claims.give_back(owner, pooled)
