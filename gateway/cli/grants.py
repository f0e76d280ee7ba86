"""`airlock approvals grants` and `revoke`: what answers have granted, and taking it back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.printable import one_line
from gateway.cli.terminal import DEFAULT_ADDRESS, Address, Json, Key, out, print_json, run_client
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client import Grant


def grants(
    *,
    thread: Annotated[str, typer.Option(help="Only those of this thread.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Also those that do not count any more.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List what was allowed for a run or a thread, the newest first."""

    async def work() -> Sequence[Grant]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.grants(thread=thread, include_ended=all_, limit=limit)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([_as_json(one) for one in found])
    elif not found:
        out.print("nothing is granted")
    for one in () if as_json else found:
        _show(one)


def revoke(
    grant_id: Annotated[str, typer.Argument(metavar="ID", help="As `airlock approvals grants` shows it.")],
    *,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Take a grant back; the policy asks again from the next call on."""

    async def work() -> Grant:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.revoke_grant(grant_id)

    revoked = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(revoked))
    else:
        out.print(f"revoked {revoked.id}", markup=False)


def _show(grant: Grant) -> None:
    """Print a grant: where it holds and by whose answer, and below that its rule."""
    whose = f"run {grant.run_id}" if grant.run_id else "every call"
    state = "" if grant.in_force else " · revoked" if grant.revoked_at else " · the run is over"
    by = f"{grant.created_at:%Y-%m-%d %H:%M} UTC by {one_line(grant.granted_by)}"
    rule = "\n".join(f"  {line}" for line in printable(grant.rule.rstrip()).splitlines())
    # Not wrapped: an id that is cut cannot be copied.
    out.print(
        f"{grant.id} · thread {one_line(grant.thread)} · {whose}{state}\n  {by} · {grant.approval_id}\n{rule}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _as_json(grant: Grant) -> dict[str, Any]:
    times = {name: getattr(grant, name) for name in ("created_at", "revoked_at")}
    return asdict(grant) | {name: at.isoformat() if at else None for name, at in times.items()}
