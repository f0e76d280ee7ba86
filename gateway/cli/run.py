"""`airlock run`: start a run and follow it live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_BAD_NEWS,
    EXIT_CUT_ANSWER,
    Address,
    Json,
    Key,
    out,
    print_json,
    run_client,
)

if TYPE_CHECKING:
    from gateway.client import Event, PolicyMode

_CUT_ANSWER_RULES = ("model_cut", "model_refused")


def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What the agent is asked to do.")],
    *,
    agent: Annotated[str, typer.Option(help="Agent of the gateway's configuration.")] = "default",
    thread: Annotated[str, typer.Option(help="Thread to work in; a new one when not given.")] = "",
    follow_policy: Annotated[
        bool, typer.Option("--follow-policy", help="A policy applied meanwhile judges the next calls of the run.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Run an agent on a task; Ctrl-C cancels it.

    Exits 0 when the agent answered, 4 when its answer was cut or is a refusal, 1 when the run ended otherwise.
    """
    mode: PolicyMode = "follow" if follow_policy else "pin"
    last = run_client(_follow(task, agent, thread, mode, address, key, as_json=as_json), as_json=as_json)
    if last is None or last.payload.get("status") != "completed":
        raise typer.Exit(_exit_code(last))


def _exit_code(last: Event | None) -> int:
    stop = last.payload.get("stop") if last is not None else None
    cut = isinstance(stop, dict) and stop.get("rule") in _CUT_ANSWER_RULES
    return EXIT_CUT_ANSWER if cut else EXIT_BAD_NEWS


async def _follow(
    task: str, agent: str, thread: str, policy_mode: PolicyMode, address: str, key: str, *, as_json: bool
) -> Event | None:
    import asyncio

    from gateway.cli.nested_view import NestedRunView
    from gateway.client import Client

    view = NestedRunView(out)
    last = None
    async with Client(address, key) as airlock:
        started = await airlock.start_run(task, thread=thread, agent=agent, policy_mode=policy_mode)
        if not as_json:
            policy = f" · {started.policy_version}" if started.policy_version else ""
            out.print(f"run {started.id}{policy}", style="dim", markup=False)
        try:
            async for last in airlock.watch_run(started.id):
                if as_json:
                    print_json({"sequence": last.sequence, "type": last.type, "run_id": started.id, **last.payload})
                else:
                    view.feed(last.type, dict(last.payload))
        except asyncio.CancelledError:
            await airlock.cancel_run(started.id)
            raise
    return last
