"""`airlock approvals`: list and answer pending tool calls; list and revoke grants. Needs an approver's key."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli import approval_view as view
from gateway.cli.command import Commands, GatewayCli, Limit, OfThread, json_object
from gateway.cli.printable import one_line
from gateway.cli.terminal import err, fail, out
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from airlock.approvals import Answer
    from gateway.client import Approval, Grant

app = Commands(help="Answer tool calls that wait for an approval.")
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Id, as listed by `airlock approvals list`.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    status: Annotated[
        Literal["pending", "approved", "used", "denied", "expired", "cancelled", "all"],
        typer.Option(help="Filter by status; `all` shows every status."),
    ] = "pending",
    thread: OfThread = "",
    run: Annotated[str, typer.Option(help="Filter by run.")] = "",
    limit: Limit = 50,
) -> None:
    """List approvals, newest first. Long arguments are omitted (`arguments_cut` is true); `show` prints them."""
    wanted = None if status == "all" else status
    found = await cli.airlock.approvals(status=wanted, thread=thread, run_id=run, limit=limit)
    without = "no pending approvals" if status == "pending" else "no approvals"
    cli.show(found, view.listed(found) if found else without)


@app.command()
async def show(cli: GatewayCli, approval_id: ApprovalId) -> None:
    """Show an approval with its complete arguments."""
    cli.show(await cli.airlock.approval(approval_id), lambda one: view.show(out, one))


@app.command()
async def allow(
    cli: GatewayCli,
    approval_id: ApprovalId,
    *,
    run: Annotated[
        bool, typer.Option("--run", help="Also allow calls that the proposed rule matches, until the run ends.")
    ] = False,
    thread: Annotated[
        bool, typer.Option("--thread", help="Also allow calls that the proposed rule matches, in this thread.")
    ] = False,
    arguments: Annotated[str, typer.Option("--args", help="Run the call with these arguments, a JSON object.")] = "",
    message: Annotated[str, typer.Option(help="Comment for the record.")] = "",
) -> None:
    """Allow a call once, or more widely by its proposed rule, or with edited arguments."""
    if run + thread + bool(arguments) > 1:
        fail("use only one of --run, --thread and --args")
    edited = json_object("--args", arguments) if arguments else None
    answer: Answer = "run" if run else "thread" if thread else "once" if edited is None else "edit"
    cli.show(await cli.airlock.resolve_approval(approval_id, answer, text=message, arguments=edited), _show)


@app.command()
async def deny(
    cli: GatewayCli,
    approval_id: ApprovalId,
    *,
    message: Annotated[str, typer.Option(help="Reason, which the model sees.")] = "",
) -> None:
    """Deny a call."""
    cli.show(await cli.airlock.resolve_approval(approval_id, "deny", text=message), _show)


@app.command()
async def watch(cli: GatewayCli) -> None:
    """Show pending approvals as they arrive and answer each with one key; without a terminal, print one line each.

    If the gateway stops, the command reconnects until Ctrl-C.
    """
    if not cli.as_json and sys.stdin.isatty() and out.is_terminal:
        from gateway.cli.approval_watch import ApprovalPrompt

        await ApprovalPrompt(cli.airlock, out).run()
        return
    from gateway.cli.approval_watch import watched

    async for approval in watched(cli.airlock, lambda said: err.print(said, style="yellow")):
        if approval.status == "pending" and approval.arguments_cut and not cli.as_json:
            approval = await cli.airlock.approval(approval.id)  # noqa: PLW2901 - the same, whole
        cli.show(approval, _show)


def _show(approval: Approval) -> None:
    out.print(view.panel(approval) if approval.status == "pending" else view.outcome(approval))


@app.command()
async def grants(
    cli: GatewayCli,
    *,
    thread: OfThread = "",
    all_: Annotated[bool, typer.Option("--all", help="Include grants that are no longer in force.")] = False,
    limit: Limit = 50,
) -> None:
    """List grants, newest first: what approvers have allowed for a run or a thread."""
    cli.show(await cli.airlock.grants(thread=thread, include_ended=all_, limit=limit), _list_grants)


@app.command()
async def revoke(
    cli: GatewayCli,
    grant_id: Annotated[str, typer.Argument(metavar="ID", help="Id, as listed by `airlock approvals grants`.")],
) -> None:
    """Revoke a grant; from the next call on, the policy asks again."""
    revoked = await cli.airlock.revoke_grant(grant_id)
    cli.show(revoked, f"revoked {revoked.id}")


def _list_grants(found: Sequence[Grant]) -> None:
    if not found:
        out.print("no grants")
    for one in found:
        whose = f"run {one.run_id}" if one.run_id else "every call"
        state = "" if one.in_force else " · revoked" if one.revoked_at else " · the run has ended"
        by = f"{one.created_at:%Y-%m-%d %H:%M} UTC by {one_line(one.granted_by)}"
        rule = textwrap.indent(printable(one.rule.rstrip()), "  ")
        out.print(f"{one.id} · thread {one_line(one.thread)} · {whose}{state}\n  {by} · {one.approval_id}\n{rule}")
