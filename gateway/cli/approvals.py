"""`airlock approvals`: what waits for somebody's word, and saying it. The key must be an approver's."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.cli.grants import grants, revoke
from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Address, Json, Key, err, fail, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.client import Approval
    from gateway.client.approvals import Answer, ApprovalStatus

app = typer.Typer(help="Tool calls that wait for somebody's word.", no_args_is_help=True)
app.command()(grants)
app.command()(revoke)
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="As `airlock approvals list` shows it.")]


@app.command("list")
def list_(
    *,
    status: Annotated[
        Literal["pending", "approved", "used", "denied", "expired", "cancelled", "all"],
        typer.Option(help="Only those that are so; all for any."),
    ] = "pending",
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    run: Annotated[str, typer.Option(help="Only those of this run.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List approvals, the newest first. Long arguments are left out, and `arguments_cut` says so; `show` has them."""
    wanted: ApprovalStatus | None = None if status == "all" else status

    async def work() -> Sequence[Approval]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.approvals(status=wanted, thread=thread, run_id=run, limit=limit)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([_as_json(one) for one in found])
    elif not found:
        out.print("nothing waits" if status == "pending" else "none")
    else:
        from gateway.cli.approval_view import listed

        out.print(listed(found))


@app.command()
def show(approval_id: ApprovalId, *, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Show one approval, uncut."""

    async def work() -> Approval:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.approval(approval_id)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
        return
    from gateway.cli.approval_view import show as show_whole

    show_whole(out, found)


@app.command()
def allow(
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
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Let a call run: once, or more widely by its proposed rule, or with other arguments."""
    if run + thread + bool(arguments) > 1:
        fail("--run, --thread and --args: one of them", EXIT_USAGE, as_json=as_json)
    edited: Mapping[str, Any] | None = None
    if arguments:
        try:
            edited = json.loads(arguments)
        except ValueError as error:
            fail(f"--args is not JSON: {error}", EXIT_USAGE, as_json=as_json)
        if not isinstance(edited, dict):
            fail("--args: a JSON object is expected", EXIT_USAGE, as_json=as_json)
    answer: Answer = "run" if run else "thread" if thread else "once" if edited is None else "edit"
    _done(_resolve(approval_id, answer, message, edited, address, key), as_json=as_json)


@app.command()
def deny(
    approval_id: ApprovalId,
    *,
    message: Annotated[str, typer.Option(help="Why; told to the model.")] = "",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Refuse a call."""
    _done(_resolve(approval_id, "deny", message, None, address, key), as_json=as_json)


@app.command()
def watch(*, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Show what waits as it comes, and answer with one key; not at a terminal, a line for each change.

    A gateway that stops is waited for until Ctrl-C.
    """

    async def work() -> None:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            if not as_json and sys.stdin.isatty() and out.is_terminal:
                from gateway.cli.approval_backend import Desk

                await Desk(airlock, out).work()
                return
            from gateway.cli.approval_watch import watched

            async for approval in watched(airlock, lambda said: err.print(said, style="yellow", markup=False)):
                if as_json:
                    print_json(_as_json(approval))
                    continue
                from gateway.cli.approval_view import outcome, panel

                if approval.status == "pending" and approval.arguments_cut:
                    approval = await airlock.approval(approval.id)  # noqa: PLW2901 - the same, whole
                out.print(panel(approval) if approval.status == "pending" else outcome(approval))

    run_client(work(), as_json=as_json)


async def _resolve(
    approval_id: str, answer: Answer, message: str, arguments: Mapping[str, Any] | None, address: str, key: str
) -> Approval:
    from gateway.client import Client

    async with Client(address, key) as airlock:
        return await airlock.resolve_approval(approval_id, answer, text=message, arguments=arguments)


def _done(work: Coroutine[Any, Any, Approval], *, as_json: bool) -> None:
    answered = run_client(work, as_json=as_json)
    if as_json:
        print_json(_as_json(answered))
        return
    from gateway.cli.approval_view import outcome

    out.print(outcome(answered))


def _as_json(approval: Approval) -> dict[str, Any]:
    times = {name: getattr(approval, name) for name in ("created_at", "expires_at", "resolved_at")}
    return asdict(approval) | {name: at.isoformat() if at else None for name, at in times.items()}
