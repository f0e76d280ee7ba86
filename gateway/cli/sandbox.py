"""`airlock sandbox`: a tenant's sandboxes, looked at and looked after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, Yes
from gateway.cli.rows import Rows
from gateway.cli.sandbox_history import history
from gateway.cli.sandbox_snapshots import fork, restore, snapshot, snapshots
from gateway.cli.sandbox_stats import stats, top
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import err, out

if TYPE_CHECKING:
    from gateway.client.sandboxes import Sandbox

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))

app = Commands(help="Sandboxes: where the tool calls of a thread run.")
Thread = Annotated[str, typer.Argument(help="Thread whose sandbox it is.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    runtime: Annotated[str, typer.Option(help="Only those of this runtime: runc or runsc.")] = "",
    image: Annotated[str, typer.Option(help="Only those of this image, as the policy names it.")] = "",
    state: Annotated[str, typer.Option(help="Only those in this state: creating, running, idle_stopped, failed.")] = "",
) -> None:
    """List the sandboxes, running, stopped or being made, and when the idle are stopped and the stopped go."""
    found = [one async for one in cli.airlock.sandboxes(runtime=runtime, image=image, state=state)]
    cli.show({"sandboxes": found}, lambda _: _show(*found))


@app.command()
async def get(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Show the sandbox of a thread."""
    cli.show(await cli.airlock.get_sandbox(thread), _show)


@app.command()
async def create(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Make the sandbox of a thread ahead of its first call; one that lives is shown as it is."""
    with SlowWork(f"making the sandbox of thread {thread}"):
        made = await cli.airlock.create_sandbox(thread)
    cli.show(made, _show)


@app.command()
async def stop(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Stop the sandbox of a thread with all that runs in it; its files stay, and its next call starts it again."""
    with SlowWork(f"stopping the sandbox of thread {thread}"):
        found = await cli.airlock.stop_sandbox(thread)
    did = "stopped" if found.state == "idle_stopped" else found.state
    cli.show(found, lambda one: err.print(f"{did} {one.id}; the files of thread {one.thread} stay"))


@app.command()
async def resume(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Start the sandbox of a thread that is stopped, ahead of its next call."""
    with SlowWork(f"starting the sandbox of thread {thread}"):
        resumed = await cli.airlock.resume_sandbox(thread)
    cli.show(resumed, _show)


@app.command()
def delete(cli: GatewayCli, *, thread: Thread = "default", yes: Yes = False) -> None:
    """Remove the sandbox of a thread and its files, for good; messages and runs stay. The key needs the scope files."""
    cli.confirm(f"Remove the sandbox of thread {thread!r} with its files?", yes=yes)
    with SlowWork(f"removing the sandbox of thread {thread}"):
        was = cli.wait(cli.airlock.delete_sandbox(thread))
    said = f"removed the sandbox and the files of thread {thread}"
    cli.show({"thread": thread, "sandbox": was}, lambda _: err.print(said))


for one in (stats, top, history, snapshot, snapshots, restore, fork):
    app.command()(one)


def _show(*found: Sandbox) -> None:
    names = ("id", "thread", "state", "left", "runtime", "age", "calls", "image")
    rows, now = [], datetime.now(UTC)
    for one in found:
        ends = one.stops_at or one.removes_at
        left, age = "" if ends is None else _span(ends - now), _span(now - one.created_at)
        rows.append((one.id, one.thread, one.state, left, one.runtime, age, str(one.calls), one.image))
    out.print(Rows(names, rows))


def _span(time: timedelta) -> str:
    """Return a time in its greatest unit, as short as it can be."""
    seconds = max(round(time.total_seconds()), 0)
    for unit_s, unit in _UNITS:
        if seconds >= unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"
