"""`airlock sandbox`: list, inspect and manage the sandboxes of a tenant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, Yes, taken
from gateway.cli.printable import local_time
from gateway.cli.rows import Rows
from gateway.cli.sandbox_snapshots import fork, restore, snapshot, snapshots
from gateway.cli.sandbox_stats import stats, top
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import err, fail, out
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.client import Sandbox, SandboxTransition

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))

app = Commands(help="Sandboxes, in which the tool calls of a thread run.")
Thread = Annotated[str, typer.Argument(help="Thread of the sandbox.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    runtime: Annotated[str, typer.Option(help="Filter by runtime: runc or runsc.")] = "",
    image: Annotated[str, typer.Option(help="Filter by image, as named in the policy.")] = "",
    state: Annotated[str, typer.Option(help="Filter by state: creating, running, idle_stopped or failed.")] = "",
) -> None:
    """List the sandboxes, and when idle ones will be stopped and stopped ones removed."""
    found = [one async for one in cli.airlock.sandboxes(runtime=runtime, image=image, state=state)]
    cli.show({"sandboxes": found}, lambda _: _show(*found))


@app.command()
async def get(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Show the sandbox of a thread."""
    cli.show(await cli.airlock.get_sandbox(thread), _show)


@app.command()
async def create(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Create the sandbox of a thread before its first call; an existing one is shown."""
    with SlowWork(f"creating the sandbox of thread {thread}"):
        made = await cli.airlock.create_sandbox(thread)
    cli.show(made, _show)


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
    cli.show(resumed, _show)


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
    cli.show({"transitions": found}, lambda _: out.print(Rows(names, [_transition(one) for one in found])))


for one in (stats, top, snapshot, snapshots, restore, fork):
    app.command()(one)


async def _follow(cli: GatewayCli, thread: str | None, after: int | None) -> None:
    from gateway.errors import Unavailable

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


def _show(*found: Sandbox) -> None:
    names = ("id", "thread", "state", "left", "runtime", "age", "calls", "image")
    rows, now = [], datetime.now(UTC)
    for one in found:
        ends = one.stops_at or one.removes_at
        left, age = "" if ends is None else _span(ends - now), _span(now - one.created_at)
        rows.append((one.id, one.thread, one.state, left, one.runtime, age, str(one.calls), one.image))
    out.print(Rows(names, rows))


def _span(time: timedelta) -> str:
    """Return a duration in its largest unit."""
    seconds = max(round(time.total_seconds()), 0)
    for unit_s, unit in _UNITS:
        if seconds >= unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"
