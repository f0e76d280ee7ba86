"""`airlock sandbox snapshot`, `snapshots`, `restore`, `fork`: a thread's files, kept, put back, and made another's."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Address, Json, Key, err, fail, out, print_json
from gateway.cli.terminal import run_client as run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.snapshots import Fork, Snapshot

_MIB = 1024 * 1024
Id = Annotated[str, typer.Argument(help="Id of the snapshot.")]


def snapshot(
    *,
    thread: Annotated[str, typer.Argument(help="Thread whose files are kept.")] = "default",
    comment: Annotated[str, typer.Option(help="For whoever looks at it later.")] = "",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Keep the files of a thread as they are now."""

    async def work() -> Snapshot:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.create_snapshot(thread, comment=comment)

    with SlowWork(f"keeping the files of thread {thread}"):
        found = run(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
        return
    said = f"{found.id}: {found.files} files, {found.size_bytes:,} bytes"
    if found.skipped:
        said += f"; {found.skipped} devices, pipes and sockets are not in it"
    if found.stripped:
        said += f"; {found.stripped} entries lost setuid, setgid or sticky"
    err.print(said, markup=False)


def snapshots(
    *,
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    delete: Annotated[str, typer.Option(help="Remove the snapshot of this id for good, instead.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before one is removed.")] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List snapshots, the newest first, or remove one."""

    async def work() -> Sequence[Snapshot]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            if delete:
                return [await airlock.delete_snapshot(delete)]
            return [one async for one in airlock.snapshots(thread=thread)]

    if delete and thread:
        fail("--thread and --delete do not go together: an id says which one it is", EXIT_USAGE, as_json=as_json)
    if delete and not yes:
        if as_json:
            fail("nobody can be asked with --json: say --yes", EXIT_USAGE, as_json=True)
        typer.confirm(f"Remove snapshot {delete} for good?", abort=True, err=True)
    found = run(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found[0]) if delete else {"snapshots": [_as_json(one) for one in found]})
    elif delete:
        err.print(f"removed {found[0].id}", markup=False)
    else:
        _show(found)


def restore(
    *,
    snapshot_id: Id,
    thread: Annotated[str, typer.Option(help="Thread that gets the files; its own where none is named.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Have a snapshot in the place of all files of a thread."""

    async def work() -> str:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.restore_snapshot(snapshot_id, thread=thread)

    if not yes:
        if as_json:
            fail("nobody can be asked with --json: say --yes", EXIT_USAGE, as_json=True)
        whose = f"thread {thread}" if thread else "the snapshot's own thread"
        typer.confirm(f"All files of {whose} are replaced, and what runs there ends. Go on?", abort=True, err=True)
    with SlowWork(f"restoring {snapshot_id}"):
        restored = run(work(), as_json=as_json)
    if as_json:
        print_json({"snapshot": snapshot_id, "thread": restored})
    else:
        err.print(f"thread {restored} has the files of {snapshot_id}", markup=False)


def fork(
    *,
    thread: Annotated[str, typer.Argument(help="Thread that is forked.")],
    new_thread: Annotated[str, typer.Argument(help="Name of the thread that is made of it.")],
    run_id: Annotated[str, typer.Option("--run", help="At the end of this run, or after one of its steps.")] = "",
    step: Annotated[int | None, typer.Option(min=1, help="After this step of the run.")] = None,
    snapshot: Annotated[str, typer.Option(help="Where this snapshot of the thread was taken.")] = "",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Make a thread of another, with what was said in it and its files: as they are now, or were at a run's step."""

    async def work() -> Fork:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.fork_thread(thread, new_thread, run_id=run_id, step=step, snapshot_id=snapshot)

    with SlowWork(f"forking thread {thread}"):
        made = run(work(), as_json=as_json)
    if as_json:
        print_json(asdict(made))
        return
    at = f" after step {made.step} of {made.run_id}" if made.step else ""
    err.print(f"thread {made.thread} has {made.messages} messages and the files of {made.of_thread}{at}", markup=False)


def _show(found: Sequence[Snapshot]) -> None:
    rows = []
    for one in found:
        made = one.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
        size = f"{one.size_bytes / _MIB:.1f}"
        of = f"step {one.step}, {one.run_id}" if one.step else one.kind
        rows.append((one.id, one.thread, made, of, str(one.files), size, one.comment))
    out.print(Rows(("id", "thread", "made", "of", "files", "MiB", "comment"), rows))


def _as_json(one: Snapshot) -> dict[str, Any]:
    return {**asdict(one), "created_at": one.created_at.isoformat()}
