"""`airlock run`: start a run and follow it live."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli
from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_CUT_ANSWER, out

if TYPE_CHECKING:
    from gateway.client import Event, PolicyMode

_CUT_ANSWER_RULES = ("model_cut", "model_refused")


async def run(
    cli: GatewayCli,
    task: Annotated[str, typer.Argument(metavar="TASK", help="What the agent is asked to do.")],
    *,
    agent: Annotated[str, typer.Option(help="Agent of the gateway's configuration.")] = "default",
    thread: Annotated[str, typer.Option(help="Thread to work in; a new one when not given.")] = "",
    follow_policy: Annotated[
        bool, typer.Option("--follow-policy", help="A policy applied meanwhile judges the next calls of the run.")
    ] = False,
) -> None:
    """Run an agent on a task; Ctrl-C cancels it.

    Exits 0 when the agent answered, 4 when its answer was cut or is a refusal, 1 when the run ended otherwise.
    """
    from gateway.cli.nested_view import followed

    policy_mode: PolicyMode = "follow" if follow_policy else "pin"
    started = await cli.airlock.start_run(task, thread=thread, agent=agent, policy_mode=policy_mode)
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
