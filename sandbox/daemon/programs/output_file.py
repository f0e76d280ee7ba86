"""The file with a stream's output from its first byte, read by offset.

Tool code can modify or replace it. Reading never follows a link, never blocks, and never returns bytes of another file:
a file that was not created here counts as missing.
"""

from __future__ import annotations

import os

from sandbox.daemon.failures import Fault
from sandbox.daemon.paths import Place
from sandbox.daemon.programs.private_file import create_private_file


class OutputFile:
    """Takes bytes up to a limit. It never fails: after a failed write `size_bytes` no longer grows.

    `path` is empty if the file could not be created.
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
        """Append as much as fits; the first byte that does not is the end of the file."""
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
        """Return bytes from an offset, b"" if they are gone."""
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
        """End writing; reading continues."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino
