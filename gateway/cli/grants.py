"""`airlock approvals grants` and `revoke`: what answers have granted, and taking it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli
from gateway.cli.printable import one_line
from gateway.cli.terminal import out
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.client import Grant


async def grants(
    cli: GatewayCli,
    *,
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Also those that do not count any more.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
) -> None:
    """List what was allowed for a run or a thread, the newest first."""
    cli.show(await cli.airlock.grants(thread=thread, include_ended=all_, limit=limit), _list)


async def revoke(
    cli: GatewayCli,
    grant_id: Annotated[str, typer.Argument(metavar="ID", help="As `airlock approvals grants` shows it.")],
) -> None:
    """Take a grant back; the policy asks again from the next call on."""
    revoked = await cli.airlock.revoke_grant(grant_id)
    cli.show(revoked, f"revoked {revoked.id}")


def _list(found: Sequence[Grant]) -> None:
    if not found:
        out.print("nothing is granted")
    for one in found:
        _show(one)


def _show(grant: Grant) -> None:
    """Print a grant: where it holds and by whose answer, and below that its rule."""
    whose = f"run {grant.run_id}" if grant.run_id else "every call"
    state = "" if grant.in_force else " · revoked" if grant.revoked_at else " · the run is over"
    by = f"{grant.created_at:%Y-%m-%d %H:%M} UTC by {one_line(grant.granted_by)}"
    rule = "\n".join(f"  {line}" for line in printable(grant.rule.rstrip()).splitlines())
    out.print(f"{grant.id} · thread {one_line(grant.thread)} · {whose}{state}\n  {by} · {grant.approval_id}\n{rule}")
