"""`airlock sandbox history`: what became of sandboxes, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.rows import Rows
from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Address, Json, Key, fail, out, print_json, run_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.sandbox_transitions import SandboxTransition


def history(
    *,
    thread: Annotated[str | None, typer.Option(help="Only those of this thread.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Tell what comes from now on, until Ctrl-C.")] = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="With --follow: from after this one on, by its id in --json.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many, the newest ones.")] = 100,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Show what became of sandboxes, the newest first: made, stopped for being idle, resumed, removed, and why.

    With --follow what becomes of them from now on, as it happens; with --json a line for each.
    """
    if after is not None and not follow:
        fail("--after is for --follow", EXIT_USAGE, as_json=as_json)
    if follow:
        run_client(_follow(address, key, thread, after, as_json=as_json), as_json=as_json)
        return

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


async def _follow(address: str, key: str, thread: str | None, after: int | None, *, as_json: bool) -> None:
    from gateway.client import Client
    from gateway.errors import Unavailable
    from gateway.support.printable_text import printable

    last = after
    try:
        async with Client(address, key) as airlock:
            async for one in airlock.watch_sandbox_transitions(thread=thread, after_id=after):
                last = one.id
                if as_json:
                    print_json(_as_json(one))
                else:
                    told = (_at(one), one.thread, one.sandbox_id, one.state, one.reason)
                    out.print(printable("  ".join(told)), markup=False, highlight=False, soft_wrap=True)
    except Unavailable as error:
        if last is None:
            raise
        raise Unavailable(f"{error}; go on with --follow --after {last}", **error.details) from error


def _show(found: Sequence[SandboxTransition]) -> None:
    rows = [(_at(one), one.thread, one.sandbox_id, one.state, one.reason) for one in found]
    out.print(Rows(("at", "thread", "sandbox", "state", "reason"), rows))


def _at(one: SandboxTransition) -> str:
    return one.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _as_json(one: SandboxTransition) -> dict[str, Any]:
    return {**asdict(one), "at": one.at.isoformat()}
