"""Writes files: the bytes are in the request or follow as input, and replace the file at their end.

Readers see the old bytes or the new ones, and an interrupted write leaves nothing. The new bytes go to a file without a
name (O_TMPFILE), which the kernel removes if the daemon or the machine dies. If the target does not exist, the file is
linked to its name. Otherwise it gets a temporary name and is renamed over the target, which takes microseconds, or
longer if ext4 first writes a large file to disk. On file systems without O_TMPFILE it has a temporary name from the
start. Temporary names are at the top of the workspace, where remove_unfinished() finds them at the next start, or
beside the target if that is on another file system.
"""

import asyncio
import contextlib
import errno
import os
import stat
from functools import partial

from sandbox.daemon.failures import Fault, fault_at, fault_of, internal, invalid_argument, permission_denied, too_large
from sandbox.daemon.files.slow_work import HERE_LIMIT_BYTES, Emit, work_in_child, work_in_thread
from sandbox.daemon.files.tree_files import entry_of
from sandbox.daemon.frames import InputStream
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.daemon.paths import Place, closing, components, open_directory, refuse_other_names, require_regular
from sandbox.daemon.temporary_names import is_temporary_name, new_temporary_name
from sandbox.v1 import channel_pb2 as wire


async def write(
    request: wire.WriteRequest,
    given: InputStream,
    *,
    workspace: str = "",
    one_name: bool = False,
    disk: DiskWatch | None = None,
) -> wire.Reply:
    """Replace the file with the bytes of the request or of the input that follows it, as far as `disk` admits them."""
    with Place(request.path, make_parents=disk is None or await disk.admit_parents(request.path)) as place:
        if not place.names:
            raise Fault(wire.FAILURE_KIND_IS_A_DIRECTORY, "/ is a directory; a file was expected", errno.EISDIR)
        # Over the limit, bytes are admitted that take no more than replacing the old file frees.
        if disk is not None and not (request.inline and disk.gives_back(place.stat_or_none(), len(request.data))):
            await disk.admit(place.path, len(request.data))
        # No other task runs until the admitted bytes are written, so a count of the disk sees all of them.
        replacement = Replacement(place, workspace=workspace, one_name=one_name)
        try:
            if request.inline:
                replacement.write(request.data)
            else:
                written_bytes = 0
                while (piece := await given.read_piece()) is not None:
                    if disk is not None:
                        await disk.admit(place.path, len(piece), 0)
                    replacement.write(piece)
                    written_bytes += len(piece)
                    # After so many bytes other tasks run; a fast input would otherwise block them.
                    if written_bytes >= 1024 * 1024:
                        written_bytes = 0
                        await asyncio.sleep(0)
            state = await work_in_thread(replacement.commit, slow=replacement.slow)
            return wire.Reply(entry=entry_of(place.path, state))
        finally:
            await work_in_thread(replacement.close, slow=replacement.slow)


FILE_LIMIT_BYTES = 64 * 1024 * 1024
_TIMEOUT_S = 60.0


async def edit(
    request: wire.EditRequest, *, workspace: str = "", one_name: bool = False, disk: DiskWatch | None = None
) -> wire.Reply:
    """Replace the first match or all, and report how many are left."""
    if not request.old_text:
        raise invalid_argument("old_text is empty; give the exact text to replace, or write the whole file instead")
    with Place(request.path) as place:
        fd, state = place.open_regular(one_name=one_name)
        os.close(fd)
        matches = state.st_size // len(request.old_text) if request.replace_all else 1
        grown_bytes = max(len(request.new_text) - len(request.old_text), 0)
        most_bytes = min(state.st_size + matches * grown_bytes, FILE_LIMIT_BYTES)
        async with contextlib.nullcontext() if disk is None else disk.writing(place.path, most_bytes):
            reply = wire.EditReply()
            # Larger files are edited in a child process: they would block the server and enlarge its memory.
            if state.st_size <= 1024 * 1024 and len(request.new_text) <= len(request.old_text) + 1024:
                _edit(request, reply.CopyFrom, workspace, None, one_name=one_name)
                return wire.Reply(edit=reply)
            temporary_name = new_temporary_name()
            work = partial(_edit, request, workspace=workspace, temporary_name=temporary_name, one_name=one_name)
            try:
                if not await work_in_child(work, reply, _TIMEOUT_S, place.path):
                    raise internal(f"{place.path}: the edit took longer than {_TIMEOUT_S:.0f} s")
            finally:
                # The child may have been killed.
                remove_temporary(place, workspace, temporary_name)
            return wire.Reply(edit=reply)


def _edit(request: wire.EditRequest, emit: Emit, workspace: str, temporary_name: str | None, *, one_name: bool) -> None:
    with Place(request.path) as place:
        text = _read_whole(place, one_name=one_name)
        matches = text.count(request.old_text)
        replaced = matches if request.replace_all else min(matches, 1)
        size = len(text) + replaced * (len(request.new_text) - len(request.old_text))
        if size > FILE_LIMIT_BYTES:
            raise _too_large(place.path, size, "would become")
        if replaced:
            made = Replacement(place, workspace=workspace, temporary_name=temporary_name, one_name=one_name)
            with contextlib.closing(made) as replacement:
                replacement.write(text.replace(request.old_text, request.new_text, replaced))
                replacement.commit()
    emit(wire.EditReply(replaced=replaced, left=matches - replaced))


def _read_whole(place: Place, *, one_name: bool) -> bytes:
    fd, state = place.open_regular(one_name=one_name)
    with open(fd, "rb", buffering=0) as file:
        if state.st_size > FILE_LIMIT_BYTES:
            raise _too_large(place.path, state.st_size, "is")
        with fault_at(place.path):
            data = file.read(state.st_size) or b""
            while more := file.read(256 * 1024):
                data += more
                if len(data) > FILE_LIMIT_BYTES:
                    raise _too_large(place.path, len(data), "is")
    return data


def _too_large(path: str, size_bytes: int, verb: str) -> Fault:
    return too_large(
        f"{path} {verb} {size_bytes} bytes; edits go up to {FILE_LIMIT_BYTES}; use a command such as sed instead"
    )


class Replacement:
    """A new file that replaces a target with commit(); close() discards it otherwise.

    A temporary name is created in `workspace`, or beside the target for "". `one_name` refuses targets with hard links.
    """

    def __init__(
        self, place: Place, *, workspace: str = "", temporary_name: str | None = None, one_name: bool = False
    ) -> None:
        existing = place.stat_or_none()
        mode = 0o644
        if existing is not None:
            place.refuse_link(existing)
            require_regular(existing, place.path)
            if one_name:
                refuse_other_names(existing, place.path)
            # A rename would replace a read-only file as well.
            if not os.access(place.name, os.W_OK, dir_fd=place.directory_fd, effective_ids=True):
                message = f"{place.path} is not writable for the tool user; change its mode first if it may be replaced"
                raise permission_denied(message, errno.EACCES)
            # setuid and setgid were granted to the old content.
            mode = stat.S_IMODE(existing.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
        self._place = place
        self._is_new = existing is None
        self._size_bytes = 0
        self._old_size_bytes = existing.st_size if existing is not None else 0
        self._workspace = workspace
        self._name = temporary_name or new_temporary_name()
        self._named = False
        self._fd = self._temporary_fd = -1
        try:
            self._fd = self._open_unnamed()
            if self._fd < 0:
                self._fd = self._open_named()
            os.fchmod(self._fd, mode)
        except OSError as error:
            self.close()
            raise fault_of(error, place.path) from None

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self._size_bytes += len(view)
        with fault_at(self._place.path):
            while view:
                view = view[os.write(self._fd, view) :]

    @property
    def slow(self) -> bool:
        """Whether commit() or close() may be slow, because either file has many bytes to free."""
        return max(self._size_bytes, self._old_size_bytes) > HERE_LIMIT_BYTES

    def commit(self) -> os.stat_result:
        """Replace the target; return the state of the new file."""
        with fault_at(self._place.path):
            state = os.fstat(self._fd)
            if self._is_new and not self._named:
                with contextlib.suppress(FileExistsError):  # the target exists by now
                    self._link(self._place.name, self._place.directory_fd)
                    return state
            if not self._named:
                self._temporary_fd = _temporary_directory(self._place, self._workspace)
                self._link(self._name, self._temporary_fd)
                self._named = True
            target = self._place
            os.rename(self._name, target.name, src_dir_fd=self._temporary_fd, dst_dir_fd=target.directory_fd)
            self._named = False
            return state

    def close(self) -> None:
        if self._named:
            _unlink(self._temporary_fd, self._name)
            self._named = False
        for fd in (self._fd, self._temporary_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._temporary_fd = -1

    def _open_unnamed(self) -> int:
        """Return a descriptor of a file without a name, -1 if that or linking it is not supported."""
        try:
            fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=self._place.directory_fd)
        except OSError as error:
            # From file systems without O_TMPFILE; EISDIR from kernels without it.
            if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                return -1
            raise
        if not os.path.exists(f"/proc/self/fd/{fd}"):
            os.close(fd)
            return -1
        return fd

    def _open_named(self) -> int:
        self._temporary_fd = _temporary_directory(self._place, self._workspace)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._name, flags, 0o600, dir_fd=self._temporary_fd)
        self._named = True
        return fd

    def _link(self, name: str, directory_fd: int) -> None:
        # Through /proc: linking a descriptor requires a capability.
        os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=directory_fd, follow_symlinks=True)


def remove_temporary(place: Place, workspace: str, name: str) -> None:
    """Remove the temporary file of a killed Replacement, if it exists."""
    with closing(_temporary_directory(place, workspace)) as fd:
        _unlink(fd, name)


def remove_unfinished(workspace: str) -> None:
    """Remove the temporary files of an earlier daemon of this workspace that was killed."""
    names = components(workspace)
    with (
        contextlib.suppress(OSError, Fault),
        closing(open_directory(names, len(names))) as top_fd,
        closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=top_fd)) as fd,
    ):
        with os.scandir(fd) as listing:
            # More names are not worth a slow start.
            found = [entry.name for entry, _ in zip(listing, range(20_000), strict=False)]
        for name in filter(is_temporary_name, found):
            _unlink(fd, name)


def _temporary_directory(place: Place, workspace: str) -> int:
    """Return a descriptor of the workspace, or of the target's directory if that is on another file system."""
    fd = -1
    with contextlib.suppress(OSError, Fault):
        names = components(workspace)
        fd = open_directory(names, len(names))
        device = os.fstat(place.directory_fd).st_dev
        if os.fstat(fd).st_dev == device and os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
            return fd
    if fd >= 0:
        os.close(fd)
    return os.dup(place.directory_fd)


def _unlink(directory_fd: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory_fd)
