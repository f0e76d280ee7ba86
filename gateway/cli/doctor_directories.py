"""The checks of the directories that the gateways of one engine and database share, by `airlock doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.finding import Finding

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.storage.database import Database, DatabaseIdentity
    from sandbox.engines.docker.docker_requests import DockerRequests


async def directory_findings(config: Config, engine: str, requests: DockerRequests) -> list[Finding]:
    """Return what a start would refuse, and change nothing; `engine` is an id. The database must be migrated.

    Raises SandboxError, Misconfigured, Unavailable.
    """
    from gateway.serving.instance import known_instance
    from gateway.storage.connecting import connect
    from gateway.storage.database import Database, identity_of

    database = Database(connect(config.resolved_database_url()))
    try:
        instance = await known_instance(database)
        if instance is None:
            return []  # no gateway has ever served this database
        identity = await identity_of(database)
        directories = {"channels": config.resolved_channel_dir(), "snapshots": config.resolved_snapshots_dir()}
        copied = [_copied(what, directory, instance, identity) for what, directory in directories.items()]
        channels = await _channels(config, engine, instance, requests, database)
        return [channels, *(finding for finding in copied if finding is not None)]
    finally:
        await database.close()


async def _channels(
    config: Config, engine: str, instance: str, requests: DockerRequests, database: Database
) -> Finding:
    from gateway.errors import Misconfigured
    from gateway.sandboxes.channel_claim import channel_use, check_channels
    from gateway.storage.engine_store import ChannelStore

    what, directory = "channel directory", config.resolved_channel_dir()
    try:
        use = await channel_use(requests, engine, instance, directory)
        check_channels(use, await ChannelStore(database).records())
    except Misconfigured as error:
        return Finding(what, "failed", f"this engine uses another directory than {directory}", str(error))
    return Finding(what, "ok", f"{directory}, used by engine {engine}")


def _copied(what: str, directory: Path, instance: str, identity: DatabaseIdentity) -> Finding | None:
    from gateway.errors import Misconfigured
    from gateway.serving.directory_locks import refuse_copy

    try:
        refuse_copy(directory, instance, identity)
    except Misconfigured as error:
        return Finding(f"database of {what}", "failed", f"another database uses {directory}", str(error))
    except OSError as error:
        return Finding(f"database of {what}", "warning", f"{directory}: {error.strerror}", "make it readable")
    return None
