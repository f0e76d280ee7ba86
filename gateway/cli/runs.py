"""`airlock runs`: the runs of a tenant, listed, shown, followed and ended."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_BAD_NEWS,
    Address,
    Json,
    Key,
    err,
    out,
    print_json,
    run_client,
)
from gateway.cli.time_options import moment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.cli.rows import Rows
    from gateway.client import Event, Run

app = typer.Typer(help="Runs: agents at work, and what they did.", no_args_is_help=True)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="As `airlock runs list` shows it.")]
_STYLES = {"completed": "green", "running": "cyan", "waiting": "yellow"}


class Status(Enum):
    """What gateway.client.RunStatus has; that takes grpc to import, and this is read before any command runs."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


@app.command("list")
def list_(
    *,
    status: Annotated[
        list[Status] | None,
        typer.Option(help="Only those that are so; several can be given."),
    ] = None,
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    agent: Annotated[str, typer.Option(help="Only those of this agent.")] = "",
    started_by: Annotated[
        str,
        typer.Option(metavar="KEY", help="Only those that this key started: alk_..., as `airlock key list` shows it."),
    ] = "",
    since: Annotated[str, typer.Option(help="Started no earlier: 24h, 7d, or a time such as 2026-11-21T08:00.")] = "",
    until: Annotated[str, typer.Option(help="Started before: as --since.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List runs, the newest first. Long tasks are cut; `get` has all of one."""
    wanted: Any = tuple(one.value for one in status or ())
    times = [moment_of(option, text, as_json=as_json) for option, text in (("--since", since), ("--until", until))]

    async def work() -> list[Run]:
        from gateway.client import Client

        found: list[Run] = []
        async with Client(address, key) as airlock:
            async for run in airlock.list_runs(
                thread=thread, statuses=wanted, agent=agent, started_by=started_by, since=times[0], until=times[1]
            ):
                found.append(run)
                if len(found) == limit:
                    break
        return found

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([_as_json(run) for run in found])
        return
    if not found:
        out.print("no runs")
        return
    out.print(_listed(found))


def _listed(found: Sequence[Run]) -> Rows:
    from rich.text import Text

    from gateway.cli.printable import one_line
    from gateway.cli.rows import Cell, Rows

    rows: list[tuple[Cell, ...]] = []
    for run in found:
        status_ = Text(run.status, style=_STYLES.get(run.status, "red"))
        started = run.started_at.astimezone().strftime("%Y-%m-%d %H:%M")
        texts = (one_line(text, 40) for text in (run.agent, run.thread, run.task))
        rows.append((run.id, status_, started, *texts))
    return Rows(("run", "status", "started", "agent", "thread", "task"), rows)


@app.command()
def get(run_id: RunId, *, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Show one run, its task uncut."""

    async def work() -> Run:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.get_run(run_id)

    _show(run_client(work(), as_json=as_json), as_json=as_json)


@app.command()
def watch(
    run_id: RunId,
    *,
    from_sequence: Annotated[int, typer.Option("--from", min=1, help="Sequence number of the first event.")] = 1,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Follow a run live. Ctrl-C leaves it, and it goes on; watch again to rejoin it.

    A gateway that is restarted meanwhile is waited for. Exits 0 when the agent answered, 1 when the run ended
    otherwise.
    """
    seen = [from_sequence - 1]

    async def work() -> Event | None:
        from gateway.cli.nested_view import NestedRunView
        from gateway.client import Client

        view = NestedRunView(out)
        last = None
        async with Client(address, key) as airlock:
            async for last in airlock.watch_run(run_id, from_sequence):
                seen[0] = last.sequence
                if as_json:
                    print_json({"sequence": last.sequence, "type": last.type, "run_id": run_id, **last.payload})
                else:
                    view.feed(last.type, dict(last.payload))
        return last

    try:
        last = run_client(work(), as_json=as_json)
    except typer.Exit as left:
        if left.exit_code == 130 and not as_json:
            err.print(f"left; the run goes on: airlock runs watch {run_id} --from {seen[0] + 1}", markup=False)
        raise
    if last is not None and last.payload.get("status") != "completed":
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command()
def cancel(run_id: RunId, *, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Stop a run, down to its processes; one that has finished stays as it is."""

    async def work() -> Run:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.cancel_run(run_id)

    _show(run_client(work(), as_json=as_json), as_json=as_json)


def _show(run: Run, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(run))
        return
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.printable import stop_line
    from gateway.support.printable_text import printable

    table = Table(box=None, show_header=False)
    facts = _as_json(run) | {"stop": stop_line(run.stop) if run.stop else None}
    for name, value in facts.items():
        if value not in (None, ""):
            table.add_row(Text(name.replace("_", " "), style="dim"), Text(printable(str(value))))
    out.print(table)


def _as_json(run: Run) -> dict[str, Any]:
    times = {"started_at": run.started_at, "finished_at": run.finished_at}
    return asdict(run) | {name: at.isoformat() if at else None for name, at in times.items()}
