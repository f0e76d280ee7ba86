"""`airlock sandbox`: a tenant's sandboxes, looked at and looked after."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.rows import Rows
from gateway.cli.sandbox_history import history
from gateway.cli.sandbox_snapshots import fork, restore, snapshot, snapshots
from gateway.cli.sandbox_stats import stats, top
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_USAGE,
    Address,
    Json,
    Key,
    err,
    fail,
    out,
    print_json,
    run_client,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.sandboxes import Sandbox

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))

app = typer.Typer(help="Sandboxes: where the tool calls of a thread run.", no_args_is_help=True)
Thread = Annotated[str, typer.Argument(help="Thread whose sandbox it is.")]


@app.command("list")
def list_(
    *,
    runtime: Annotated[str, typer.Option(help="Only those of this runtime: runc or runsc.")] = "",
    image: Annotated[str, typer.Option(help="Only those of this image, as the policy names it.")] = "",
    state: Annotated[str, typer.Option(help="Only those in this state: creating, running, idle_stopped, failed.")] = "",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List the sandboxes, running, stopped or being made, and when the idle are stopped and the stopped go."""

    async def work() -> Sequence[Sandbox]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return [one async for one in airlock.sandboxes(runtime=runtime, image=image, state=state)]

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"sandboxes": [_as_json(one) for one in found]})
    else:
        _show(found)


@app.command()
def get(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """Show the sandbox of a thread."""

    async def work() -> Sandbox:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.get_sandbox(thread)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
    else:
        _show([found])


@app.command()
def create(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """Make the sandbox of a thread ahead of its first call; one that lives is shown as it is."""

    async def work() -> Sandbox:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.create_sandbox(thread)

    with SlowWork(f"making the sandbox of thread {thread}"):
        made = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(made))
    else:
        _show([made])


@app.command()
def stop(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """Stop the sandbox of a thread with all that runs in it; its files stay, and its next call starts it again."""

    async def work() -> Sandbox:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.stop_sandbox(thread)

    with SlowWork(f"stopping the sandbox of thread {thread}"):
        found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
    else:
        did = "stopped" if found.state == "idle_stopped" else found.state
        err.print(f"{did} {found.id}; the files of thread {found.thread} stay", markup=False)


@app.command()
def resume(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """Start the sandbox of a thread that is stopped, ahead of its next call."""

    async def work() -> Sandbox:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.resume_sandbox(thread)

    with SlowWork(f"starting the sandbox of thread {thread}"):
        resumed = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(resumed))
    else:
        _show([resumed])


@app.command()
def delete(
    *,
    thread: Thread = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Remove the sandbox of a thread and its files, for good; messages and runs stay. The key needs the scope files."""
    if not yes:
        if as_json:
            fail("nobody can be asked with --json: say --yes", EXIT_USAGE, as_json=True)
        typer.confirm(f"Remove the sandbox of thread {thread!r} with its files?", abort=True, err=True)

    async def work() -> Sandbox | None:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.delete_sandbox(thread)

    with SlowWork(f"removing the sandbox of thread {thread}"):
        was = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"thread": thread, "sandbox": None if was is None else _as_json(was)})
    else:
        err.print(f"removed the sandbox and the files of thread {thread}", markup=False)


app.command()(stats)
app.command()(top)
app.command()(history)
app.command()(snapshot)
app.command()(snapshots)
app.command()(restore)
app.command()(fork)


def _show(found: Sequence[Sandbox]) -> None:
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


def _as_json(one: Sandbox) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(one).items()}
