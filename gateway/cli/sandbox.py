"""`airlock sandbox`: look at a tenant's sandboxes, and stop one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import DEFAULT_ADDRESS, Address, Json, Key, err, listing, out, print_json, run_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client.sandboxes import Sandbox

app = typer.Typer(help="Sandboxes: where the tool calls of a thread run.", no_args_is_help=True)
Thread = Annotated[str, typer.Argument(help="Thread whose sandbox it is.")]


@app.command("list")
def list_(
    *,
    runtime: Annotated[str, typer.Option(help="Only those of this runtime: runc or runsc.")] = "",
    image: Annotated[str, typer.Option(help="Only those of this image, as the policy names it.")] = "",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List the sandboxes that live."""

    async def work() -> Sequence[Sandbox]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return [one async for one in airlock.sandboxes(runtime=runtime, image=image)]

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"sandboxes": [_as_json(one) for one in found]})
    else:
        _show(found)


@app.command()
def get(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """Show the sandbox of a thread."""

    async def work() -> Sandbox:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.get_sandbox(thread)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
    else:
        _show([found])


@app.command()
def stop(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """Remove the sandbox of a thread with all that runs in it; its files stay, and its next call makes another."""

    async def work() -> Sandbox:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.stop_sandbox(thread)

    with SlowWork(f"stopping the sandbox of thread {thread}"):
        found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
    else:
        err.print(f"stopped {found.id}; the files of thread {found.thread} stay", markup=False)


def _show(found: Sequence[Sandbox]) -> None:
    from gateway.cli.printable import printable

    table = listing("id", "thread", "image", "runtime", "made", "calls", whole=("id", "made"))
    for one in found:
        made = one.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
        named = (Text(printable(name)) for name in (one.thread, one.image))  # Text: brackets in a name are no markup
        table.add_row(one.id, *named, one.runtime, made, str(one.calls))
    out.print(table)


def _as_json(one: Sandbox) -> dict[str, Any]:
    return {**asdict(one), "created_at": one.created_at.isoformat()}
