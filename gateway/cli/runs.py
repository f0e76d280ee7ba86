"""`airlock run`, and `airlock runs`: list, show, follow and cancel the runs of a tenant."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.command import Commands, GatewayCli, Limit, OfThread, Since, Until, moment_of, taken
from gateway.cli.printable import Cell, Rows, local_time, one_line, stop_line
from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_CUT_ANSWER, err, out
from gateway.cli.usage_view import amount_line, run_line, use_line
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client import Event, PolicyMode, Run

app = Commands(help="Runs of agents.")
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id, as listed by `airlock runs list`.")]
_CUT_ANSWER_RULES = ("model_cut", "model_refused")
_STYLES = {"completed": "green", "running": "cyan", "waiting": "yellow"}


# RunStatus of gateway.client, whose import is slow and would delay every command.
Status = StrEnum("Status", ("running", "waiting", "completed", "stopped", "cancelled", "failed"))


@app.command("list")
async def list_(  # noqa: PLR0913 - one parameter per option of the command
    cli: GatewayCli,
    *,
    status: Annotated[list[Status] | None, typer.Option(help="Filter by status; repeatable.")] = None,
    thread: OfThread = "",
    agent: Annotated[str, typer.Option(help="Filter by agent.")] = "",
    started_by: Annotated[
        str,
        typer.Option(metavar="KEY", help="Filter by the key that started the run: alk_..., as in `airlock key list`."),
    ] = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 50,
) -> None:
    """List runs by start time, newest first. Long tasks are cut; `get` prints a complete one."""
    statuses: Any = status or ()
    times = {"since": moment_of("--since", since), "until": moment_of("--until", until)}
    runs = cli.airlock.list_runs(thread=thread, statuses=statuses, agent=agent, started_by=started_by, **times)
    found = await taken(runs, limit)
    cli.show(found, _listed(found) if found else "no runs")


@app.command()
async def get(cli: GatewayCli, run_id: RunId) -> None:
    """Show a run with its complete task."""
    cli.show(await cli.airlock.get_run(run_id), _show)


@app.command()
async def watch(
    cli: GatewayCli,
    run_id: RunId,
    *,
    from_sequence: Annotated[int, typer.Option("--from", min=1, help="Sequence number of the first event.")] = 1,
) -> None:
    """Follow a run live. Ctrl-C detaches without stopping the run; watch again to reattach.

    The command reconnects if the gateway restarts. Exits with 0 if the agent answered, 1 if the run ended otherwise.
    """
    from gateway.cli.run_view import followed

    next_sequence, last = from_sequence, None
    try:
        async for event in followed(cli, run_id, from_sequence):
            last, next_sequence = event, event.sequence + 1
    except asyncio.CancelledError:
        if not cli.as_json:
            err.print(f"detached; the run continues: airlock runs watch {run_id} --from {next_sequence}")
        raise
    if last is not None and last.payload.get("status") != "completed":
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command()
async def cancel(cli: GatewayCli, run_id: RunId) -> None:
    """Cancel a run and kill its processes; a finished run stays as it is."""
    cli.show(await cli.airlock.cancel_run(run_id), _show)


async def run(
    cli: GatewayCli,
    task: Annotated[str, typer.Argument(metavar="TASK", help="Task for the agent.")],
    *,
    agent: Annotated[str, typer.Option(help="Agent from the gateway's configuration.")] = "default",
    thread: Annotated[str, typer.Option(help="Thread to work in; default: a new one.")] = "",
    attach: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Image or PDF in the thread's workspace to show with the task; repeatable."),
    ] = None,
    follow_policy: Annotated[
        bool, typer.Option("--follow-policy", help="Judge later calls by policies applied during the run.")
    ] = False,
) -> None:
    """Run an agent on a task; Ctrl-C cancels the run.

    Exits with 0 if the agent answered, 4 if its answer was cut off or is a refusal, 1 if the run ended otherwise.
    """
    from gateway.cli.run_view import followed

    policy_mode: PolicyMode = "follow" if follow_policy else "pin"
    started = await cli.airlock.start_run(
        task, thread=thread, agent=agent, policy_mode=policy_mode, attachments=attach or ()
    )
    if not cli.as_json:
        policy = f" · {started.policy_version}" if started.policy_version else ""
        out.print(f"run {started.id}{policy}", style="dim")
    last = None
    try:
        async for event in followed(cli, started.id):
            last = event
    except asyncio.CancelledError:
        await cli.airlock.cancel_run(started.id)
        raise
    if last is None or last.payload.get("status") != "completed":
        raise typer.Exit(_exit_code(last))


def _exit_code(last: Event | None) -> int:
    stop = last.payload.get("stop") if last is not None else None
    cut = isinstance(stop, dict) and stop.get("rule") in _CUT_ANSWER_RULES
    return EXIT_CUT_ANSWER if cut else EXIT_BAD_NEWS


def _listed(found: Sequence[Run]) -> Rows:
    rows: list[tuple[Cell, ...]] = []
    for run in found:
        status = Text(run.status, style=_STYLES.get(run.status, "red"))
        agent, thread, task = (one_line(text, 40) for text in (run.agent, run.thread, run.task))
        rows.append((run.id, status, local_time(run.started_at), agent, thread, run_line(run), task))
    return Rows(("run", "status", "started", "agent", "thread", "used", "task"), rows)


def _show(run: Run) -> None:
    table = Table(box=None, show_header=False)
    times = {"started_at": run.started_at, "finished_at": run.finished_at}
    facts = vars(run) | {name: at.isoformat() if at else None for name, at in times.items()}
    used = {
        "steps": run.steps or None,
        "usage": amount_line(run.usage, run.usage.requests) if run.usage.requests else None,
        "models": "\n".join(map(use_line, run.models)),
    }
    for name, value in (facts | used | {"stop": stop_line(run.stop) if run.stop else None}).items():
        if value not in (None, ""):
            table.add_row(Text(name.replace("_", " "), style="dim"), Text(printable(str(value))))
    out.print(table)
