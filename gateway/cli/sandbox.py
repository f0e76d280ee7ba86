"""`airlock sandbox`: list, inspect and manage the sandboxes of a tenant, and snapshots of their files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, OfThread, Yes, taken
from gateway.cli.forward import forward
from gateway.cli.printable import Rows, local_time
from gateway.cli.terminal import SlowWork, err, fail, out, print_json
from gateway.errors import Unavailable
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.client import DiskStats, Sandbox, SandboxStats, SandboxTransition


_MIB = 1024 * 1024
# The time between two readings from which CPU usage is computed.
_GAP_S = 0.5
_UNKNOWN = "?"
# Powers of 1,024, abbreviated to fit eight columns.
_SIZE_UNITS = ("", "K", "M", "G", "T")

app = Commands(help="Sandboxes, in which the tool calls of a thread run.")
Thread = Annotated[str, typer.Argument(help="Thread of the sandbox.")]
SnapshotId = Annotated[str, typer.Argument(help="Id of the snapshot.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    runtime: Annotated[str, typer.Option(help="Filter by runtime: runc, runsc or kata.")] = "",
    image: Annotated[str, typer.Option(help="Filter by image, as named in the policy.")] = "",
    state: Annotated[str, typer.Option(help="Filter by state: creating, running, idle_stopped or failed.")] = "",
) -> None:
    """List the sandboxes, and when idle ones will be stopped and stopped ones removed."""
    found = [one async for one in cli.airlock.sandboxes(runtime=runtime, image=image, state=state)]
    cli.show({"sandboxes": found}, lambda _: _show_sandboxes(*found))


@app.command()
async def get(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Show the sandbox of a thread."""
    cli.show(await cli.airlock.get_sandbox(thread), _show_sandboxes)


@app.command()
async def create(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Create the sandbox of a thread before its first call; an existing one is shown."""
    with SlowWork(f"creating the sandbox of thread {thread}"):
        made = await cli.airlock.create_sandbox(thread)
    cli.show(made, _show_sandboxes)


@app.command()
async def stop(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Stop the sandbox of a thread and everything in it; files stay, and the next call restarts it."""
    with SlowWork(f"stopping the sandbox of thread {thread}"):
        found = await cli.airlock.stop_sandbox(thread)
    did = "stopped" if found.state == "idle_stopped" else found.state
    cli.show(found, lambda one: err.print(f"{did} {one.id}; the files of thread {one.thread} stay"))


@app.command()
async def resume(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Start a thread's stopped sandbox before its next call."""
    with SlowWork(f"starting the sandbox of thread {thread}"):
        resumed = await cli.airlock.resume_sandbox(thread)
    cli.show(resumed, _show_sandboxes)


@app.command()
def delete(cli: GatewayCli, *, thread: Thread = "default", yes: Yes = False) -> None:
    """Delete the sandbox of a thread and its files; messages and runs stay. The key needs the scope files."""
    cli.confirm(f"Delete the sandbox of thread {thread!r} with its files?", yes=yes)
    with SlowWork(f"deleting the sandbox of thread {thread}"):
        was = cli.wait(cli.airlock.delete_sandbox(thread))
    said = f"deleted the sandbox and the files of thread {thread}"
    cli.show({"thread": thread, "sandbox": was}, lambda _: err.print(said))


@app.command()
async def history(
    cli: GatewayCli,
    *,
    thread: Annotated[str | None, typer.Option(help="Filter by thread.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new transitions until Ctrl-C.")] = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="With --follow: start after the transition with this id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number to list, newest first.")] = 100,
) -> None:
    """List state transitions of sandboxes and their reasons, newest first: created, stopped, resumed, removed.

    With --follow, print new ones as they happen; with --json, one per line.
    """
    if after is not None and not follow:
        fail("--after requires --follow")
    if follow:
        await _follow(cli, thread, after)
        return
    found = await taken(cli.airlock.sandbox_transitions(thread=thread), limit)
    names = ("at", "thread", "sandbox", "state", "reason")
    cli.show({"transitions": found}, Rows(names, [_transition(one) for one in found]))


async def _follow(cli: GatewayCli, thread: str | None, after: int | None) -> None:
    last = after
    try:
        async for one in cli.airlock.watch_sandbox_transitions(thread=thread, after_id=after):
            last = one.id
            cli.show(one, lambda one: out.print(printable("  ".join(_transition(one)))))
    except Unavailable as error:
        if last is None:
            raise
        raise Unavailable(f"{error}; continue with --follow --after {last}", **error.details) from error


def _transition(one: SandboxTransition) -> tuple[str, ...]:
    return local_time(one.at, seconds=True), one.thread, one.sandbox_id, one.state, one.reason


def _show_sandboxes(*found: Sandbox) -> None:
    names = ("id", "thread", "state", "left", "runtime", "age", "calls", "image")
    rows, now = [], datetime.now(UTC)
    for one in found:
        ends = one.stops_at or one.removes_at
        left, age = "" if ends is None else _span(ends - now), _span(now - one.created_at)
        rows.append((one.id, one.thread, one.state, left, one.runtime, age, str(one.calls), one.image))
    out.print(Rows(names, rows))


def _span(time: timedelta) -> str:
    seconds = max(round(time.total_seconds()), 0)
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"


async def snapshot(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Argument(help="Thread whose files to save.")] = "default",
    comment: Annotated[str, typer.Option(help="Comment to store with the snapshot.")] = "",
) -> None:
    """Save the current files of a thread."""
    with SlowWork(f"saving the files of thread {thread}"):
        made = await cli.airlock.create_snapshot(thread, comment=comment)
    said = f"{made.id}: {made.files} files, {made.size_bytes:,} bytes"
    if made.skipped:
        said += f"; {made.skipped} devices, pipes and sockets were skipped"
    if made.stripped:
        said += f"; {made.stripped} entries lost their setuid, setgid or sticky bit"
    cli.show(made, lambda _: err.print(said))


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
    found = cli.wait(taken(cli.airlock.snapshots(thread=thread)))
    rows = []
    for one in found:
        size = f"{one.size_bytes / _MIB:.1f}"
        of = f"step {one.step}, {one.run_id}" if one.step else one.kind
        rows.append((one.id, one.thread, local_time(one.created_at), of, str(one.files), size, one.comment))
    cli.show({"snapshots": found}, Rows(("id", "thread", "created", "of", "files", "MiB", "comment"), rows))


def restore(
    cli: GatewayCli,
    *,
    snapshot_id: SnapshotId,
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
    at = f" after step {made.step} of {made.run_id}" if made.step else ""
    said = f"thread {made.thread} has {made.messages} messages and the files of {made.of_thread}{at}"
    cli.show(made, lambda _: err.print(said))


async def stats(cli: GatewayCli, *, thread: OfThread = "") -> None:
    """Show current resource usage, CPU over half a second; ? means unknown, + means at least."""
    readings = [one async for one in cli.airlock.watch_sandbox_stats(thread or None, interval_s=_GAP_S, readings=2)]
    found = readings[-1] if readings else ()
    cli.show({"sandboxes": found}, _table(found))


async def top(
    cli: GatewayCli,
    *,
    thread: OfThread = "",
    interval: Annotated[
        float, typer.Option("--interval-s", min=0.5, max=60, help="Seconds between two readings.")
    ] = 2.0,
    count: Annotated[int, typer.Option("--readings", min=0, help="Number of readings; 0 continues until Ctrl-C.")] = 0,
) -> None:
    """Show resource usage live, with --json one line per reading; ? means unknown, + means at least."""
    from rich.live import Live

    readings = cli.airlock.watch_sandbox_stats(thread or None, interval_s=interval, readings=count)
    if cli.as_json:
        async for found in readings:
            print_json({"sandboxes": found})
        return
    with Live(console=out, auto_refresh=False) as live:
        async for found in readings:
            live.update(_table(found), refresh=True)


def _table(found: Sequence[SandboxStats]) -> Rows:
    """Return a row per sandbox, highest CPU usage first."""
    names = ("thread", "cpus", "cpu time", "memory", "pids", "workspace", "tmp", "calls")
    rows = []
    for one in sorted(found, key=lambda one: (-(one.cpus or 0.0), one.thread)):
        used = _UNKNOWN if one.cpus is None else f"{one.cpus:.2f}"
        cpus = _of(used, None if one.cpus_limit is None else f"{one.cpus_limit:g}")
        cpu_time = _UNKNOWN if one.cpu_s is None else f"{one.cpu_s:,.1f}s"
        memory = _of(_size(one.memory_bytes), one.memory_limit_bytes and _size(one.memory_limit_bytes))
        pids = _of(_UNKNOWN if one.pids is None else str(one.pids), one.pids_limit)
        rows.append((one.thread, cpus, cpu_time, memory, pids, _disk(one.workspace), _disk(one.tmp), str(one.calls)))
    return Rows(names, rows)


def _of(used: str, limit: str | int | None) -> str:
    return used if limit is None or used == _UNKNOWN else f"{used}/{limit}"


def _disk(disk: DiskStats | None) -> str:
    if disk is None:
        return _UNKNOWN
    used = _size(disk.used_bytes) + ("+" if disk.partial else "")
    return _of(used, None if disk.limit_bytes is None else _size(disk.limit_bytes))


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return _UNKNOWN
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_SIZE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f}" if unit == 0 else f"{size:.1f}{_SIZE_UNITS[unit]}"


for one in (stats, top, forward, snapshot, snapshots, restore, fork):
    app.command()(one)
