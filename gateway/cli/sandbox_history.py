"""`airlock sandbox history`: what became of sandboxes, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli, taken
from gateway.cli.printable import local_time
from gateway.cli.rows import Rows
from gateway.cli.terminal import fail, out
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.client import SandboxTransition


async def history(
    cli: GatewayCli,
    *,
    thread: Annotated[str | None, typer.Option(help="Only those of this thread.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Tell what comes from now on, until Ctrl-C.")] = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="With --follow: from after this one on, by its id in --json.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many, the newest ones.")] = 100,
) -> None:
    """Show what became of sandboxes, the newest first: made, stopped for being idle, resumed, removed, and why.

    With --follow what becomes of them from now on, as it happens; with --json a line for each.
    """
    if after is not None and not follow:
        fail("--after is for --follow")
    if follow:
        await _follow(cli, thread, after)
        return
    found = await taken(cli.airlock.sandbox_transitions(thread=thread), limit)
    names = ("at", "thread", "sandbox", "state", "reason")
    cli.show({"transitions": found}, lambda _: out.print(Rows(names, [_cells(one) for one in found])))


async def _follow(cli: GatewayCli, thread: str | None, after: int | None) -> None:
    from gateway.errors import Unavailable

    last = after
    try:
        async for one in cli.airlock.watch_sandbox_transitions(thread=thread, after_id=after):
            last = one.id
            cli.show(one, lambda one: out.print(printable("  ".join(_cells(one)))))
    except Unavailable as error:
        if last is None:
            raise
        raise Unavailable(f"{error}; go on with --follow --after {last}", **error.details) from error


def _cells(one: SandboxTransition) -> tuple[str, ...]:
    return local_time(one.at, seconds=True), one.thread, one.sandbox_id, one.state, one.reason
