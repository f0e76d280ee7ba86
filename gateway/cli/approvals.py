"""`airlock approvals`: what waits for somebody's word, and saying it. The key must be an approver's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.cli import approval_view as view
from gateway.cli.command import Commands, GatewayCli
from gateway.cli.grants import grants, revoke
from gateway.cli.terminal import err, fail, out

if TYPE_CHECKING:
    from gateway.client import Approval
    from gateway.client.approvals import Answer

app = Commands(help="Tool calls that wait for somebody's word.")
app.command()(grants)
app.command()(revoke)
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="As `airlock approvals list` shows it.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    status: Annotated[
        Literal["pending", "approved", "used", "denied", "expired", "cancelled", "all"],
        typer.Option(help="Only those that are so; all for any."),
    ] = "pending",
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    run: Annotated[str, typer.Option(help="Only those of this run.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
) -> None:
    """List approvals, the newest first. Long arguments are left out, and `arguments_cut` says so; `show` has them."""
    wanted = None if status == "all" else status
    found = await cli.airlock.approvals(status=wanted, thread=thread, run_id=run, limit=limit)
    without = "nothing waits" if status == "pending" else "none"
    cli.show(found, lambda _: out.print(view.listed(found) if found else without))


@app.command()
async def show(cli: GatewayCli, approval_id: ApprovalId) -> None:
    """Show one approval, uncut."""
    cli.show(await cli.airlock.approval(approval_id), lambda one: view.show(out, one))


@app.command()
async def allow(
    cli: GatewayCli,
    approval_id: ApprovalId,
    *,
    run: Annotated[
        bool, typer.Option("--run", help="Also what the proposed rule matches, while the run goes on.")
    ] = False,
    thread: Annotated[
        bool, typer.Option("--thread", help="Also what the proposed rule matches, in the thread.")
    ] = False,
    arguments: Annotated[str, typer.Option("--args", help="Run it with these arguments instead, a JSON object.")] = "",
    message: Annotated[str, typer.Option(help="For the record.")] = "",
) -> None:
    """Let a call run: once, or more widely by its proposed rule, or with other arguments."""
    if run + thread + bool(arguments) > 1:
        fail("--run, --thread and --args: one of them")
    edited: Mapping[str, Any] | None = None
    if arguments:
        try:
            edited = json.loads(arguments)
        except ValueError as error:
            fail(f"--args is not JSON: {error}")
        if not isinstance(edited, dict):
            fail("--args: a JSON object is expected")
    answer: Answer = "run" if run else "thread" if thread else "once" if edited is None else "edit"
    cli.show(await cli.airlock.resolve_approval(approval_id, answer, text=message, arguments=edited), _show)


@app.command()
async def deny(
    cli: GatewayCli,
    approval_id: ApprovalId,
    *,
    message: Annotated[str, typer.Option(help="Why; told to the model.")] = "",
) -> None:
    """Refuse a call."""
    cli.show(await cli.airlock.resolve_approval(approval_id, "deny", text=message), _show)


@app.command()
async def watch(cli: GatewayCli) -> None:
    """Show what waits as it comes, and answer with one key; not at a terminal, a line for each change.

    A gateway that stops is waited for until Ctrl-C.
    """
    if not cli.as_json and sys.stdin.isatty() and out.is_terminal:
        from gateway.cli.approval_prompt import ApprovalPrompt

        await ApprovalPrompt(cli.airlock, out).run()
        return
    from gateway.cli.approval_watch import watched

    async for approval in watched(cli.airlock, lambda said: err.print(said, style="yellow")):
        if approval.status == "pending" and approval.arguments_cut and not cli.as_json:
            approval = await cli.airlock.approval(approval.id)  # noqa: PLW2901 - the same, whole
        cli.show(approval, _show)


def _show(approval: Approval) -> None:
    out.print(view.panel(approval) if approval.status == "pending" else view.outcome(approval))
