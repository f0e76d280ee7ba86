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

An engine is the sum of small protocols, and who needs a part takes the part. All raise SandboxError subclasses.

    Lending      the keeper (sandbox_keeper.py): make, find, stop and remove one for each thread
    Listing      lists and live usage
    Workspaces   snapshots: a thread's files as a whole
    Removal      erasure: of a thread, of a tenant

Concerns such as pooling, limits and metrics are engines around an engine (engine_decorator.py). Every engine passes
tests/conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from sandbox.engines.workspace_archive import Contents
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import UNUSED
from sandbox.usage import Usage

Saved = TypeVar("Saved")


class Identity(Protocol):
    """Which engine it is."""

    async def id(self) -> str:
        """Return what tells this engine from others: workspaces are on one of them."""
        ...


class Register(Protocol):
    """What is known of sandboxes by a look that asks no engine: cheap, and a moment old."""

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether the spec's tenant and thread seem to have a sandbox."""
        ...

    def stopped(self, spec: SandboxSpec) -> str | None:
        """Return the id of what is stopped of the spec's tenant and thread."""
        ...

    def stopped_count(self) -> int:
        """Return how many sandboxes are stopped, of all processes; may be called from any thread."""
        ...

    def owners(self) -> Sequence[tuple[str, str]]:
        """Return whose sandboxes there are or are being made, whichever process does: owner_of() of each.

        The one that was used longest ago comes first.
        """
        ...


class Ending(Protocol):
    """Ends a thread's sandbox, whichever process has it; its files stay."""

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop the sandbox of a thread, whichever process has it, and return it as it is then; None for none.

        As stop_idle() does it, and so it comes back. One that is stopped already is returned as it is, one that cannot
        be stopped is removed. SandboxBusy while calls are under way in it.
        """
        ...

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Remove the sandbox of a thread, whichever process has it, and return it as it was; None where there is none.

        One that is stopped or dead goes, too. SandboxBusy while calls are under way in it.
        """
        ...

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        """Remove the sandbox of a thread if calls are under way in it, whoever's; return whether there were any.

        For calls of a process that is lost and may live: what they had still to do in the sandbox is not done. With
        `overdue` only where the sandbox is past its lifetime.
        """
        ...


class Lending(Register, Ending, Protocol):
    """For the keeper, which lends one sandbox to each thread: makes them, finds them and lets them go."""

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

    async def stop_idle(self, sandbox_id: str) -> bool:
        """Stop a sandbox that nobody uses, for create() to start again: its files stay, its memory is free.

        What ran in it ends and /tmp is empty then. One that another process has is only let go of, one that cannot be
        stopped is removed; return whether it is stopped. None is no error. Stopped, it does not live: find(), has()
        and owners() do not know of it.
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

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        """Remove a sandbox, not its workspace; one that another process has is only let go of. None is no error.

        `reason` is for the history, where the engine knows of no better one: that it was lost, or is outdated.
        """
        ...

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this gateway instance for good, unless another process of it serves."""
        ...


class Listing(Identity, Register, Protocol):
    """For lists: what a tenant, or the gateway itself, is shown."""

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        """Return a tenant's sandboxes that live, are stopped, being made, or dead and not removed yet, by id."""
        ...

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        """Return what a sandbox uses now, whichever process made it; None where it is gone."""
        ...

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this gateway instance runs, by its id, whichever process made it."""
        ...


class Workspaces(Protocol):
    """For snapshots: a thread's files as a whole."""

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], Saved]) -> Saved | None:
        """Return what `take`, in a thread, makes of a thread's files, a sandbox or none living; None for no files.

        What is written meanwhile is in it as it was at some moment. ArchiveBroken where that cannot be had,
        SandboxBusy while the workspace is saved or replaced already, TooManyWaiting where too many wait for that.
        """
        ...

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        """Have what `give`, called in a thread, yields in the place of a thread's files; its sandbox is removed.

        With nothing changed NoSpace where so many bytes would leave less than the reserve of the engine's disk, and
        SandboxBusy while calls are under way in it; what `give` raises is raised, and the old files stay.
        WorkspaceIncomplete when it went wrong after the old files began to be removed. TooManyWaiting where too many
        wait already.
        """
        ...


class Removal(Ending, Protocol):
    """For who removes on demand, and erasure: all that there is of a thread, or of a tenant."""

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good and return whether there were any; its sandbox must be gone.

        Raises WorkspaceIncomplete where some of them may be gone; with any other error none is.
        """
        ...

    async def remove_all_of(self, tenant: str) -> int:
        """Remove a tenant's sandboxes, busy ones too, and its files in all threads; return how many threads had some.

        For a tenant that is deleted: what nobody knows the thread of goes, too.
        """
        ...

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `volumes` and `containers` of a tenant the engine has, whichever process made them."""
        ...


class Engine(Lending, Listing, Workspaces, Removal, Protocol):
    """Makes and removes sandboxes for one gateway instance: all of the above, for whoever puts a gateway together."""

    async def prepare(self) -> None:
        """Make ready what every sandbox needs; raises SandboxError when none could be made.

        create() does it too. Asked early, it says at the start what would fail the first call.
        """
        ...

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove every sandbox that no other process has, and let go of the engine. Closing again is no error.

        With `keep_sandboxes` they live on, for the next process of this instance to take over.
        """
        ...


def is_new(register: Register, spec: SandboxSpec) -> bool:
    """Return whether create() would make a sandbox, for the spec's tenant and thread have none, nor a stopped one."""
    return not register.has(spec) and register.stopped(spec) is None
