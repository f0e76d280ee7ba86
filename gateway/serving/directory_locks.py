"""Locks: one gateway per state directory, as two would end each other's runs; one database per shared directory.

A gateway of several workers counts as one. Its parent locks the directory, and each worker a slot: a file with the id
of its process, locked while it lives. An id in an unlocked slot is that of a dead process. All gateways of a database
share the instance id in the labels of containers and volumes, and so workspaces.
"""

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.errors import Misconfigured
from gateway.serving.workers import Worker
from gateway.storage.database import Database, DatabaseIdentity, agreed
from gateway.support.clock import make_id

_SLOT = re.compile(r"slot-(\d{1,6})")
log = structlog.get_logger(__name__)
_TRIES = 10
INSTANCE = "instance"
_ID = re.compile(r"gw_[0-9a-f]{24}")


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file until the block ends; the kernel also releases its lock when this process dies."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writable(path: Path, shown: str) -> Iterator[int]:
    """Open a file in the state directory; Misconfigured if it cannot be written."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = stack.enter_context(_opened(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise Misconfigured(f"{shown}: {error.strerror}; the gateway needs write access to it") from error
        yield descriptor


@contextlib.contextmanager
def locked_state(state_dir: Path) -> Iterator[None]:
    """Lock the directory until the block ends."""
    with _writable(state_dir / "lock", f"state_dir {state_dir}") as descriptor:
        if not try_lock(descriptor):
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise Misconfigured(
                f"state_dir {state_dir} is in use by another gateway (process {holder or 'unknown'}): stop it, or "
                "give this gateway its own state_dir"
            )
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield


@dataclass(frozen=True)
class Slot:
    """A worker's slot. `predecessors` are the ids of processes that died without an orderly end."""

    descriptor: int
    predecessors: tuple[str, ...]

    def record(self, process_id: str) -> None:
        """Store the id of this process, once it has taken over from its predecessors."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, process_id.encode("ascii"), 0)


@contextlib.contextmanager
def locked_slot(state_dir: Path, worker: Worker) -> Iterator[Slot]:
    """Lock a worker's slot until the block ends. The first worker also inherits from workers that no longer exist."""
    path = state_dir / f"slot-{worker.index}"
    with _writable(path, str(path)) as descriptor:
        if not try_lock(descriptor):
            raise Misconfigured(
                f"{path} is locked by a worker of an earlier gateway that has not stopped yet: try again"
            )
        found = [_id_in(descriptor)]
        if worker.index == 0:
            found += _abandoned(state_dir, worker.count)
        yield Slot(descriptor, tuple(one for one in found if one))
        os.ftruncate(descriptor, 0)  # an orderly end leaves nothing to inherit


def _abandoned(state_dir: Path, count: int) -> list[str]:
    """Return the ids in slots past the last worker's, and remove them: there were more workers before."""
    found = []
    for path in state_dir.glob("slot-*"):
        number = _SLOT.fullmatch(path.name)
        if number is None or int(number[1]) < count:
            continue
        with _opened(path, os.O_RDWR) as descriptor:
            if try_lock(descriptor):
                found.append(_id_in(descriptor))
                path.unlink(missing_ok=True)
    return found


def try_lock(descriptor: int) -> bool:
    """Lock a file exclusively if no other process has locked it; return whether it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _id_in(descriptor: int) -> str:
    return os.pread(descriptor, 128, 0).decode("ascii", "replace").strip()


@contextlib.contextmanager
def locked_for(directory: Path, instance: str, database: DatabaseIdentity) -> Iterator[None]:
    """Lock a directory for the gateways of one database until the block ends. Raises Misconfigured, and OSError.

    A copied database must not use its original's directories, whose instance id it has: the file that they lock names
    the database. A lock that no gateway holds gets the new name: the database was moved, or restored in place.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _opened(_path(directory, instance), os.O_RDWR | os.O_CREAT) as descriptor:
        _lock(descriptor, directory, database)
        yield


def refuse_copy(directory: Path, instance: str, database: DatabaseIdentity) -> None:
    """Raise Misconfigured if locked_for() would, without changing anything. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(_path(directory, instance), os.O_RDONLY) as descriptor:
        holder = _read(descriptor)
        if holder is not None and holder.id != database.id and not try_lock(descriptor):
            raise _is_copy(directory, holder, database)


def refuse_in_use(directory: Path, instance: str) -> None:
    """Raise Misconfigured while a gateway of this instance uses a directory. Changes nothing. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(_path(directory, instance), os.O_RDONLY) as descriptor:
        if not try_lock(descriptor):
            raise Misconfigured(
                "another gateway with the same database is running on this engine and uses the same containers "
                "and volumes: stop it first"
            )


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
            time.sleep(0.01)  # another process of this gateway may be doing the same
            continue
        if holder is not None and holder.shown != database.shown:
            log.warning("the database was moved or restored", directory=str(directory), before=holder.shown)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"id": database.id, "shown": database.shown}).encode(), 0)
    raise Misconfigured(f"another gateway is claiming {directory} at this moment: try again")


def _read(descriptor: int) -> DatabaseIdentity | None:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
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


async def shared_instance(database: Database, state_dir: Path) -> str:
    """Return the database's instance id; `state_dir` gets a copy.

    A database without one adopts the id that an earlier version stored in the state directory.
    """
    path = state_dir / INSTANCE
    own = _own(path)
    instance = await agreed(database, INSTANCE, offered=own or make_id("gw"))
    if own not in (None, instance):
        raise Misconfigured(
            f"{path} names other containers and workspaces ({own}) than the database does ({instance}), and theirs "
            "would be lost. Give this gateway its own database, or remove that file if they are not needed"
        )
    if own is None:
        try:
            temporary = path.with_name(f".{INSTANCE}.{make_id('new')}")
            temporary.write_text(instance, encoding="ascii")
            temporary.replace(path)
        except OSError as error:
            raise Misconfigured(f"{path}: {error}") from error
    return instance


def _own(path: Path) -> str | None:
    try:
        instance = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: {error}") from error
    if not _ID.fullmatch(instance):
        raise Misconfigured(
            f"{path} is damaged: it names this gateway's containers and workspaces. Restore it from the label "
            "airlock.instance of one of them (`docker volume inspect`); without it their files are lost"
        )
    return instance
