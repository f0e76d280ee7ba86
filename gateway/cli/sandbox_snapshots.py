"""`airlock sandbox snapshot`, `snapshots`, `restore`, `fork`: a thread's files, kept, put back, and made another's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli, Yes
from gateway.cli.printable import local_time
from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import err, fail, out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.snapshots import Fork, Snapshot

_MIB = 1024 * 1024
Id = Annotated[str, typer.Argument(help="Id of the snapshot.")]


async def snapshot(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Argument(help="Thread whose files are kept.")] = "default",
    comment: Annotated[str, typer.Option(help="For whoever looks at it later.")] = "",
) -> None:
    """Keep the files of a thread as they are now."""
    with SlowWork(f"keeping the files of thread {thread}"):
        made = await cli.airlock.create_snapshot(thread, comment=comment)
    cli.show(made, _show_made)


def snapshots(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    delete: Annotated[str, typer.Option(help="Remove the snapshot of this id for good, instead.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before one is removed.")] = False,
) -> None:
    """List snapshots, the newest first, or remove one."""
    if delete and thread:
        fail("--thread and --delete do not go together: an id says which one it is")
    if delete:
        cli.confirm(f"Remove snapshot {delete} for good?", yes=yes)
        removed = cli.wait(cli.airlock.delete_snapshot(delete))
        cli.show(removed, lambda one: err.print(f"removed {one.id}"))
        return
    found = cli.wait(_listed(cli, thread))
    cli.show({"snapshots": found}, lambda _: _show(found))


def restore(
    cli: GatewayCli,
    *,
    snapshot_id: Id,
    thread: Annotated[str, typer.Option(help="Thread that gets the files; its own where none is named.")] = "",
    yes: Yes = False,
) -> None:
    """Have a snapshot in the place of all files of a thread."""
    whose = f"thread {thread}" if thread else "the snapshot's own thread"
    cli.confirm(f"All files of {whose} are replaced, and what runs there ends. Go on?", yes=yes)
    with SlowWork(f"restoring {snapshot_id}"):
        restored = cli.wait(cli.airlock.restore_snapshot(snapshot_id, thread=thread))
    said = f"thread {restored} has the files of {snapshot_id}"
    cli.show({"snapshot": snapshot_id, "thread": restored}, lambda _: err.print(said))


async def fork(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Argument(help="Thread that is forked.")],
    new_thread: Annotated[str, typer.Argument(help="Name of the thread that is made of it.")],
    run_id: Annotated[str, typer.Option("--run", help="At the end of this run, or after one of its steps.")] = "",
    step: Annotated[int | None, typer.Option(min=1, help="After this step of the run.")] = None,
    snapshot: Annotated[str, typer.Option(help="Where this snapshot of the thread was taken.")] = "",
) -> None:
    """Make a thread of another, with what was said in it and its files: as they are now, or were at a run's step."""
    with SlowWork(f"forking thread {thread}"):
        made = await cli.airlock.fork_thread(thread, new_thread, run_id=run_id, step=step, snapshot_id=snapshot)
    cli.show(made, _show_fork)


async def _listed(cli: GatewayCli, thread: str) -> Sequence[Snapshot]:
    return [one async for one in cli.airlock.snapshots(thread=thread)]


def _show_made(made: Snapshot) -> None:
    said = f"{made.id}: {made.files} files, {made.size_bytes:,} bytes"
    if made.skipped:
        said += f"; {made.skipped} devices, pipes and sockets are not in it"
    if made.stripped:
        said += f"; {made.stripped} entries lost setuid, setgid or sticky"
    err.print(said)


def _show_fork(made: Fork) -> None:
    at = f" after step {made.step} of {made.run_id}" if made.step else ""
    err.print(f"thread {made.thread} has {made.messages} messages and the files of {made.of_thread}{at}")


def _show(found: Sequence[Snapshot]) -> None:
    rows = []
    for one in found:
        size = f"{one.size_bytes / _MIB:.1f}"
        of = f"step {one.step}, {one.run_id}" if one.step else one.kind
        rows.append((one.id, one.thread, local_time(one.created_at), of, str(one.files), size, one.comment))
    out.print(Rows(("id", "thread", "made", "of", "files", "MiB", "comment"), rows))
