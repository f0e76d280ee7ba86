"""`airlock sandbox snapshot`, `snapshots`, `restore`, `fork`: save, restore and copy the files of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli, OfThread, Yes
from gateway.cli.printable import local_time
from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import err, fail, out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.sandboxes import Fork, Snapshot

_MIB = 1024 * 1024
Id = Annotated[str, typer.Argument(help="Id of the snapshot.")]


async def snapshot(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Argument(help="Thread whose files to save.")] = "default",
    comment: Annotated[str, typer.Option(help="Comment to store with the snapshot.")] = "",
) -> None:
    """Save the current files of a thread."""
    with SlowWork(f"saving the files of thread {thread}"):
        made = await cli.airlock.create_snapshot(thread, comment=comment)
    cli.show(made, _show_made)


def snapshots(
    cli: GatewayCli,
    *,
    thread: OfThread = "",
    delete: Annotated[str, typer.Option(help="Delete the snapshot with this id instead of listing.")] = "",
    yes: Yes = False,
) -> None:
    """List snapshots, newest first, or delete one."""
    if delete and thread:
        fail("use only one of --thread and --delete")
    if delete:
        cli.confirm(f"Delete snapshot {delete}?", yes=yes)
        removed = cli.wait(cli.airlock.delete_snapshot(delete))
        cli.show(removed, lambda one: err.print(f"deleted {one.id}"))
        return
    found = cli.wait(_listed(cli, thread))
    cli.show({"snapshots": found}, lambda _: _show(found))


def restore(
    cli: GatewayCli,
    *,
    snapshot_id: Id,
    thread: Annotated[str, typer.Option(help="Thread to restore into; default: the snapshot's own.")] = "",
    yes: Yes = False,
) -> None:
    """Replace all files of a thread with those of a snapshot."""
    whose = f"thread {thread}" if thread else "the snapshot's own thread"
    cli.confirm(f"Replace all files of {whose} and end everything that runs there?", yes=yes)
    with SlowWork(f"restoring {snapshot_id}"):
        restored = cli.wait(cli.airlock.restore_snapshot(snapshot_id, thread=thread))
    said = f"restored {snapshot_id} into thread {restored}"
    cli.show({"snapshot": snapshot_id, "thread": restored}, lambda _: err.print(said))


async def fork(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Argument(help="Thread to fork.")],
    new_thread: Annotated[str, typer.Argument(help="Name of the new thread.")],
    run_id: Annotated[str, typer.Option("--run", help="Fork at the end of this run, or after one of its steps.")] = "",
    step: Annotated[int | None, typer.Option(min=1, help="Fork after this step of the run.")] = None,
    snapshot: Annotated[str, typer.Option(help="Fork at the point where this snapshot was taken.")] = "",
) -> None:
    """Copy a thread with its messages and files: the current ones, or those at a run, a step or a snapshot."""
    with SlowWork(f"forking thread {thread}"):
        made = await cli.airlock.fork_thread(thread, new_thread, run_id=run_id, step=step, snapshot_id=snapshot)
    cli.show(made, _show_fork)


async def _listed(cli: GatewayCli, thread: str) -> Sequence[Snapshot]:
    return [one async for one in cli.airlock.snapshots(thread=thread)]


def _show_made(made: Snapshot) -> None:
    said = f"{made.id}: {made.files} files, {made.size_bytes:,} bytes"
    if made.skipped:
        said += f"; {made.skipped} devices, pipes and sockets were skipped"
    if made.stripped:
        said += f"; {made.stripped} entries lost their setuid, setgid or sticky bit"
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
    out.print(Rows(("id", "thread", "created", "of", "files", "MiB", "comment"), rows))
