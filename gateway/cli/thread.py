"""`airlock thread`: the threads of a tenant, and what was said in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_USAGE,
    Address,
    Json,
    Key,
    fail,
    out,
    print_json,
    run_client,
)
from gateway.cli.thread_adopt import adopt
from gateway.cli.thread_set import set_

if TYPE_CHECKING:
    from gateway.client import Thread, ThreadMessage

app = typer.Typer(help="Threads: what was said in them, and what is kept with them.", no_args_is_help=True)
app.command()(adopt)
app.command("set")(set_)
Name = Annotated[str, typer.Argument(metavar="THREAD", help="As `airlock thread list` shows it.")]


@app.command("list")
def list_(
    *,
    prefix: Annotated[str, typer.Option(help="Only those whose names begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List threads, the newest first."""

    async def work() -> list[Thread]:
        from gateway.client import Client

        found: list[Thread] = []
        async with Client(address, key) as airlock:
            async for thread in airlock.list_threads(prefix=prefix):
                found.append(thread)
                if len(found) == limit:
                    break
        return found

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([{**_as_json(one), "metadata": None} for one in found])
        return
    if not found:
        out.print("no threads")
        return
    from gateway.cli.printable import one_line
    from gateway.cli.rows import Rows

    times = [one.created_at.astimezone().strftime("%Y-%m-%d %H:%M") for one in found]
    rows = [(one_line(one.name, 256), made, one.run_id) for one, made in zip(found, times, strict=True)]
    out.print(Rows(("thread", "made", "run under way"), rows))


@app.command()
def show(thread: Name, *, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Show a thread with what is kept with it."""

    async def work() -> Thread:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.get_thread(thread)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(found))
        return
    from gateway.cli.printable import one_line

    made = found.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    under_way = f", run {found.run_id} is under way" if found.run_id else ""
    out.print(f"{one_line(found.name, 256)}: {found.messages} messages, made {made}{under_way}", markup=False)
    for name, value in (found.metadata or {}).items():
        out.print(f"  {one_line(name, 80)} = {one_line(json.dumps(value, ensure_ascii=False), 400)}", markup=False)


@app.command()
def messages(thread: Name, *, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Show what was said in a thread, the oldest first; with --json one message a line."""

    async def work() -> None:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            async for message in airlock.messages(thread):
                if as_json:
                    print_json(asdict(message))
                else:
                    _say(message)

    run_client(work(), as_json=as_json)


@app.command()
def delete(
    thread: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Remove a thread for good: its files, its messages and its runs. The audit stays."""
    if not yes:
        if as_json:
            fail("nobody can be asked with --json: say --yes", EXIT_USAGE, as_json=True)
        typer.confirm(f"Remove thread {thread!r} with its files, messages and runs?", abort=True)

    async def work() -> Mapping[str, int]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.delete_thread(thread)

    with SlowWork(f"removing thread {thread}"):
        removed = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"thread": thread, "removed": removed})
        return
    told = ", ".join(f"{count} {table}" for table, count in removed.items() if count)
    out.print(f"removed: {told or 'nothing was kept of it'}", markup=False)


def _say(message: ThreadMessage) -> None:
    from gateway.cli.printable import one_line
    from gateway.support.printable_text import printable

    out.print(f"{message.position} {message.role}", style="bold", markup=False)
    if message.content:
        out.print(printable(message.content), markup=False)
    for call in message.tool_calls:
        arguments = one_line(json.dumps(call.get("arguments"), ensure_ascii=False), 400)
        out.print(f"→ {one_line(call.get('name'), 80)} {arguments}", style="cyan", markup=False)


def _as_json(thread: Thread) -> dict[str, Any]:
    return asdict(thread) | {"created_at": thread.created_at.isoformat()}
