"""`airlock thread adopt`: move the threads of a lost engine to this one.

It works on the database of a configuration; a gateway may be running.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.backend import CONFIG, ConfigFile, user_name
from gateway.cli.command import Cli, Yes
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import EXIT_GATEWAY, fail

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.storage.engine_store import EngineStore


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
    from gateway.errors import AirlockError, Misconfigured
    from sandbox.errors import SandboxError

    try:
        with SlowWork(f"adopting the threads of {engine}"):
            own, moved = cli.wait(_adopt(config, engine, tenant))
    except Misconfigured:
        raise
    except (SandboxError, AirlockError) as error:
        fail(str(error), EXIT_GATEWAY)
    said = f"{sum(moved.values()):,} threads of {len(moved):,} tenants are now on {own}"
    cli.show({"from": engine, "to": own, "threads": dict(moved)}, said)


async def _adopt(path: Path, engine: str, tenant: str) -> tuple[str, Mapping[str, int]]:
    """Return the id of the configuration's engine, and how many threads of each tenant moved to it."""
    from gateway.config.config import Config
    from gateway.storage.database import Database
    from gateway.storage.engine_store import EngineServed, EngineStore

    config = Config.load(path)
    if config.sandbox.engine == "memory":
        fail("the in-memory engine cannot adopt threads of other engines")
    own = await _own_engine(config)
    if engine == own:
        fail(f"{engine} is the engine of this configuration; its threads are already here")
    database = await Database.open(config.resolved_database_url())
    try:
        store = EngineStore(database)
        moved = await store.adopt(engine, to=own, tenant=tenant or None, by=f"local:{user_name()}")
        if not moved:
            fail(await _none_there(store, engine, tenant))
    except EngineServed as error:
        fail(f"a gateway at {error} still serves engine {engine}: stop it first")
    finally:
        await database.close()
    return own, moved


async def _own_engine(config: Config) -> str:
    """Return the id of the configuration's engine. Raises SandboxError if it does not answer."""
    from gateway.support.clock import make_id
    from sandbox.engines.docker.docker_engine import DockerEngine
    from sandbox.engines.docker.docker_requests import DockerRequests

    engine = DockerEngine(
        instance=make_id("adopt"),
        channel_root=config.resolved_channel_dir(),
        runtime_image=config.sandbox.runtime_image,
        requests=DockerRequests(config.sandbox.engine_url, "sandbox.engine_url of the configuration"),
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
