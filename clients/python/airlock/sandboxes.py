"""Sandboxes and snapshots in the Python client."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airlock.messages import Fields, reader, record
from airlock.v1 import sandbox_service_pb2 as pb
from airlock.wire import Wire


@dataclass(frozen=True)
class Sandbox:
    """A container with a thread's workspace. `calls` counts its active calls on the gateway that answered.

    `state` is creating, running, idle_stopped, failed or removed. Unless it is used, an idle one will be stopped at
    `stops_at` and a stopped one removed at `removes_at`.
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
    """Disk usage of files; more than `used_bytes` if `partial`. `limit_bytes` is None if unknown."""

    used_bytes: int
    partial: bool
    limit_bytes: int | None


@dataclass(frozen=True)
class SandboxStats:
    """Resource usage of a sandbox. None means unknown.

    `cpu_s` is its processor time so far, `cpus` the number of processors it used since the previous reading. Memory
    includes the files in /tmp. `calls` counts its active calls on the gateway that answered.
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
    """A state change of a sandbox: creating, running, idle_stopped, failed or removed. `reason` is for people.

    Later transitions have greater ids.
    """

    thread: str
    sandbox_id: str
    state: str
    reason: str
    at: datetime
    engine: str
    id: int


@dataclass(frozen=True)
class Snapshot:
    """Saved files of a thread, which had `messages` messages by then and the active run `run_id`, if any.

    `stored_bytes` is what it added on the gateway's disk. `skipped` devices, pipes and sockets are not in it;
    `stripped` entries lost setuid, setgid or sticky. `kind` is why it was taken: asked, step, run or fork. `step` is
    the last step of the run that it includes, 0 if it was not taken between steps.
    """

    id: str
    thread: str
    created_at: datetime
    created_by: str
    comment: str
    run_id: str
    messages: int
    files: int
    size_bytes: int
    stored_bytes: int
    skipped: int
    stripped: int
    kind: str = "asked"
    step: int = 0


@dataclass(frozen=True)
class Fork:
    """A copy of the thread `of_thread`, from the point that the other fields name as in a Snapshot."""

    thread: str
    of_thread: str
    snapshot_id: str
    run_id: str
    step: int
    messages: int


_sandbox, _transition, _snapshot = reader(Sandbox), reader(SandboxTransition), reader(Snapshot)


class SandboxCalls(Wire):
    """The calls of SandboxService."""

    def sandboxes(self, *, runtime: str = "", image: str = "", state: str = "") -> AsyncIterator[Sandbox]:
        """Yield the tenant's sandboxes by id; `runtime` (runc, runsc), `image` (of the policy) and `state` filter."""
        wanted: Fields = {"runtime": runtime, "image": image, "state": state or 0}
        return self._listed(_sandbox, pb.ListSandboxesRequest, "sandboxes", **wanted)

    def sandbox_transitions(self, *, thread: str | None = None) -> AsyncIterator[SandboxTransition]:
        """Yield the transitions of the tenant's sandboxes, or of one thread's, newest first. NotFound."""
        return self._listed(_transition, pb.ListSandboxTransitionsRequest, "transitions", thread=thread)

    async def watch_sandbox_transitions(
        self, *, thread: str | None = None, after_id: int | None = None
    ) -> AsyncIterator[SandboxTransition]:
        """Yield the transitions of the tenant's sandboxes, or of one thread's, as they happen, without end.

        Starts after an id, 0 for all transitions; without an id, only new ones.
        """
        if after_id is None:
            after_id = 0
            async for newest in self.sandbox_transitions():
                after_id = newest.id
                break

        asked: Fields = {"thread": thread, "after_id": after_id}
        async for said in self._resumed(pb.WatchSandboxTransitionsRequest, asked):
            if said.HasField("transition"):
                yield _transition(said.transition)
                asked["after_id"] = said.transition.id

    async def get_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread in any state. Raises NotFound."""
        return _sandbox((await self._ask(pb.GetSandboxRequest, thread=thread)).sandbox)

    async def stop_sandbox(self, thread: str) -> Sandbox:
        """Stop the sandbox of a thread with everything in it and return its new state. Its files stay.

        The thread's next call, or resume_sandbox(), starts it again. A stopped one is returned as it is; one that must
        not stay is `removed`. Raises NotFound, and SandboxBusy during a call in it on any gateway.
        """
        return _sandbox((await self._ask(pb.StopSandboxRequest, thread=thread)).sandbox)

    async def create_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, created before its first call if there is none; it is ready by then."""
        return _sandbox((await self._ask(pb.CreateSandboxRequest, thread=thread)).sandbox)

    async def resume_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, started again if it was stopped. Raises NotFound."""
        return _sandbox((await self._ask(pb.ResumeSandboxRequest, thread=thread)).sandbox)

    async def delete_sandbox(self, thread: str) -> Sandbox | None:
        """Delete the sandbox of a thread and its files; return the sandbox as it was, None if there was none.

        The key needs the scope `files`. Raises NotFound if there is nothing, also because an answer was lost and it is
        already deleted; SandboxBusy during a call in it, and ThreadBusy during a run of the thread.
        """
        answer = await self._ask(pb.DeleteSandboxRequest, thread=thread)
        return _sandbox(answer.sandbox) if answer.HasField("sandbox") else None

    async def get_sandbox_stats(self, thread: str) -> SandboxStats:
        """Return the resource usage of a thread's sandbox. Raises NotFound if none is running."""
        return record(SandboxStats, (await self._ask(pb.GetSandboxStatsRequest, thread=thread)).stats)

    async def watch_sandbox_stats(
        self, thread: str | None = None, *, interval_s: float = 2.0, readings: int = 0
    ) -> AsyncIterator[Sequence[SandboxStats]]:
        """Yield the resource usage of the tenant's sandboxes, or of a thread's, every `interval_s`, 0.5 to 60.

        Ends after so many `readings`, 0 for never. Raises NotFound if the thread has no sandbox at the start.
        """
        asked: Fields = {"thread": thread, "interval_ms": round(interval_s * 1000), "readings": readings}
        async for reading in self._resumed(pb.WatchSandboxStatsRequest, asked, patient=False):
            yield [record(SandboxStats, one) for one in reading.stats]
            if asked["readings"]:
                asked["readings"] -= 1
                if not asked["readings"]:
                    return

    async def create_snapshot(self, thread: str, *, comment: str = "", request_id: str = "") -> Snapshot:
        """Save the current files of a thread.

        Raises NotFound, QuotaExceeded, TooLarge, NoSpace, and InProgress while another of the tenant is taken.
        """
        asked: Fields = {"thread": thread, "comment": comment, "request_id": request_id}
        return _snapshot((await self._ask(pb.CreateSnapshotRequest, **asked)).snapshot)

    def snapshots(self, *, thread: str = "") -> AsyncIterator[Snapshot]:
        """Yield the tenant's snapshots, or those of a thread, newest first. NotFound if there is neither."""
        return self._listed(_snapshot, pb.ListSnapshotsRequest, "snapshots", thread=thread)

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """Return a snapshot. Raises NotFound."""
        return _snapshot((await self._ask(pb.GetSnapshotRequest, snapshot_id=snapshot_id)).snapshot)

    async def delete_snapshot(self, snapshot_id: str) -> Snapshot:
        """Delete a snapshot and return it. Raises NotFound, also if an answer was lost and it is already deleted."""
        return _snapshot((await self._ask(pb.DeleteSnapshotRequest, snapshot_id=snapshot_id)).snapshot)

    async def restore_snapshot(self, snapshot_id: str, *, thread: str = "", request_id: str = "") -> str:
        """Replace all files of a thread, by default the snapshot's own, with a snapshot's; return the thread's name.

        The thread's sandbox is removed with everything in it. Raises NotFound, ThreadBusy during a run or a call in the
        thread, TooLarge, Unavailable.
        """
        asked: Fields = {"snapshot_id": snapshot_id, "thread": thread, "request_id": request_id}
        return str((await self._ask(pb.RestoreSnapshotRequest, **asked)).thread)

    async def fork_thread(
        self,
        thread: str,
        new_thread: str,
        *,
        run_id: str = "",
        step: int | None = None,
        snapshot_id: str = "",
        request_id: str = "",
    ) -> Fork:
        """Copy a thread with its messages, metadata and files at the end of a run or its `step`, a snapshot, or now.

        The key needs the scopes files and run. Raises NotFound, Conflict if `new_thread` exists, WorkspaceNotSaved for
        a step whose files were not saved, ThreadBusy, QuotaExceeded and TooLarge.
        """
        point: Fields = {"run_id": run_id, "step": step, "snapshot_id": snapshot_id, "request_id": request_id}
        return record(Fork, await self._ask(pb.ForkThreadRequest, thread=thread, new_thread=new_thread, **point))
