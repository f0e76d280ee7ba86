"""The channel directory that an engine's gateways use. A gateway that would use another one does not start.

The directory has the locks that show gateways each other's sandboxes. Without them, a gateway takes running sandboxes
for orphans and removes them. So the database has a record for each engine, the directory has an identity in a file, and
containers are labelled with it: a mismatch is refused before anything is adopted or removed.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gateway.errors import Misconfigured
from gateway.storage.engine_store import ChannelRecord, ChannelStore
from sandbox.engines.docker.channel_directory import (
    IDENTITY,
    ChannelsInUse,
    channels_in_use,
    has_workspaces,
    new_identity,
    read_identity,
    write_identity,
)
from sandbox.engines.docker.docker_requests import DockerRequests

log = structlog.get_logger(__name__)
_CONFIGURED_BY = "sandbox.channel_dir or AIRLOCK_CHANNEL_DIR; unset, it is `channels` in the state directory"


@dataclass(frozen=True)
class ChannelUse:
    """A gateway's configured directory, and what its engine has of its instance.

    `identity` is the directory's, None if it has none.
    """

    engine: str
    instance: str
    directory: Path
    identity: str | None
    containers: Sequence[ChannelsInUse]
    has_workspaces: bool


async def channel_use(requests: DockerRequests, engine: str, instance: str, directory: Path) -> ChannelUse:
    """Inspect an engine, by its id, and the directory, without changing either. Raises SandboxError, Misconfigured."""
    found = await channels_in_use(requests, instance), await has_workspaces(requests, instance)
    return ChannelUse(engine, instance, directory, _identity(directory), *found)


def _identity(directory: Path) -> str | None:
    try:
        return read_identity(directory)
    except (OSError, ValueError) as error:
        raise Misconfigured(
            f"the channel directory {directory} cannot be read: {error}. Make it readable to the gateway, or remove a "
            f"damaged {IDENTITY} file while no gateway runs"
        ) from error


async def claim_channels(use: ChannelUse, store: ChannelStore) -> str:
    """Return the directory's identity, recorded for the engine. Misconfigured if another directory is in use."""
    records = await store.records()
    if use.identity is None:  # another worker that starts may have claimed it since the look
        use = replace(use, identity=_identity(use.directory))
    identity = check_channels(use, records)
    known = next((one for one in records if one.engine == use.engine), None)
    if known is not None and known.identity == use.identity and known.path == use.directory:
        return identity
    written = False
    if use.identity is None:
        try:
            identity, written = write_identity(use.directory, identity) or identity, True
        except (OSError, ValueError) as error:
            raise Misconfigured(f"the channel directory {use.directory} cannot be written: {error}") from error
    claimed = replace(use, identity=identity)
    try:
        await store.claim(
            ChannelRecord(use.engine, identity, use.directory), lambda found: _refuse_others(claimed, found)
        )
    except Misconfigured:
        if written:  # a refused directory stays as it was
            (use.directory / IDENTITY).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                use.directory.rmdir()
        raise
    for record in records:
        if record.identity == identity and record.engine != use.engine:
            log.warning("the engine has a new id", before=record.engine, now=use.engine, channels=str(use.directory))
    return identity


def check_channels(use: ChannelUse, records: Sequence[ChannelRecord]) -> str:
    """Return the identity that the directory has or will have; Misconfigured if it is the wrong directory."""
    identity = use.identity
    if identity is None:
        mine = next((one for one in records if one.engine == use.engine), None)
        if mine is None:
            identity = new_identity()
        elif mine.path != use.directory:
            raise _other_directory(use, mine)
        elif mine.served_at:
            raise Misconfigured(
                f"the channel directory {use.directory} is empty, but a gateway at {mine.served_at} serves engine "
                f"{use.engine} with a directory of this path. Mount the same directory of the host for both gateways. "
                "If the directory was removed, stop that gateway first; a killed one counts for some seconds more"
            )
        else:
            identity = mine.identity  # lost, and created again
    _refuse_others(replace(use, identity=identity), records)
    return identity


def _refuse_others(use: ChannelUse, records: Sequence[ChannelRecord]) -> None:
    """Raise Misconfigured if the database or the engine knows another directory."""
    for record in records:
        if record.engine == use.engine:
            if record.identity != use.identity:
                raise _other_directory(use, record)
            _refuse_copy(use, record)
        elif record.identity == use.identity and not (use.containers or use.has_workspaces):
            raise Misconfigured(
                f"the channel directory {use.directory} belongs to engine {record.engine}, and this gateway uses "
                f"engine {use.engine}, which has nothing of this database's. Give each engine a directory of its own "
                f"({_CONFIGURED_BY}). If engine {record.engine} is gone for good, remove {use.directory} while no "
                "gateway runs, start again, and run `airlock thread adopt`"
            )
    paths = {use.directory, *(one.path for one in records if one.engine == use.engine)}
    for found in use.containers:
        if found.identity not in ("", use.identity) or (not found.identity and found.path not in paths):
            raise Misconfigured(
                f"sandboxes of this database on engine {use.engine} use the channel directory {found.path}, and this "
                f"gateway would use {use.directory} and remove them. Set the channel directory to {found.path} "
                f"({_CONFIGURED_BY}). {_copies(use)} If these sandboxes are not needed, remove them: `docker rm -f "
                f"$(docker ps -aq --filter label=airlock.instance={use.instance})`"
            )


def _refuse_copy(use: ChannelUse, record: ChannelRecord) -> None:
    """Raise Misconfigured if the directory is a copy of the recorded one, which still exists."""
    with contextlib.suppress(OSError, ValueError):
        original = record.path
        if original != use.directory and read_identity(original) == use.identity:
            if original.samefile(use.directory):
                return
            raise Misconfigured(
                f"the channel directory {use.directory} is a copy of {original}, which engine {use.engine} uses. Set "
                f"the channel directory to {original} ({_CONFIGURED_BY}). {_copies(use)} If {original} is the copy, "
                "remove that one"
            )


def _other_directory(use: ChannelUse, record: ChannelRecord) -> Misconfigured:
    return Misconfigured(
        f"the gateways of engine {use.engine} use the channel directory {record.path}, as the database records, and "
        f"this gateway would use {use.directory}: it would remove the sandboxes of the others. Set the channel "
        f"directory to {record.path} ({_CONFIGURED_BY}). To move it, stop every gateway of the engine, remove "
        f"{use.directory} if it exists, then `mv {record.path} {use.directory}`. If {record.path} is lost, stop every "
        f"gateway, then `mkdir -p {use.directory} && echo {record.identity} > {use.directory / IDENTITY}`. "
        f"{_copies(use)}"
    )


def _copies(use: ChannelUse) -> str:
    return (
        "If this database is a copy of another, give its gateway an engine of its own: on the same engine both would "
        f"use the same workspaces (instance {use.instance})."
    )
