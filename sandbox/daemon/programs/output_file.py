"""The file that takes a stream's output from its first byte, and gives it back by offset.

It lies where tool code can do with it as it likes. Whatever that is, reading never follows a link, never waits, and
never returns another file's bytes: a file that is not the one that was made here is as good as none.
"""

from __future__ import annotations

import os

from sandbox.daemon.failures import Fault
from sandbox.daemon.paths import Place
from sandbox.daemon.programs.private_file import create_private_file


class OutputFile:
    """Takes bytes up to a limit. It never fails: what cannot be written leaves `size_bytes` behind, for good.

    `path` is empty when the file could not be made.
    """

    def __init__(self, path: str, limit_bytes: int, workspace: str) -> None:
        self.path = path
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._fd = -1
        try:
            with Place(path, make_parents=True, what="output_directory") as place:
                self._fd = create_private_file(place, workspace)
            self._identity = _identity(os.fstat(self._fd))
        except (Fault, OSError):
            self.path = ""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write as much as there is room for; the first byte that finds none is the end of the file."""
        if self._fd < 0:
            return
        with memoryview(data) as view:
            wanted = min(len(view), self._limit_bytes - self.size_bytes)
            done = 0
            try:
                while done < wanted:
                    done += os.pwrite(self._fd, view[done:wanted], self.size_bytes + done)
            except OSError:
                pass
            self.size_bytes += done
            if done < len(view):
                self.close()

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """Return bytes from an offset, b"" when they are not there any more."""
        length = min(limit_bytes, self.size_bytes - offset)
        if not self.path or length <= 0:
            return b""
        try:
            with Place(self.path) as place:
                fd, state = place.open_regular()
            try:
                return os.pread(fd, length, offset) if _identity(state) == self._identity else b""
            finally:
                os.close(fd)
        except (Fault, OSError):
            return b""

    def close(self) -> None:
        """Write no more; reading goes on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino
