"""The file that takes the output of a call once it is too large to cross the socket."""

from __future__ import annotations

import os

from sandbox.daemon.failures import Fault
from sandbox.daemon.paths import Place, components
from sandbox.daemon.spill_quota import SpillQuotas, SpillShare
from sandbox.daemon.walk import PRIVATE_NAME
from sandbox.v1 import channel_pb2 as wire


class Spill:
    """Writes raw bytes in order of arrival up to a limit, and knows their size, newlines and SHA-256.

    With a quota, the files of its directory never take more than so many bytes together; 0 is none. A spill never fails
    a call: what cannot be written (no space, a link in the way, no path) leaves it incomplete.
    """

    def __init__(
        self, path: str, limit_bytes: int, workspace: str, *, quotas: SpillQuotas | None = None, quota_bytes: int = 0
    ) -> None:
        import hashlib  # loads OpenSSL, which an idle daemon does not need

        self._path = path
        self._room_bytes = limit_bytes
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._newlines = 0
        self._ends_with_newline = True
        self._incomplete = False
        self._fd = -1
        self._share: SpillShare | None = None
        try:
            self._create(path, workspace, quotas if quota_bytes else None, quota_bytes)
        except (Fault, OSError):
            self._incomplete = True

    def _create(self, path: str, workspace: str, quotas: SpillQuotas | None, quota_bytes: int) -> None:
        private = [*components(workspace), PRIVATE_NAME]
        with Place(path, make_parents=True, what="spill_path") as place:
            if place.names[: len(private)] == private:
                _hide_from_git(workspace)
            try:
                os.unlink(place.name, dir_fd=place.directory_fd)
            except FileNotFoundError:
                pass
            self._fd = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            if quotas is not None:
                self._share = quotas.open(place.directory_fd, place.name, quota_bytes)

    def write(self, data: bytes | bytearray, size: int) -> None:
        """Append the first `size` bytes, as far as there is room."""
        if self._incomplete:
            return
        room_bytes = min(size, self._room_bytes)
        if self._share is not None:
            room_bytes = self._share.room_bytes(room_bytes)
        self._incomplete = room_bytes < size
        view = memoryview(data)[:room_bytes]
        done = 0
        try:
            while done < len(view):
                done += os.write(self._fd, view[done:])
        except OSError:
            self._incomplete = True
        view = view[:done]
        self._room_bytes -= done
        self._size_bytes += done
        if self._share is not None:
            self._share.add(done)
        self._sha256.update(view)
        if done:
            self._newlines += data.count(b"\n", 0, done)
            self._ends_with_newline = view[done - 1] == 0x0A

    def close(self) -> wire.Evicted:
        """Close the file and return what is said of it."""
        self.abandon()
        return wire.Evicted(
            path=self._path,
            size_bytes=self._size_bytes,
            lines=self._newlines + (not self._ends_with_newline),
            sha256=self._sha256.hexdigest(),
            incomplete=self._incomplete,
        )

    def abandon(self) -> None:
        """Close the file; the call is over without a reply."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._share is not None:
            self._share.close()


def _hide_from_git(workspace: str) -> None:
    with Place(f"{workspace}/{PRIVATE_NAME}/.gitignore") as place:
        try:
            fd = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except Fault:
            return  # it is there
        try:
            os.write(fd, b"*\n")
        finally:
            os.close(fd)
