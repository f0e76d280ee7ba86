"""`airlock thread`: the threads of a tenant, and what was said in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, Yes, taken
from gateway.cli.printable import local_time, one_line
from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import out
from gateway.cli.thread_adopt import adopt
from gateway.cli.thread_set import set_, show_metadata
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.client import Thread, ThreadMessage

app = Commands(help="Threads: what was said in them, and what is kept with them.")
app.command()(adopt)
app.command("set")(set_)
Name = Annotated[str, typer.Argument(metavar="THREAD", help="As `airlock thread list` shows it.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    prefix: Annotated[str, typer.Option(help="Only those whose names begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
) -> None:
    """List threads, the newest first."""
    found = await taken(cli.airlock.list_threads(prefix=prefix), limit)
    cli.show([vars(one) | {"metadata": None} for one in found], lambda _: _list(found))


@app.command()
async def show(cli: GatewayCli, thread: Name) -> None:
    """Show a thread with what is kept with it."""
    cli.show(await cli.airlock.get_thread(thread), _show)


@app.command()
async def messages(cli: GatewayCli, thread: Name) -> None:
    """Show what was said in a thread, the oldest first; with --json one message a line."""
    async for message in cli.airlock.messages(thread):
        cli.show(message, _say)


@app.command()
def delete(cli: GatewayCli, thread: Name, *, yes: Yes = False) -> None:
    """Remove a thread for good: its files, its messages and its runs. The audit stays."""
    cli.confirm(f"Remove thread {thread!r} with its files, messages and runs?", yes=yes, to_stderr=False)
    with SlowWork(f"removing thread {thread}"):
        removed = cli.wait(cli.airlock.delete_thread(thread))
    removed_rows = ", ".join(f"{count} {table}" for table, count in removed.items() if count)
    cli.show({"thread": thread, "removed": removed}, f"removed: {removed_rows or 'nothing was kept of it'}")


def _list(found: Sequence[Thread]) -> None:
    if not found:
        out.print("no threads")
        return
    rows = [(one_line(one.name, 256), local_time(one.created_at), one.run_id) for one in found]
    out.print(Rows(("thread", "made", "run under way"), rows))


def _show(thread: Thread) -> None:
    made = local_time(thread.created_at, seconds=True)
    under_way = f", run {thread.run_id} is under way" if thread.run_id else ""
    out.print(f"{one_line(thread.name, 256)}: {thread.messages} messages, made {made}{under_way}")
    show_metadata(thread, indent="  ")


def _say(message: ThreadMessage) -> None:
    out.print(f"{message.position} {message.role}", style="bold")
    if message.content:
        out.print(printable(message.content))
    for call in message.tool_calls:
        arguments = one_line(json.dumps(call.get("arguments"), ensure_ascii=False), 400)
        out.print(f"→ {one_line(call.get('name'), 80)} {arguments}", style="cyan")
