"""Opens exactly the path that the policy judged: no component, including the last, is followed through a symbolic link.

Each component is opened relative to its parent's descriptor with O_NOFOLLOW, so the kernel refuses a link that was
created after the gateway's decision.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from sandbox.daemon.failures import Fault, fault_at, fault_of, invalid_argument, invalid_path, permission_denied
from sandbox.v1 import channel_pb2 as wire

PATH_LIMIT_BYTES = 4095
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# The root of all paths in calls. It never changes in a container.
_root = "/"


def serve_below(root: str) -> None:
    """Make a directory the root of all paths; it must contain /workspace and /tmp."""
    global _root  # noqa: PLW0603 - of the process, as chroot() has it
    _root = root


def real(path: str) -> str:
    """Return the real path of an absolute path in a call."""
    return path if _root == "/" else _root + path


def components(path: str, what: str = "path") -> list[str]:
    """Return the names of an absolute path, [] for the root; Fault if it is invalid."""
    if not path:
        raise invalid_path(f"{what} is missing; give an absolute path such as /workspace/notes.txt")
    if not path.startswith("/"):
        raise invalid_path(f"{what} {path!r} is not absolute; begin it with /, for example /workspace/{path}")
    if "\0" in path:
        raise invalid_path(f"{what} {path!r} has a NUL character, which no file name can have")
    if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
        raise invalid_path(f"{what} is longer than {PATH_LIMIT_BYTES} bytes")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise invalid_path(f'{what} {path!r} has a ".." component; give the path it leads to')
    if names and names[0] == "proc":
        # /proc would show this process, not the tool's processes.
        raise invalid_path(f"{what} {path!r} is in /proc, which the file tools do not serve; run a command to read it")
    return names


def join(names: list[str]) -> str:
    """Return the absolute path of names."""
    return "/" + "/".join(names)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_directory(names: list[str], depth: int, *, make: bool = False) -> int:
    """Return an O_PATH descriptor of the first `depth` names; `make` creates missing ones with mode 755."""
    # The remaining names are for the message, which shows where the whole path leads.
    fd = os.open(_root, _DIRECTORY)
    try:
        for index, name in enumerate(names[:depth]):
            try:
                child = _enter(fd, name, make)
            except OSError as error:
                raise _explain(error, fd, names, index) from None
            os.close(fd)
            fd = child
    except BaseException:
        os.close(fd)
        raise
    return fd


def _enter(fd: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # it was created meanwhile
        os.mkdir(name, 0o755, dir_fd=fd)
    return os.open(name, _DIRECTORY, dir_fd=fd)


def open_with_rights(name: str, parent_fd: int | None, rights: int) -> tuple[int, int]:
    """Open a directory after adding rights to its mode, as its owner may; return its former mode too."""
    with closing(os.open(name, _DIRECTORY, dir_fd=parent_fd)) as handle:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        # Through /proc: fchmod() refuses an O_PATH descriptor.
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, mode | rights)
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode


class Place:
    """A name in an open directory. Close it, or use it as a context manager."""

    __slots__ = ("directory_fd", "name", "names", "path")

    def __init__(self, path: str, *, make_parents: bool = False, what: str = "path") -> None:
        self.names = components(path, what)
        self.path = join(self.names)
        # The root has no parent.
        self.name = self.names[-1] if self.names else "."
        self.directory_fd = open_directory(self.names, max(len(self.names) - 1, 0), make=make_parents)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self.directory_fd >= 0:
            os.close(self.directory_fd)
            self.directory_fd = -1

    def stat(self) -> os.stat_result:
        with fault_at(self.path):
            return os.stat(self.name, dir_fd=self.directory_fd, follow_symlinks=False)

    def stat_or_none(self) -> os.stat_result | None:
        with fault_at(self.path), suppress(FileNotFoundError):
            return os.stat(self.name, dir_fd=self.directory_fd, follow_symlinks=False)
        return None

    def open(self, flags: int, mode: int = 0o666) -> int:
        try:
            return os.open(self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.directory_fd)
        except OSError as error:
            raise _explain(error, self.directory_fd, self.names, len(self.names) - 1) from None

    def open_regular(self, *, one_name: bool = False) -> tuple[int, os.stat_result]:
        """Open a regular file for reading; Fault for anything else. `one_name` refuses a file with hard links."""
        # O_NONBLOCK: opening a pipe without a writer would block forever.
        fd = self.open(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            state = os.fstat(fd)
            require_regular(state, self.path)
            if one_name:
                refuse_other_names(state, self.path)
        except BaseException:
            os.close(fd)
            raise
        return fd, state

    def open_listing(self) -> int:
        return self.open(os.O_RDONLY | os.O_DIRECTORY)

    def refuse_link(self, state: os.stat_result) -> None:
        if stat.S_ISLNK(state.st_mode):
            raise _link_fault(self.directory_fd, self.names, len(self.names) - 1)


def require_regular(state: os.stat_result, path: str) -> None:
    """Raise a Fault unless `state` is a regular file."""
    if stat.S_ISDIR(state.st_mode):
        raise Fault(wire.FAILURE_KIND_IS_A_DIRECTORY, f"{path} is a directory, not a file", errno.EISDIR)
    if not stat.S_ISREG(state.st_mode):
        raise invalid_argument(f"{path} is a pipe, socket or device: only regular files can be used")


def refuse_other_names(state: os.stat_result, path: str) -> None:
    """Raise a Fault if a regular file has more than one name: policy rules for one do not cover the others."""
    if state.st_nlink > 1:
        raise permission_denied(
            f"{path} has {state.st_nlink} names (hard links), and the policy has rules per path, so the file is "
            f"refused under every name: make a copy with one name: cp {path} NEW && mv NEW {path}"
        )


def _explain(error: OSError, directory_fd: int, names: list[str], depth: int) -> Fault:
    if error.errno in (errno.ENOTDIR, errno.ELOOP) and names:
        return _link_fault(directory_fd, names, depth)
    return fault_of(error, join(names[: depth + 1]))


def _link_fault(directory_fd: int, names: list[str], depth: int) -> Fault:
    at = join(names[: depth + 1])
    try:
        target = os.readlink(names[depth], dir_fd=directory_fd)
    except OSError:
        return Fault(wire.FAILURE_KIND_NOT_A_DIRECTORY, f"{at} is not a directory", errno.ENOTDIR)
    leads_to = os.path.normpath(os.path.join(join(names[:depth]), target, *names[depth + 1 :]))
    message = f"{at} is a symbolic link, and links are not followed; ask for {leads_to} if that is what you mean"
    return invalid_path(message, errno.ELOOP)


def let_owner_in(workspace: str) -> None:
    """Restore the tool user's access to the root of its workspace, which it may remove itself, if possible."""
    place = real(workspace)
    with suppress(OSError):
        mode = stat.S_IMODE(os.stat(place).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(place, mode | stat.S_IRWXU)
