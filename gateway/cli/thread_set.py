"""`airlock thread set`: what is kept with a thread."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import GatewayCli
from gateway.cli.printable import one_line
from gateway.cli.terminal import fail, out

if TYPE_CHECKING:
    from gateway.client import Thread


async def set_(
    cli: GatewayCli,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="It is made where it is not there.")],
    entries: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="A value is JSON; what is not JSON is a text."),
    ] = None,
    *,
    remove: Annotated[list[str] | None, typer.Option(help="Name to remove; can be given several times.")] = None,
) -> None:
    """Set, or remove, what is kept with a thread, and show all of it; not while a run is under way in it."""
    changed = dict(_entry(one) for one in entries or ())
    if not changed and not remove:
        fail("NAME=VALUE, or --remove NAME, says what is to change")
    await cli.airlock.set_thread_metadata(thread, changed, remove=remove or ())
    found = await cli.airlock.get_thread(thread)
    cli.show({"thread": found.name, "metadata": found.metadata}, lambda _: show_metadata(found))


def show_metadata(thread: Thread, indent: str = "") -> None:
    """Print what is kept with a thread, a line each."""
    for name, value in (thread.metadata or {}).items():
        out.print(f"{indent}{one_line(name, 80)} = {one_line(json.dumps(value, ensure_ascii=False), 400)}")


def _entry(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        fail(f"{text!r}: NAME=VALUE is expected")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
