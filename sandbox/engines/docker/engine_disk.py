"""EngineDisk: how much of the engine's disk is free, for what no daemon watches: files that come from outside.

The engine reports its data directory. A gateway that does not see that directory runs in a container, and its own root
is on the same machine's disk, since both see the channel directories.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.errors import NoSpace

_MIB = 1024 * 1024
_LOOK_BYTES = 16 * _MIB


class EngineDisk:
    """The disk of one engine; `free_bytes` returns what is free at a path, and raises OSError where it is not seen."""

    def __init__(self, requests: DockerRequests, free_bytes: Callable[[Path], int] | None = None) -> None:
        self._requests = requests
        self._free_bytes = free_bytes or _free_bytes
        self._data: Path | None = None

    async def refuse_short(self, reserve_bytes: int, coming_bytes: int) -> None:
        """Raise NoSpace where less than a reserve would be free after so many bytes more; 0 is no reserve."""
        if reserve_bytes:
            _refuse_short(await self.free_bytes(), reserve_bytes, coming_bytes)

    async def free_bytes(self) -> int:
        if self._data is None:
            said = (await self._requests.ask(docker_requests.engine_info)).get("DockerRootDir")
            self._data = Path(said) if said else None
        return self._free()

    def watched(self, pieces: Iterable[bytes], reserve_bytes: int) -> Iterator[bytes]:
        """Pass pieces on, to a file of the engine's; NoSpace as soon as less than the reserve is free."""
        unseen_bytes = 0
        for piece in pieces:
            unseen_bytes += len(piece)
            if reserve_bytes and unseen_bytes >= _LOOK_BYTES:
                _refuse_short(self._free(), reserve_bytes, unseen_bytes)
                unseen_bytes = 0
            yield piece

    def _free(self) -> int:
        # The volumes may be on a disk of their own, and to look into the data directory is root's.
        for path in (self._data / "volumes", self._data) if self._data is not None else ():
            try:
                return self._free_bytes(path)
            except OSError:
                continue
        return self._free_bytes(Path("/"))


def _refuse_short(free_bytes: int, reserve_bytes: int, coming_bytes: int) -> None:
    if free_bytes - coming_bytes < reserve_bytes:
        # A tenant must not learn how much of the disk others use.
        raise NoSpace(
            f"the engine's disk is nearly full, and {coming_bytes // _MIB:,} MiB more would use the operator's "
            "reserve: remove files, or ask the operator to free space"
        )


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
