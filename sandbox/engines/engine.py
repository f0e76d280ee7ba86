"""The Engine protocols: what makes sandboxes, lists them, and removes them.

A sandbox belongs to one tenant and one thread. Its life cycle is create() -> running -> remove(). An idle sandbox takes
a detour, as often as needed: stop_idle() -> stopped -> create() -> running. Its workspace outlives it: a new sandbox of
the same tenant and thread finds the same files, until remove_workspace().

    engine = DockerEngine(...)                   # or MemoryEngine(): no Docker, no isolation, for tests and development
    sandbox = await engine.create(spec)          # started, its daemon answered, its posture verified
    result = await sandbox.shell.execute("true", timeout_s=5, call_id="c1", ...)
    await engine.remove(sandbox.id)

A gateway's next process may find sandboxes that an earlier one left running, because it was killed or kept them:

    for left in await engine.reconcile(): ...    # alive; dead ones are removed
    sandbox = await engine.create(spec)          # the one that was left, if it was made for the same spec
    await engine.close(keep_sandboxes=True)      # left for the next process

Several processes of one instance may use an engine at the same time. A thread still has one sandbox: create() finds
another process's, each process talks to it over its own connections, and the last one to let go of it removes it.

Each caller takes the protocol that it needs. All methods raise SandboxError subclasses.

    Creator      create(): what pooling, limits and metrics decorate
    Leasing      the keeper (sandbox_keeper.py): find, stop and remove the one sandbox of each thread
    Listing      lists and live usage
    Workspaces   snapshots: a thread's files as a whole
    VolumeCopies snapshots that the engine keeps itself, where it can; not a part of Engine
    Removal      erasure of a thread or of a tenant

Pooling, limits and metrics are creators around a creator, for no other operation concerns them; the order is in
gateway/composition/sandboxes.py. Every engine passes tests/conformance.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.engines.workspace_archive import Contents
from sandbox.sandbox import LeftSandbox, ListedSandbox, Owner, Sandbox, SandboxSpec
from sandbox.transition import UNUSED
from sandbox.usage import Usage

Saved = TypeVar("Saved")


class Creator(Protocol):
    """Makes sandboxes."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the thread's sandbox: started, its daemon answered, its posture verified; else raise SandboxError.

        A living sandbox of the same tenant and thread is taken if it was made in the same way, another process's too.
        Otherwise it is replaced, unless calls are under way in it: then it is taken and `outdated`. A creation that
        fails or is cancelled leaves nothing behind, except a sandbox that it was about to take over.
        """


class Identity(Protocol):
    """Which engine it is."""

    async def id(self) -> str:
        """Return the engine's id, which says where a thread's workspace is."""


class Register(Protocol):
    """Which sandboxes there are, by a local look that asks no engine: cheap, and a moment old."""

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether the spec's tenant and thread seem to have a sandbox."""

    def stopped(self, spec: SandboxSpec) -> str | None:
        """Return the id of the stopped sandbox of the spec's tenant and thread."""

    def stopped_count(self) -> int:
        """Return how many sandboxes of all processes are stopped. Callable from any thread."""

    def owners(self) -> Sequence[Owner]:
        """Return the owner_of() each sandbox that lives or is being made, in any process.

        The sandbox that was used longest ago comes first.
        """


class Ending(Protocol):
    """Ends a thread's sandbox, whichever process has it; its files stay."""

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox and return it as it is then; None where there is none.

        It comes back as after stop_idle(). One that is stopped already is returned as it is; one that cannot be stopped
        is removed. Raises SandboxBusy while calls are under way in it.
        """

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Remove a thread's sandbox, stopped or dead ones too, and return it as it was; None where there is none.

        Raises SandboxBusy while calls are under way in it.
        """

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        """Remove a thread's sandbox if calls of any process are under way in it; return whether there were any.

        For calls of a process that is lost and may still live: nothing more of them happens in the sandbox. With
        `overdue` only if the sandbox is past its lifetime.
        """


class Leasing(Register, Ending, Protocol):
    """For the keeper, which leases one sandbox to each thread: finds sandboxes, stops and removes them."""

    async def reconcile(self) -> Sequence[LeftSandbox]:
        """Return the sandboxes that an earlier process left alive and of this release, the newest first.

        There is one for each tenant and thread. create() takes it over for the same spec, remove() removes it. Every
        other sandbox that an earlier process left is removed; workspaces stay. Sandboxes of this process or of another
        living one are left alone, and so are those on other machines that run and do not answer this process.
        """

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        """Return the living sandbox of the spec's tenant and thread, however it was made; None where there is none."""

    async def stop_idle(self, sandbox_id: str) -> bool:
        """Stop an unused sandbox, for create() to start again: its files stay, its memory is freed. None is no error.

        Its processes end and its /tmp is emptied. A sandbox that another process also has is only let go of; one that
        cannot be stopped is removed. Return whether it is stopped. A stopped sandbox does not live: find(), has() and
        owners() do not report it.
        """

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        """Remove sandboxes stopped for `timeout_s`, or past `limit` of all processes; return how many were removed.

        Past the limit, the tenant with the most loses its longest stopped one.
        """

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        """Remove the unused sandbox that was used longest ago, of any process; return False when all are in use.

        With `stop` it is stopped, as stop() does it. `tenant`, a digest, narrows the choice.
        """

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        """Remove a sandbox, not its workspace; let go of one that another process also has. None is no error.

        The history records `reason`, unless the engine knows a better one: that it was lost, or is outdated.
        """

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this gateway instance for good, unless another process of it serves."""


class Listing(Identity, Register, Protocol):
    """For lists: what a tenant, or the gateway itself, is shown."""

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        """Return a tenant's sandboxes by id: running, stopped, being made, or dead and not yet removed."""

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        """Return what a sandbox of any process uses now; None where it is gone."""

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this gateway instance runs, by its id, whichever process made it."""


class Workspaces(Protocol):
    """For snapshots: a thread's files as a whole."""

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], Saved]) -> Saved | None:
        """Return what `take`, in a worker thread, makes of a thread's files; None where it has none.

        The sandbox may run or not. A file written meanwhile is saved as it was at some moment. Raises ArchiveBroken
        where that is impossible, SandboxBusy while the workspace is already being saved or replaced, and
        TooManyWaiting.
        """

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        """Replace a thread's files by what `give`, called in a worker thread, yields; its sandbox is removed.

        With nothing changed it raises what `give` raises; NoSpace where `size_bytes` more would leave less than the
        reserve of the engine's disk; SandboxBusy while calls are under way; and TooManyWaiting. WorkspaceIncomplete
        means that it failed after the old files began to be removed.
        """


@dataclass(frozen=True)
class VolumeCopy:
    """A copy of a volume with a thread's files, which the engine keeps. `name` and `uid` are the engine's for it.

    `stored_bytes` is the size of a volume made of it, `counts` what the thread's files were just before it was taken.
    `at_rest`: nothing ran in the thread meanwhile, so it has all of that. Else what ran may have removed some.
    """

    name: str
    uid: str
    stored_bytes: int
    counts: WorkspaceCounts
    at_rest: bool = False


@dataclass(frozen=True)
class KeptCopy:
    """A copy that the engine has: of a tenant, a digest, for the snapshot of an id."""

    tenant: str
    snapshot: str
    name: str
    uid: str


class VolumeCopies(Protocol):
    """For snapshots that the engine keeps as copies of volumes; not every engine can."""

    def copies_of(self, spec: SandboxSpec) -> bool:
        """Return whether the snapshots of a thread are to be copies. Earlier ones are in any case."""

    async def volume_bytes(self, spec: SandboxSpec) -> int:
        """Return the size of the volume with a thread's files, or of the one that it would get; raises SandboxError."""

    async def copy_workspace(
        self, spec: SandboxSpec, snapshot: str, check: Callable[[WorkspaceCounts], None]
    ) -> VolumeCopy | None:
        """Copy a thread's files as they are now, for the snapshot of an id; None where it has none to copy.

        None also where its sandbox, which still runs, is one of which no copies are: save_workspace() has its files.

        All that was written before is in it, as it was at one moment. `check` may raise before anything is copied. A
        failure may leave a copy, which kept_copies() has. Raises what save_workspace() raises.
        """

    async def restore_copy(self, spec: SandboxSpec, copy: VolumeCopy) -> bool:
        """Replace a thread's files by a copy; its sandbox is removed. False, with nothing changed, if that is gone.

        The files are those that replace_workspace() would write. Raises what that raises.
        """

    async def kept_copies(self, tenant: str = "") -> Sequence[KeptCopy]:
        """Return the copies of a tenant, a digest, or of all; those that are being removed, too."""

    async def remove_copy(self, kept: KeptCopy) -> None:
        """Begin to remove a copy. None is no error."""


class Removal(Ending, Protocol):
    """For operators and erasure: removes everything of a thread, or of a tenant."""

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good and return whether there were any; its sandbox must be gone.

        Raises WorkspaceIncomplete where some of them may be gone; with any other error none is.
        """

    async def remove_all_of(self, tenant: str) -> int:
        """Remove a tenant's sandboxes, busy ones too, and all its files; return how many threads had files.

        For a tenant that is deleted: files whose thread is unknown are removed too.
        """

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `volumes` and `containers` of a tenant the engine has, whichever process made them."""


class Engine(Creator, Leasing, Listing, Workspaces, Removal, Protocol):
    """Makes and removes sandboxes for one gateway instance: all of the above, for what puts a gateway together."""

    async def prepare(self) -> None:
        """Prepare what every sandbox needs; raises SandboxError when none could be made.

        create() does it too. Called early, it reports at the start what would fail the first call.
        """

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove every sandbox that no other process has, and let go of the engine. Idempotent.

        With `keep_sandboxes` they live on, for the next process of this instance to take over.
        """


def is_new(register: Register, spec: SandboxSpec) -> bool:
    """Return whether create() would make a sandbox: the thread has neither a living one nor a stopped one."""
    return not register.has(spec) and register.stopped(spec) is None


def surplus(stopped: Sequence[tuple[float, Owner]], *, until_s: float, limit: int) -> list[Owner]:
    """Return whose sandboxes trim_stopped() removes, of those that are stopped since when, the longest first.

    They are those stopped until a time. Past the limit, the tenant with the most loses its longest stopped one: a
    tenant that leaves many threads behind costs the others none.
    """
    expired = [owner for since_s, owner in stopped if since_s <= until_s]
    left = [owner for since_s, owner in stopped if since_s > until_s]
    while len(left) > limit:
        ((most, _),) = Counter(tenant for tenant, _ in left).most_common(1)
        expired.append(next(owner for owner in left if owner[0] == most))
        left.remove(expired[-1])
    return expired
