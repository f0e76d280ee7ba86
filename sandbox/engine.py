"""The Engine protocol: who makes sandboxes.

A sandbox belongs to one tenant and one thread. Its life: create() -> running -> remove(), and between, as often as it
is idle, stop_idle() -> stopped -> create() -> running. Its workspace outlives it: a sandbox made again for the same
tenant and thread finds the same files, until remove_workspace().

    engine = DockerEngine(...)                   # or MemoryEngine(): no Docker, no walls, for tests and development
    sandbox = await engine.create(spec)          # started, said hello, posture verified
    result = await sandbox.shell.execute("true", timeout_s=5, call_id="c1", ...)
    await engine.remove(sandbox.id)

A gateway's next process may find sandboxes that the one before left running, for it was killed or told to keep them:

    for left in await engine.reconcile(): ...    # alive; what was dead is removed
    sandbox = await engine.create(spec)          # the one that was left, if it was made for the very same spec
    await engine.close(keep_sandboxes=True)      # left for the next process

Several processes of one instance may use an engine at the same time. A thread then has one sandbox still: create()
finds another process's, each talks to it over connections of its own, and remove() leaves it to the last that has it.

Concerns such as pooling, limits and metrics are engines around an engine. Every engine passes tests/conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sandbox.health import Health
from sandbox.protocols import FileSystem, Processes, Shell
from sandbox.transition import State
from sandbox.usage import Usage
from sandbox.v1.channel_pb2 import Posture
from sandbox.workspace_archive import Contents

Saved = TypeVar("Saved")


@dataclass(frozen=True)
class SandboxLimits:
    """What a sandbox may use; all enforced by the kernel unless said otherwise.

    The kernel holds `workspace_bytes` where the engine's disk has project quotas, and for each file. Elsewhere the
    daemon does, as it does `workspace_files` (sandbox/daemon/disk_watch.py); 0 is no limit of files. While less than
    `disk_reserve_bytes` is free on the engine's disk nothing in the sandbox may grow; that is the operator's, the same
    for all.
    """

    memory_bytes: int = 1024 * 1024 * 1024
    cpus: float = 1.0
    pids: int = 512
    workspace_bytes: int = 2 * 1024 * 1024 * 1024
    workspace_files: int = 500_000
    disk_reserve_bytes: int = 0
    tmp_bytes: int = 256 * 1024 * 1024
    open_files: int = 4096


@dataclass(frozen=True)
class SandboxSpec:
    """What to make. `tenant` and `thread` own it; names in Docker are made from their hash, never from their text."""

    tenant: str
    thread: str
    image: str
    runtime: str = "runc"
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    env: Mapping[str, str] = field(default_factory=dict)
    # Whether the file calls refuse a file that has more than one name: where a policy tells paths apart, they must.
    refuse_hard_links: bool = False
    # How long it may be idle before it is stopped, None for as long as any; no two specs differ by it.
    idle_timeout_s: float | None = field(default=None, compare=False)
    # Why there may be no sandbox of this image, in words for who asked; image_gate.py refuses it.
    refused: str = ""


class Sandbox(Protocol):
    """A running sandbox."""

    @property
    def id(self) -> str: ...
    @property
    def spec(self) -> SandboxSpec: ...
    @property
    def posture(self) -> Posture:
        """What the kernel said of it when it came up."""
        ...

    @property
    def outdated(self) -> bool:
        """Whether it was made in another way than its spec says, and lent because others have calls in it."""
        ...

    ended_processes: int
    """How many background processes ended when it was last stopped for being idle; whoever has said so makes it 0."""

    @property
    def files(self) -> FileSystem: ...
    @property
    def shell(self) -> Shell: ...
    @property
    def processes(self) -> Processes:
        """Its background processes."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its daemon has kept the protocol so far; a sandbox that is not alive must be replaced."""
        ...

    def borrow(self) -> bool:
        """Begin a use; False when another process removed the sandbox, which is not alive then."""
        ...

    def give_back(self) -> None:
        """End a use."""
        ...

    async def health(self) -> Health:
        """Return what its daemon says of itself; raises DaemonLost."""
        ...

    async def ping(self) -> bool:
        """Return whether the daemon answers within a second."""
        ...


@dataclass(frozen=True)
class LeftSandbox:
    """A sandbox that an earlier process of the same gateway left running, until it is asked for or goes idle.

    Whose it is, in the digests of owner_of(): the engine is told no more, so no more is known.
    """

    id: str
    tenant: str
    thread: str


@dataclass(frozen=True)
class LiveSandbox:
    """A sandbox as lists show it, whichever process made it; times are in seconds since 1970.

    `since_s` is when nobody used it any more, or when it was stopped; None while calls are in it, or it is being made.
    """

    id: str
    thread: str
    image: str
    runtime: str
    created_s: float
    state: State = "running"
    since_s: float | None = None


class Engine(Protocol):
    """Makes and removes sandboxes for one gateway instance. Raises SandboxError subclasses."""

    # --- for whoever puts a gateway together: which engine it is, and that it can work ---

    async def id(self) -> str:
        """Return what tells this engine from others: workspaces are on one of them."""
        ...

    async def prepare(self) -> None:
        """Make ready what every sandbox needs; raises SandboxError when none could be made.

        create() does it too. Asked early, it says at the start what would fail the first call.
        """
        ...

    # --- for the keeper, which lends one sandbox to each thread ---

    async def reconcile(self) -> Sequence[LeftSandbox]:
        """Return the sandboxes that an earlier process left alive and of this release, the newest first.

        There is one for each tenant and thread. create() takes one over when it is asked for the same, remove()
        removes it. Every other sandbox that an earlier process left is removed; workspaces always stay. What this
        process or another one that lives has is not touched.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox: started, greeted, its posture verified; raises SandboxError when there can be none.

        One of the same tenant and thread that lives is taken, another process's too, if it was made in the very same
        way; else it is replaced, unless calls are under way in it: then it is taken, `outdated`. A creation that fails
        or is cancelled leaves nothing, but for what it was about to take over.
        """
        ...

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        """Return the living sandbox of the spec's tenant and thread, however it was made; None where there is none."""
        ...

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether the spec's tenant and thread seem to have a sandbox, by a look that asks no engine."""
        ...

    def stopped(self, spec: SandboxSpec) -> str | None:
        """Return the id of what is stopped of the spec's tenant and thread, by a look that asks no engine."""
        ...

    def stopped_count(self) -> int:
        """Return how many sandboxes are stopped, of all processes, by a look that asks no engine, from any thread."""
        ...

    def owners(self) -> Sequence[tuple[str, str]]:
        """Return whose sandboxes there are or are being made, whichever process does: owner_of() of each.

        Cheap and a moment old. The one that was used longest ago comes first.
        """
        ...

    async def stop(self, tenant: str, thread: str) -> LiveSandbox | None:
        """Stop the sandbox of a thread, whichever process has it, and return it as it is then; None for none.

        As stop_idle() does it, and so it comes back. One that is stopped already is returned as it is, one that cannot
        be stopped is removed. SandboxBusy while calls are under way in it.
        """
        ...

    async def stop_idle(self, sandbox_id: str) -> bool:
        """Stop a sandbox that nobody uses, for create() to start again: its files stay, its memory is free.

        What ran in it ends and /tmp is empty then. One that another process has is only let go of, one that cannot be
        stopped is removed; return whether it is stopped. None is no error. Stopped, it does not live: neither find()
        nor has(), owners() or live() know of it.
        """
        ...

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        """Remove what is stopped for `timeout_s`, or past `limit` of all processes; return how many sandboxes went.

        Past the limit it is the tenant with the most that loses its longest stopped one.
        """
        ...

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        """Remove the sandbox that was used longest ago and is not in use, whichever process has it.

        With `stop` it is stopped, as stop() does it. `tenant`, a digest, narrows the choice. False when all are in use.
        """
        ...

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox, not its workspace; one that another process has is only let go of. None is no error."""
        ...

    # --- for lists: what a tenant, or the gateway itself, is shown ---

    async def live(self, tenant: str) -> Sequence[LiveSandbox]:
        """Return a tenant's sandboxes that live, whichever process made them, by id."""
        ...

    async def listed(self, tenant: str) -> Sequence[LiveSandbox]:
        """Return a tenant's sandboxes that live, are stopped, being made, or dead and not removed yet, by id."""
        ...

    async def usage(self, sandbox: LiveSandbox) -> Usage | None:
        """Return what a sandbox uses now, whichever process made it; None where it is gone."""
        ...

    async def owned(self) -> Sequence[str]:
        """Return the ids of the sandboxes of this gateway instance, alive or not, whichever process made them."""
        ...

    # --- for who takes over the calls of a process that is lost ---

    async def end_calls(self, tenant: str, thread: str) -> bool:
        """Remove the sandbox of a thread if calls are under way in it, whoever's; return whether there were any.

        For calls of a process that is lost and may live: what they had still to do in the sandbox is not done.
        """
        ...

    # --- for snapshots ---

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], Saved]) -> Saved | None:
        """Return what `take`, in a thread, makes of a thread's files, a sandbox or none living; None for no files.

        What is written meanwhile is in it as it was at some moment. ArchiveBroken where that cannot be had,
        SandboxBusy while the workspace is saved or replaced already, TooManyCreations where too many wait for that.
        """
        ...

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        """Have what `give`, called in a thread, yields in the place of a thread's files; its sandbox is removed.

        With nothing changed NoSpace where so many bytes would leave less than the reserve of the engine's disk, and
        SandboxBusy while calls are under way in it; WorkspaceIncomplete when it went wrong after the old files were
        removed. What `give` raises is raised, as the cause of that. TooManyCreations where too many wait already.
        """
        ...

    # --- for who removes on demand, and erasure: of a thread, of a tenant ---

    async def remove_of(self, tenant: str, thread: str) -> LiveSandbox | None:
        """Remove the sandbox of a thread, whichever process has it, and return it as it was; None where there is none.

        One that is stopped or dead goes, too. SandboxBusy while calls are under way in it.
        """
        ...

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good and return whether there were any; its sandbox must be gone."""
        ...

    async def remove_all_of(self, tenant: str) -> int:
        """Remove a tenant's sandboxes, busy ones too, and its files in all threads; return how many threads had some.

        For a tenant that is deleted: what nobody knows the thread of goes, too.
        """
        ...

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `volumes` and `containers` of a tenant the engine has, whichever process made them."""
        ...

    # --- for the end of a gateway ---

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this gateway instance for good, unless another process of it serves."""
        ...

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove every sandbox that no other process has, and let go of the engine. Closing again is no error.

        With `keep_sandboxes` they live on, for the next process of this instance to take over.
        """
        ...
