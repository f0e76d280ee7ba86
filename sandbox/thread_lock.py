"""ThreadLock: which processes of a host use a thread's sandbox. One file for each thread that has a sandbox.

All gateways that share an engine share these files. Three bytes of a file are locked apart from each other:

    gate    exclusive   while the thread's sandbox is looked for, made or removed
    kept    shared      while a process keeps the sandbox;  exclusive: no other process does
    busy    shared      while a process has calls in it;    exclusive: no process has

`kept` and `busy` are locked exclusively behind the gate only. Unlinking the file marks its sandbox as removed, so a
process that still has it open knows before the next call. The kernel drops the locks of a process that dies, however it
dies. They are locks of the open file (F_OFD_SETLK), whose change from shared to exclusive is one step.
"""

import asyncio
import fcntl
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from sandbox.errors import SandboxUnavailable

_GATE, _KEPT, _BUSY = range(3)
# struct flock: type, whence, start, length, pid (which must be 0).
_FLOCK = struct.Struct("hhqqi0q")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class Note:
    """What a lock file says of its sandbox: its id, the digest of how it was made, and what its owner calls it.

    Of a sandbox that was found without a file only the first two are known. `created_s` is in seconds since 1970.
    `held` is the pooled sandbox whose volume has the files, "" where the volume is the thread's own. `unchecked` says
    that a pooled sandbox is being claimed; where the gate is open, its process died. `ended_processes` is how many
    background processes ended when the thread's sandbox was stopped, and were not reported yet.
    """

    sandbox: str
    made: str
    thread: str = ""
    image: str = ""
    runtime: str = ""
    created_s: float = 0.0
    held: str = ""
    unchecked: bool = False
    ended_processes: int = 0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Return the note in an object of JSON; what a later release says besides is passed over."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in said.items() if name in known})

    @classmethod
    def known(cls, note: Self | None, sandbox: str) -> Self:
        """Return a note if it is of this sandbox, else one with the sandbox's id alone."""
        return note if note is not None and note.sandbox == sandbox else cls(sandbox, "")


class ThreadLock:
    """An open lock file. Nothing of it is shared between threads of this process, nor its locks with another one."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a lock file, made if it is not there."""
        while True:
            try:
                return cls(path, os.open(path, _FLAGS | os.O_CREAT, 0o600))
            except FileNotFoundError:
                for directory in (path.parent.parent, path.parent):  # `mode` is not for the parents that it makes
                    directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def open_existing(cls, path: Path) -> Self | None:
        try:
            return cls(path, os.open(path, _FLAGS))
        except FileNotFoundError:
            return None

    @property
    def gone(self) -> bool:
        """Whether the sandbox was removed, or this was closed."""
        return self._descriptor is None or os.fstat(self._descriptor).st_nlink == 0

    def try_gate(self) -> bool:
        return self._lock(fcntl.F_WRLCK, _GATE)

    async def gate(self, limit_s: float) -> None:
        """Shut the gate; SandboxUnavailable when it stays shut for longer than `limit_s`."""
        retry_s = 0.002
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while not self.try_gate():
            if asyncio.get_running_loop().time() > deadline_s:
                raise SandboxUnavailable(
                    f"another gateway has been creating or removing this thread's sandbox for over {limit_s:.0f}"
                    " s: try again"
                )
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, 0.05)

    def is_shut(self) -> bool:
        """Return whether another holder is behind the gate; takes no lock."""
        return self._is_locked(_GATE)

    def leave(self) -> None:
        """Open the gate, and drop `busy`."""
        self._lock(fcntl.F_UNLCK, _BUSY)
        self._lock(fcntl.F_UNLCK, _GATE)

    # --- its users; all but begin_use and end_use behind the gate ---

    def hold(self) -> None:
        self._lock(fcntl.F_RDLCK, _KEPT)

    def hold_alone(self) -> bool:
        """Return whether no other process keeps it; then none can until the gate opens."""
        return self._lock(fcntl.F_WRLCK, _KEPT)

    def unused(self) -> bool:
        """Return whether no process has calls in it; then none can begin one until the gate opens."""
        return self._lock(fcntl.F_WRLCK, _BUSY)

    def begin_use(self) -> bool:
        """Note that calls are under way; False when the sandbox was or is being removed."""
        if not self._lock(fcntl.F_RDLCK, _BUSY):
            return False
        if self.gone:
            self._lock(fcntl.F_UNLCK, _BUSY)
            return False
        return True

    def end_use(self) -> None:
        if self._descriptor is not None:
            self._lock(fcntl.F_UNLCK, _BUSY)
            os.utime(self._descriptor)

    def in_use(self) -> bool:
        """Return whether a process has calls in it; takes no lock."""
        return self._is_locked(_BUSY)

    def read(self) -> Note | None:
        """Return the note; None for none, or one that cannot be read."""
        if self._descriptor is None:
            return None
        try:
            return Note.of(json.loads(os.pread(self._descriptor, 64 * 1024, 0)))
        except (ValueError, TypeError, AttributeError):
            return None

    def write(self, note: Note) -> None:
        if self._descriptor is not None:
            # In one step: a reader outside the gate finds the old note or the new one, with blanks at its end.
            data = json.dumps(asdict(note)).encode().ljust(os.fstat(self._descriptor).st_size)
            os.pwrite(self._descriptor, data, 0)

    def take_ended_processes(self) -> int | None:
        """Return how many processes ended and were not reported yet, and note that they are.

        None while another is behind the gate: ask again later.
        """
        if self.gone or not self.try_gate():
            return None
        try:
            note = self.read()
            if note is None or not note.ended_processes:
                return 0
            self.write(replace(note, ended_processes=0))
            return note.ended_processes
        finally:
            self._lock(fcntl.F_UNLCK, _GATE)

    def retire(self) -> None:
        """Remove the file, for its sandbox is gone, and close; behind the gate only."""
        if not self.gone:
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Drop every lock. Closing again is no error."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_locked(self, byte: int) -> bool:
        if self._descriptor is None:
            return False
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        said: int = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked))[0]
        return said != fcntl.F_UNLCK

    def _lock(self, kind: int, byte: int) -> bool:
        if self._descriptor is None:
            return False
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True
