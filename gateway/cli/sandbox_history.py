"""`airlock sandbox history`: what became of sandboxes, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gateway.cli.terminal import DEFAULT_ADDRESS, Address, Json, Key, listing, out, print_json, run_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.sandbox_transitions import SandboxTransition


def history(
    *,
    thread: Annotated[str | None, typer.Option(help="Only those of this thread.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many, the newest ones.")] = 100,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Show what became of sandboxes, the newest first: made, stopped for being idle, resumed, removed, and why."""

    async def work() -> Sequence[SandboxTransition]:
        from gateway.client import Client

        found: list[SandboxTransition] = []
        async with Client(address, key) as airlock:
            async for one in airlock.sandbox_transitions(thread=thread):
                found.append(one)
                if len(found) >= limit:
                    break
        return found

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"transitions": [_as_json(one) for one in found]})
    else:
        _show(found)


def _show(found: Sequence[SandboxTransition]) -> None:
    from gateway.cli.printable import printable

    table = listing("at", "thread", "sandbox", "state", "reason", whole=("at", "sandbox", "state"))
    for one in found:
        at = one.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        # Text: brackets in a name are no markup.
        table.add_row(at, Text(printable(one.thread)), one.sandbox_id, one.state, Text(printable(one.reason)))
    out.print(table)


def _as_json(one: SandboxTransition) -> dict[str, Any]:
    return {**asdict(one), "at": one.at.isoformat()}
