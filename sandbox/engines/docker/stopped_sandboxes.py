"""StoppedSandboxes: which sandboxes of an instance are stopped. One file for each, by its owner.

A file is written before its container is stopped, and removed after the container runs again or is removed. After a
crash in between, the container may run or be gone: a process changes a file behind the gate of its owner's ThreadLock,
and looks at the container.

The names of the files say whose the sandboxes are, and their times since when, so counting them asks no engine.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox.engines.docker.lock_directory import NamedFiles
from sandbox.owner import Owner
from sandbox.thread_lock import Note

_RECORD_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Stopped:
    """A sandbox as it was when it was stopped.

    `processes` ran in the background, ended with it or with an earlier stop, and were not reported yet.
    """

    note: Note
    processes: int = 0


class StoppedSandboxes:
    """The directory `stopped` beside the channels. `clock` is in seconds since 1970."""

    def __init__(self, channel_root: Path, instance: str, clock: Callable[[], float] = time.time) -> None:
        self._files = NamedFiles(channel_root / "stopped", f"{instance}-", ".stopped")
        self._clock = clock

    def write(self, owner: Owner, stopped: Stopped) -> None:
        """Note that an owner's sandbox is stopped, from now on; raises OSError."""
        self._files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(owner)
        half = path.with_suffix(".half")
        try:
            half.write_text(json.dumps({**asdict(stopped.note), "processes": stopped.processes}))
            now_s = self._clock()
            os.utime(half, (now_s, now_s))
            half.rename(path)
        except OSError:
            half.unlink(missing_ok=True)
            raise

    def read(self, owner: Owner) -> Stopped | None:
        """Return an owner's stopped sandbox; None for none, or one that cannot be read."""
        try:
            with self._path(owner).open("rb") as file:
                said = json.loads(file.read(_RECORD_LIMIT_BYTES))
            return Stopped(Note.of(said), int(said["processes"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def has(self, owner: Owner) -> bool:
        """Return whether an owner's sandbox is stopped, by its file only."""
        return self._path(owner).exists()

    def since_s(self, owner: Owner) -> float | None:
        """Return since when an owner's sandbox is stopped, in seconds since 1970; None where none is."""
        try:
            return self._path(owner).stat().st_mtime
        except FileNotFoundError:
            return None

    def remove(self, owner: Owner) -> None:
        """Forget an owner's sandbox. None is no error."""
        self._path(owner).unlink(missing_ok=True)

    def owners(self) -> Sequence[Owner]:
        """Return whose sandboxes are stopped, the longest first."""
        return [owner for _, owner in self._files.found_owners()]

    def surplus(self, *, timeout_s: float, limit: int) -> Sequence[Owner]:
        """Return the owners of sandboxes to remove: stopped for `timeout_s`, or past `limit` of all.

        Past the limit, the tenant with the most loses its longest stopped one: a tenant that leaves many threads behind
        costs the others none.
        """
        now_s = self._clock()
        files = self._files.found_owners()
        expired = [owner for since_s, owner in files if now_s - since_s >= timeout_s]
        left = [owner for since_s, owner in files if now_s - since_s < timeout_s]
        of_tenant = Counter(tenant for tenant, _ in left)
        for _ in range(len(left) - limit):
            ((most, _),) = of_tenant.most_common(1)
            first = next(owner for owner in left if owner[0] == most)
            left.remove(first)
            expired.append(first)
            of_tenant[most] -= 1
        return expired

    def close(self) -> None:
        """Remove the directory if it is empty."""
        self._files.close()

    def _path(self, owner: Owner) -> Path:
        return self._files.path(f"{owner[0]}-{owner[1]}")
