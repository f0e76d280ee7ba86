"""Sandboxes in the Python client: listing, usage and history; creating, stopping and deleting one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.client.messages import enum_name, enum_number, message, record
from gateway.client.wire import Wire
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb


@dataclass(frozen=True)
class Sandbox:
    """A container with a thread's workspace. `calls` are under way in it on the gateway that answered.

    `state` is creating, running, idle_stopped, failed, or removed. An idle one has `idle_since` and will
    be stopped at `stops_at`; a stopped one has `stopped_since` and will be removed at `removes_at`, unless it is used.
    """

    id: str
    thread: str
    image: str
    runtime: str
    created_at: datetime
    calls: int
    state: str = "running"
    idle_since: datetime | None = None
    stops_at: datetime | None = None
    stopped_since: datetime | None = None
    removes_at: datetime | None = None


@dataclass(frozen=True)
class DiskStats:
    """What files take of the disk, in bytes; `partial`: there are more. `limit_bytes` is None where unknown."""

    used_bytes: int
    partial: bool
    limit_bytes: int | None


@dataclass(frozen=True)
class SandboxStats:
    """What a sandbox uses. None is unknown, and never zero.

    `cpu_s` is processor time since it began, `cpus` how many processors it used since the reading before. The memory
    has the files in /tmp in it. `calls` are under way in it on the gateway that answered.
    """

    id: str
    thread: str
    runtime: str
    calls: int
    cpu_s: float | None
    cpus: float | None
    cpus_limit: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    memory_peak_bytes: int | None
    pids: int | None
    pids_limit: int | None
    workspace: DiskStats | None
    tmp: DiskStats | None


@dataclass(frozen=True)
class SandboxTransition:
    """What became of a sandbox: creating, running, idle_stopped, failed or removed. `reason` is for people.

    What became later has a greater `id`.
    """

    thread: str
    sandbox_id: str
    state: str
    reason: str
    at: datetime
    engine: str
    id: int


class SandboxCalls(Wire):
    """The calls of SandboxService."""

    @property
    def _sandboxes(self) -> Any:
        return self._stub(grpc_pb.SandboxServiceStub)

    async def sandboxes(self, *, runtime: str = "", image: str = "", state: str = "") -> AsyncIterator[Sandbox]:
        """Yield the tenant's sandboxes, running, stopped or being made, by id, a page at a time as it is asked for.

        Those of a `runtime` (runc, runsc), of an `image`, as the policy names it, or in a `state`, where one is given.
        """
        number = enum_number(pb.SandboxState, state, "state") if state else 0
        wanted: dict[str, Any] = {"runtime": runtime, "image": image, "state": number}
        async for one in self._listed(self._sandboxes.ListSandboxes, pb.ListSandboxesRequest, "sandboxes", **wanted):
            yield _sandbox(one)

    async def sandbox_transitions(self, *, thread: str | None = None) -> AsyncIterator[SandboxTransition]:
        """Yield what became of the tenant's sandboxes, or of one thread's, the newest first, a page at a time.

        Raises NotFound where there is no such thread.
        """
        method, kind = self._sandboxes.ListSandboxTransitions, pb.ListSandboxTransitionsRequest
        async for one in self._listed(method, kind, "transitions", thread=thread):
            yield _transition(one)

    async def watch_sandbox_transitions(
        self, *, thread: str | None = None, after_id: int | None = None
    ) -> AsyncIterator[SandboxTransition]:
        """Yield what becomes of the tenant's sandboxes, or of one thread's, as it happens, without end.

        Starts after an id, 0 for all transitions; without an id, only new ones. Where the connection breaks, or the
        gateway is restarted, it goes on after the last that came, as long as the client's Retry says.
        """
        if after_id is None:
            after_id = 0
            async for newest in self.sandbox_transitions():
                after_id = newest.id
                break

        def request() -> pb.WatchSandboxTransitionsRequest:
            return message(pb.WatchSandboxTransitionsRequest, thread=thread, after_id=after_id)

        async for said in self._resumed(self._sandboxes.WatchSandboxTransitions, request):
            if said.HasField("transition"):
                one = _transition(said.transition)
                yield one
                after_id = one.id

    async def get_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, in whatever state. Raises NotFound where there is none."""
        return _sandbox((await self._ask(self._sandboxes.GetSandbox, pb.GetSandboxRequest, thread=thread)).sandbox)

    async def stop_sandbox(self, thread: str) -> Sandbox:
        """Stop the sandbox of a thread with all that runs in it, and return it as it is then. Its files stay.

        The thread's next call, or resume_sandbox(), starts it again. One that is stopped already is returned as it is,
        one that is not to stay is `removed`. Raises NotFound where there is none, and SandboxBusy while a call is under
        way in it, on whichever gateway.
        """
        return _sandbox((await self._ask(self._sandboxes.StopSandbox, pb.StopSandboxRequest, thread=thread)).sandbox)

    async def create_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, made ahead of its first call where none lives; it answers by then."""
        create = self._sandboxes.CreateSandbox
        return _sandbox((await self._ask(create, pb.CreateSandboxRequest, thread=thread)).sandbox)

    async def resume_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, started again where it was stopped.

        Raises NotFound where the thread has none, stopped or not.
        """
        resume = self._sandboxes.ResumeSandbox
        return _sandbox((await self._ask(resume, pb.ResumeSandboxRequest, thread=thread)).sandbox)

    async def delete_sandbox(self, thread: str) -> Sandbox | None:
        """Remove the sandbox of a thread and its files, for good; return the sandbox as it was, None where none was.

        The key needs the scope `files`. Raises NotFound where there is nothing, also because an answer was lost and it
        is done already; SandboxBusy while a call is under way in it, and ThreadBusy while a run is in the thread.
        """
        answer = await self._ask(self._sandboxes.DeleteSandbox, pb.DeleteSandboxRequest, thread=thread)
        return _sandbox(answer.sandbox) if answer.HasField("sandbox") else None

    async def get_sandbox_stats(self, thread: str) -> SandboxStats:
        """Return what the sandbox of a thread uses. Raises NotFound where none lives."""
        get = self._sandboxes.GetSandboxStats
        return _stats((await self._ask(get, pb.GetSandboxStatsRequest, thread=thread)).stats)

    async def watch_sandbox_stats(
        self, thread: str | None = None, *, interval_s: float = 2.0, readings: int = 0
    ) -> AsyncIterator[Sequence[SandboxStats]]:
        """Yield what all sandboxes of the tenant use, or that of a thread, every `interval_s`, 0.5 to 60.

        It ends after so many `readings`, 0 for never, and goes on over a gateway's restart as long as the Retry says.
        NotFound where the thread has no sandbox at the start.
        """
        given = 0

        def request() -> pb.WatchSandboxStatsRequest:
            left = readings - given if readings else 0
            return message(
                pb.WatchSandboxStatsRequest, thread=thread, interval_ms=round(interval_s * 1000), readings=left
            )

        async for reading in self._resumed(self._sandboxes.WatchSandboxStats, request, patient=False):
            given += 1
            yield [_stats(one) for one in reading.stats]
            if given == readings:
                return


def _sandbox(one: pb.Sandbox) -> Sandbox:
    return record(Sandbox, one, state=enum_name(pb.SandboxState, one.state))


def _transition(one: pb.SandboxTransition) -> SandboxTransition:
    return record(SandboxTransition, one, state=enum_name(pb.SandboxState, one.state))


def _stats(one: pb.SandboxStats) -> SandboxStats:
    workspace = record(DiskStats, one.workspace) if one.HasField("workspace") else None
    tmp = record(DiskStats, one.tmp) if one.HasField("tmp") else None
    return record(SandboxStats, one, workspace=workspace, tmp=tmp)
