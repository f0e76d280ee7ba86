"""`airlock thread`: the threads of a tenant, their messages and metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import (
    CONFIG,
    Cli,
    Commands,
    ConfigFile,
    GatewayCli,
    Limit,
    Yes,
    taken,
    user_name,
)
from gateway.cli.printable import Rows, local_time, one_line
from gateway.cli.terminal import EXIT_GATEWAY, SlowWork, fail, out
from gateway.errors import AirlockError, Misconfigured
from gateway.support.printable_text import printable
from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from gateway.client import Thread, ThreadMessage
    from gateway.config.config import Config
    from gateway.storage.database import Database
    from gateway.storage.engine_store import EngineStore

app = Commands(help="Threads, their messages and metadata.")
Name = Annotated[str, typer.Argument(metavar="THREAD", help="Name, as listed by `airlock thread list`.")]


@app.command()
def adopt(
    cli: Cli,
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="Id of the lost engine, as in OTHER_ENGINE errors.")],
    *,
    tenant: Annotated[str, typer.Option(help="Filter by tenant.")] = "",
    yes: Yes = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Move the threads of a lost engine to this one, where their runs continue. No files are moved.

    A thread whose workspace was not copied here before gets an empty one. Refused while a gateway serves the other
    engine. Recorded in each tenant's audit as `threads_adopted`.
    """
    whose = f" of tenant {tenant}" if tenant else ""
    question = f"Move all threads{whose} from engine {engine} to this one, with only the files that are here?"
    cli.confirm(question, yes=yes, to_stderr=False)
    try:
        with SlowWork(f"adopting the threads of {engine}"):
            own, moved = cli.wait(_adopt(config, engine, tenant))
    except Misconfigured:
        raise
    except (SandboxError, AirlockError) as error:
        fail(str(error), EXIT_GATEWAY)
    said = f"{sum(moved.values()):,} threads of {len(moved):,} tenants are now on {own}"
    cli.show({"from": engine, "to": own, "threads": dict(moved)}, said)


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
    rows = [(one_line(one.name, 256), local_time(one.created_at), one.run_id) for one in found]
    shown = Rows(("thread", "created", "active run"), rows) if found else "no threads"
    cli.show([vars(one) | {"metadata": None} for one in found], shown)


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


def _show(thread: Thread) -> None:
    made = local_time(thread.created_at, seconds=True)
    active = f", run {thread.run_id} is active" if thread.run_id else ""
    out.print(f"{one_line(thread.name, 256)}: {thread.messages} messages, created {made}{active}")
    _show_metadata(thread, indent="  ")


def _say(message: ThreadMessage) -> None:
    out.print(f"{message.position} {message.role}", style="bold")
    if message.content:
        out.print(printable(message.content))
    for file in message.attachments:
        shown = f"{one_line(file.path, 256)} ({one_line(file.media_type, 80)}, {file.size_bytes:,} bytes)"
        out.print(f"⎙ {shown}", style="cyan")
    for call in message.tool_calls:
        arguments = one_line(json.dumps(call.get("arguments"), ensure_ascii=False), 400)
        out.print(f"→ {one_line(call.get('name'), 80)} {arguments}", style="cyan")


def _show_metadata(thread: Thread, indent: str = "") -> None:
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


async def _adopt(path: Path, engine: str, tenant: str) -> tuple[str, Mapping[str, int]]:
    """Return the id of the configuration's engine, and how many threads of each tenant moved to it."""
    from gateway.cli.database import local_database
    from gateway.config.config import Config
    from gateway.storage.engine_store import EngineServed, EngineStore

    config = Config.load(path)
    if config.sandbox.engine == "memory":
        fail("`engine: memory` cannot adopt threads of other engines")
    async with local_database(config) as database:
        own = await _own_engine(config, database)
        if engine == own:
            fail(f"{engine} is the engine of this configuration; its threads are already here")
        store = EngineStore(database)
        try:
            moved = await store.adopt(engine, to=own, tenant=tenant or None, by=f"local:{user_name()}")
        except EngineServed as error:
            fail(f"a gateway at {error} still serves engine {engine}: stop it first")
        if not moved:
            fail(await _none_there(store, engine, tenant))
        return own, moved


async def _own_engine(config: Config, database: Database) -> str:
    """Return the id of the configuration's engine. Raises SandboxError if it does not answer."""
    if config.sandbox.engine == "kubernetes":
        from gateway.composition.kubernetes import requests_of, site_of
        from gateway.serving.directory_locks import shared_instance
        from sandbox.engines.kubernetes.setup import Setup

        instance = await shared_instance(database, config.path(config.state_dir))
        requests = requests_of(config)
        try:
            return await Setup(requests, site_of(config, instance)).engine_id()
        finally:
            await requests.close()
    from gateway.sandboxes.docker_access import docker_requests
    from gateway.support.clock import make_id
    from sandbox.engines.docker.docker_engine import DockerEngine

    engine = DockerEngine(
        instance=make_id("adopt"),
        channel_root=config.resolved_channel_dir(),
        runtime_image=config.sandbox.runtime_image,
        requests=docker_requests(config),
    )
    try:
        return await engine.id()
    finally:
        await engine.close()


async def _none_there(store: EngineStore, engine: str, tenant: str) -> str:
    found = await store.engines()
    threads = (f"{one.id} ({one.threads:,}{', served by a gateway' if one.serves else ''})" for one in found)
    whose = f" of tenant {tenant!r}" if tenant else ""
    return f"no threads{whose} on engine {engine!r}; engines with threads: {', '.join(threads) or 'none'}"
