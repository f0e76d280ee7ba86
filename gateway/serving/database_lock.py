"""Keeps a copied database from using the directories of its original, whose instance id it has.

The gateways of a database share a lock in each of their directories, a file that names the database. A gateway of
another database with the same instance id finds the lock taken and does not start. A lock that no gateway holds gets
the new name: the database was moved, or restored in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import structlog

from gateway.errors import Misconfigured
from gateway.serving.state_lock import try_lock
from gateway.storage.database import DatabaseIdentity

log = structlog.get_logger(__name__)
_LIMIT_BYTES = 4096
_TRIES = 10
_RETRY_S = 0.01


@contextlib.contextmanager
def locked_for(directory: Path, instance: str, database: DatabaseIdentity) -> Iterator[None]:
    """Lock a directory for the gateways of one database until the block ends. Raises Misconfigured, and OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(_path(directory, instance), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, directory, database)
        yield
    finally:
        os.close(descriptor)


def refuse_copy(directory: Path, instance: str, database: DatabaseIdentity) -> None:
    """Raise Misconfigured if locked_for() would, without changing anything. Raises OSError."""
    try:
        descriptor = os.open(_path(directory, instance), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        holder = _read(descriptor)
        if holder is not None and holder.id != database.id and not try_lock(descriptor):
            raise _is_copy(directory, holder, database)
    finally:
        os.close(descriptor)


def refuse_in_use(directory: Path, instance: str) -> None:
    """Raise Misconfigured while a gateway of this instance uses a directory. Changes nothing. Raises OSError."""
    try:
        descriptor = os.open(_path(directory, instance), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not try_lock(descriptor):
            raise Misconfigured(
                "another gateway with the same database is running on this engine and uses the same containers "
                "and volumes: stop it first"
            )
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path, database: DatabaseIdentity) -> None:
    # Upgrading a lock is not atomic, so the file is read again after each change.
    for attempt in range(1, _TRIES + 1):
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # exclusive locks last only as long as it takes to write a line
        holder = _read(descriptor)
        if holder is not None and holder.id == database.id:
            return
        if not try_lock(descriptor):
            if holder is not None and attempt == _TRIES:
                raise _is_copy(directory, holder, database)
            time.sleep(_RETRY_S)  # another process of this gateway may be doing the same
            continue
        if holder is not None and holder.shown != database.shown:
            log.warning("the database was moved or restored", directory=str(directory), before=holder.shown)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"id": database.id, "shown": database.shown}).encode(), 0)
    raise Misconfigured(f"another gateway is claiming {directory} at this moment: try again")


def _read(descriptor: int) -> DatabaseIdentity | None:
    try:
        found = json.loads(os.pread(descriptor, _LIMIT_BYTES, 0))
        return DatabaseIdentity(str(found["id"]), str(found["shown"]))
    except (ValueError, TypeError, KeyError):
        return None


def _path(directory: Path, instance: str) -> Path:
    return directory / f"{instance}.database"


def _is_copy(directory: Path, holder: DatabaseIdentity, database: DatabaseIdentity) -> Misconfigured:
    return Misconfigured(
        f"{directory} is in use by a gateway whose database is {holder.shown}; this gateway's is {database.shown}, a "
        "copy of it with the same instance id, so both would change the same sandboxes, workspaces and snapshots. "
        "Point both gateways at one database, or stop the other gateway if this database replaces its own. A copy for "
        "tests needs an engine, a channel_dir and a snapshots_dir of its own"
    )
