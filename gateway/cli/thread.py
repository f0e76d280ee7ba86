"""`airlock thread`: the threads of a tenant, their messages and metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import Commands, GatewayCli, Limit, Yes, taken
from gateway.cli.printable import local_time, one_line
from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import fail, out
from gateway.cli.thread_adopt import adopt
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.client import Thread, ThreadMessage

app = Commands(help="Threads, their messages and metadata.")
app.command()(adopt)
Name = Annotated[str, typer.Argument(metavar="THREAD", help="Name, as listed by `airlock thread list`.")]


@app.command("set")
async def set_(
    cli: GatewayCli,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Name of the thread; created if it does not exist.")],
    entries: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Metadata to set; a VALUE that is not JSON is a string."),
    ] = None,
    *,
    remove: Annotated[list[str] | None, typer.Option(help="Name to remove; repeatable.")] = None,
) -> None:
    """Set or remove metadata of a thread and print all of it; refused while a run is active in the thread."""
    changed = dict(_entry(one) for one in entries or ())
    if not changed and not remove:
        fail("nothing to change: give NAME=VALUE or --remove NAME")
    await cli.airlock.set_thread_metadata(thread, changed, remove=remove or ())
    found = await cli.airlock.get_thread(thread)
    cli.show({"thread": found.name, "metadata": found.metadata}, lambda _: _show_metadata(found))


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    prefix: Annotated[str, typer.Option(help="Filter by the beginning of the name.")] = "",
    limit: Limit = 50,
) -> None:
    """List threads, newest first."""
    found = await taken(cli.airlock.list_threads(prefix=prefix), limit)
    cli.show([vars(one) | {"metadata": None} for one in found], lambda _: _list(found))


@app.command()
async def show(cli: GatewayCli, thread: Name) -> None:
    """Show a thread and its metadata."""
    cli.show(await cli.airlock.get_thread(thread), _show)


@app.command()
async def messages(cli: GatewayCli, thread: Name) -> None:
    """Show the messages of a thread, oldest first; with --json, one per line."""
    async for message in cli.airlock.messages(thread):
        cli.show(message, _say)


@app.command()
def delete(cli: GatewayCli, thread: Name, *, yes: Yes = False) -> None:
    """Delete a thread with its files, messages and runs. Audit records stay."""
    cli.confirm(f"Delete thread {thread!r} with its files, messages and runs?", yes=yes, to_stderr=False)
    with SlowWork(f"deleting thread {thread}"):
        removed = cli.wait(cli.airlock.delete_thread(thread))
    removed_rows = ", ".join(f"{count} {table}" for table, count in removed.items() if count)
    cli.show({"thread": thread, "removed": removed}, f"removed: {removed_rows or 'nothing was stored'}")


def _list(found: Sequence[Thread]) -> None:
    if not found:
        out.print("no threads")
        return
    rows = [(one_line(one.name, 256), local_time(one.created_at), one.run_id) for one in found]
    out.print(Rows(("thread", "created", "active run"), rows))


def _show(thread: Thread) -> None:
    made = local_time(thread.created_at, seconds=True)
    active = f", run {thread.run_id} is active" if thread.run_id else ""
    out.print(f"{one_line(thread.name, 256)}: {thread.messages} messages, created {made}{active}")
    _show_metadata(thread, indent="  ")


def _say(message: ThreadMessage) -> None:
    out.print(f"{message.position} {message.role}", style="bold")
    if message.content:
        out.print(printable(message.content))
    for call in message.tool_calls:
        arguments = one_line(json.dumps(call.get("arguments"), ensure_ascii=False), 400)
        out.print(f"→ {one_line(call.get('name'), 80)} {arguments}", style="cyan")


def _show_metadata(thread: Thread, indent: str = "") -> None:
    """Print each entry on a line."""
    for name, value in (thread.metadata or {}).items():
        out.print(f"{indent}{one_line(name, 80)} = {one_line(json.dumps(value, ensure_ascii=False), 400)}")


def _entry(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        fail(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
