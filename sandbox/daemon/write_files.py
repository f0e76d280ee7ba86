"""Replacing a file atomically: a temporary file beside it, then a rename. Readers see the old bytes or the new."""

from __future__ import annotations

import asyncio
import os
import stat

from sandbox.daemon.entries import entry_of
from sandbox.daemon.failures import Fault, fault_of
from sandbox.daemon.input_stream import InputStream
from sandbox.daemon.paths import Place, require_regular
from sandbox.v1 import channel_pb2 as wire

NEW_FILE_MODE = 0o644
_PIECE_BYTES = 256 * 1024


class Replacement:
    """A file on its way to replace another; leave() removes it unless it has taken the place."""

    def __init__(self, place: Place, temporary_name: str | None = None) -> None:
        existing = place.stat_or_none()
        mode = NEW_FILE_MODE
        if existing is not None:
            place.refuse_link(existing)
            require_regular(existing, place.path)
            _require_writable(place)
            mode = stat.S_IMODE(existing.st_mode)
        self._place = place
        self._name = temporary_name or new_temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self._name, flags, 0o600, dir_fd=place.directory_fd)
        except OSError as error:
            raise fault_of(error, place.path) from None
        try:
            os.fchmod(self._fd, mode)
        except OSError as error:
            self.leave()
            raise fault_of(error, place.path) from None

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise fault_of(error, self._place.path) from None

    def take_place(self) -> os.stat_result:
        """Rename over the target and return what it is now."""
        try:
            state = os.fstat(self._fd)
            directory_fd = self._place.directory_fd
            os.rename(self._name, self._place.name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except OSError as error:
            raise fault_of(error, self._place.path) from None
        self._name = ""
        return state

    def leave(self) -> None:
        """Close, and remove what has not taken its place."""
        if self._name:
            remove_temporary(self._place.directory_fd, self._name)
            self._name = ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def new_temporary_name() -> str:
    """Return a name that nobody can guess, so nobody can plant something there to make the writing fail."""
    return f".airlock-{os.urandom(8).hex()}.tmp"


def remove_temporary(directory_fd: int, name: str) -> None:
    """Remove a temporary file if it is there."""
    try:
        os.unlink(name, dir_fd=directory_fd)
    except OSError:
        pass


def _require_writable(place: Place) -> None:
    # A rename would also replace a read-only file; who protected it did not mean that.
    if not os.access(place.name, os.W_OK, dir_fd=place.directory_fd, effective_ids=True):
        message = f"{place.path} is not writable for the tool user; change its mode first if it may be replaced"
        raise Fault(wire.FAILURE_KIND_PERMISSION_DENIED, message, 13)


async def write(request: wire.WriteRequest, given: InputStream) -> wire.Reply:
    """Replace the file with the bytes of the request or of the input that follows it."""
    with Place(request.path, make_parents=True) as place:
        if not place.names:
            raise Fault(wire.FAILURE_KIND_IS_A_DIRECTORY, "/ is a directory; a file was expected", 21)
        replacement = Replacement(place)
        try:
            if request.inline:
                await _write_pieces(replacement, request.data)
            else:
                while (data := await given.read()) is not None:
                    await _write_pieces(replacement, data)
            return wire.Reply(entry=entry_of(place.path, replacement.take_place()))
        finally:
            replacement.leave()


async def _write_pieces(replacement: Replacement, data: bytes) -> None:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        replacement.write(view[start : start + _PIECE_BYTES])
        if start + _PIECE_BYTES < len(view):
            await asyncio.sleep(0)
