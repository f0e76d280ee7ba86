"""`airlock thread set`: what is kept with a thread."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Address, Json, Key, fail, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.client import Thread


def set_(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="It is made where it is not there.")],
    entries: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="A value is JSON; what is not JSON is a text."),
    ] = None,
    *,
    remove: Annotated[list[str] | None, typer.Option(help="Name to remove; can be given several times.")] = None,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Set, or remove, what is kept with a thread, and show all of it; not while a run is under way in it."""
    changed = dict(_entry(one, as_json=as_json) for one in entries or ())
    if not changed and not remove:
        fail("NAME=VALUE, or --remove NAME, says what is to change", EXIT_USAGE, as_json=as_json)

    async def work() -> Thread:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            await airlock.set_thread_metadata(thread, changed, remove=remove or ())
            return await airlock.get_thread(thread)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"thread": found.name, "metadata": found.metadata})
        return
    from gateway.cli.printable import one_line

    for name, value in (found.metadata or {}).items():
        out.print(f"{one_line(name, 80)} = {one_line(json.dumps(value, ensure_ascii=False), 400)}", markup=False)


def _entry(text: str, *, as_json: bool) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        fail(f"{text!r}: NAME=VALUE is expected", EXIT_USAGE, as_json=as_json)
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
