"""Landlock: which files a process and all that it starts may use, enforced by the kernel.

https://docs.kernel.org/userspace-api/landlock.html. A process cannot leave its domain. What a domain grants on a
directory holds for all below it; what it does not handle it does not restrict: looking at the attributes of a file,
changing its mode or times, and entering a directory.
"""

import os
import stat
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

from sandbox.daemon.supervisor.libc import libc

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER = 1 << 13  # moving between directories, which every domain refuses that does not grant it
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM, _TRUNCATE = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 14

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM) | (
    REFER | _TRUNCATE
)
ALL = READ | WRITE | _MAKE_CHAR | _MAKE_BLOCK
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE

# The versions of the interface that have them: Linux 5.19 and 6.2.
REFER_VERSION, TRUNCATE_VERSION = 2, 3

# The system calls have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_PATH_BENEATH = 1

IsMeant = Callable[[bytes, os.stat_result], bool]


def landlock_version() -> int:
    """Return the version of the kernel's interface, less than 1 where there is none."""
    call = libc()
    return 0 if call is None else call("syscall", _CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)


def restrict(
    handled: int,
    grants: Mapping[bytes, int],
    files: Mapping[bytes, int] | None = None,
    is_meant: IsMeant = lambda _path, _state: True,
    opened: Mapping[int, int] = MappingProxyType({}),
) -> bool:
    """Put this process into a domain that refuses what it handles but for the grants, by path; return whether it is.

    A path that is not there, that leads through a symbolic link, or whose file is not the one that `is_meant`, grants
    nothing; one of `files` does not if it is a directory. `opened` grants by descriptor. It needs no-new-privileges.
    """
    call = libc()
    if call is None:
        return False
    attributes = struct.pack("=Q", handled)
    ruleset = call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for granted, even_below in ((grants, True), (files or {}, False)):
            for path, rights in granted.items():
                if not _grant(call, ruleset, path, rights & handled, is_meant, even_below=even_below):
                    return False
        for fd, rights in opened.items():
            if not _add(call, ruleset, fd, rights):
                return False
        return call("syscall", _RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _grant(
    call: Callable[..., int], ruleset: int, path: bytes, rights: int, is_meant: IsMeant, *, even_below: bool
) -> bool:
    try:
        fd = open_without_links(path)
    except OSError:
        return True
    try:
        state = os.fstat(fd)
        if not even_below or not stat.S_ISDIR(state.st_mode):
            rights &= OF_FILES if stat.S_ISREG(state.st_mode) or even_below else 0
        if not rights or not is_meant(path, state):
            return True
        return _add(call, ruleset, fd, rights)
    finally:
        os.close(fd)


def _add(call: Callable[..., int], ruleset: int, fd: int, rights: int) -> bool:
    return call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0) == 0


def open_without_links(path: bytes, *, make: bool = False) -> int:
    """Return an O_PATH descriptor of an absolute path; OSError where a part of it is a symbolic link.

    `make` creates the directories that are missing.
    """
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split(b"/"):
        if not name:
            continue
        try:
            # A link is opened itself, and then is no directory to go on from, nor one to grant.
            try:
                following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, 0o755, dir_fd=fd)
                following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = following
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(40, os.strerror(40), path)
    return fd
