"""`airlock runs`: the runs of a tenant, listed, shown, followed and ended."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.command import Commands, GatewayCli, taken
from gateway.cli.printable import local_time, one_line, stop_line
from gateway.cli.rows import Cell, Rows
from gateway.cli.terminal import EXIT_BAD_NEWS, err, out
from gateway.cli.time_options import moment_of
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client import Run

app = Commands(help="Runs: agents at work, and what they did.")
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
async def list_(
    cli: GatewayCli,
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
) -> None:
    """List runs, the newest first. Long tasks are cut; `get` has all of one."""
    statuses: Any = tuple(one.value for one in status or ())
    runs = cli.airlock.list_runs(
        thread=thread,
        statuses=statuses,
        agent=agent,
        started_by=started_by,
        since=moment_of("--since", since),
        until=moment_of("--until", until),
    )
    cli.show(await taken(runs, limit), lambda found: out.print(_listed(found) if found else "no runs"))


@app.command()
async def get(cli: GatewayCli, run_id: RunId) -> None:
    """Show one run, its task uncut."""
    cli.show(await cli.airlock.get_run(run_id), _show)


@app.command()
async def watch(
    cli: GatewayCli,
    run_id: RunId,
    *,
    from_sequence: Annotated[int, typer.Option("--from", min=1, help="Sequence number of the first event.")] = 1,
) -> None:
    """Follow a run live. Ctrl-C leaves it, and it goes on; watch again to rejoin it.

    A gateway that is restarted meanwhile is waited for. Exits 0 when the agent answered, 1 when the run ended
    otherwise.
    """
    from gateway.cli.nested_view import followed

    next_sequence, last = from_sequence, None
    try:
        async for event in followed(cli, run_id, from_sequence):
            last, next_sequence = event, event.sequence + 1
    except asyncio.CancelledError:
        if not cli.as_json:
            err.print(f"left; the run goes on: airlock runs watch {run_id} --from {next_sequence}")
        raise
    if last is not None and last.payload.get("status") != "completed":
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command()
async def cancel(cli: GatewayCli, run_id: RunId) -> None:
    """Stop a run, down to its processes; one that has finished stays as it is."""
    cli.show(await cli.airlock.cancel_run(run_id), _show)


def _listed(found: Sequence[Run]) -> Rows:
    rows: list[tuple[Cell, ...]] = []
    for run in found:
        status = Text(run.status, style=_STYLES.get(run.status, "red"))
        texts = (one_line(text, 40) for text in (run.agent, run.thread, run.task))
        rows.append((run.id, status, local_time(run.started_at), *texts))
    return Rows(("run", "status", "started", "agent", "thread", "task"), rows)


def _show(run: Run) -> None:
    table = Table(box=None, show_header=False)
    times = {"started_at": run.started_at, "finished_at": run.finished_at}
    facts = vars(run) | {name: at.isoformat() if at else None for name, at in times.items()}
    for name, value in (facts | {"stop": stop_line(run.stop) if run.stop else None}).items():
        if value not in (None, ""):
            table.add_row(Text(name.replace("_", " "), style="dim"), Text(printable(str(value))))
    out.print(table)
