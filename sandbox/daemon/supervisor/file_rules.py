"""Which files a call's processes may use: what the policy says of paths, made into grants of a Landlock domain.

Landlock only grants. Where something below a readable directory is not to be read, all that stands beside it is granted
one by one, and the directory itself is not listed. So the grants depend on what there is: `is_current` says whether
they would come out the same now.
"""

import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator

from sandbox.daemon.supervisor.landlock import EXECUTE, READ, READ_DIR, READ_FILE, WRITE, WRITE_FILE, open_without_links
from sandbox.daemon.temporary_names import is_temporary_name

# What tool code itself can change is granted by the rules alone.
_BY_RULES = frozenset({b"workspace", b"tmp"})
_BELOW_RULES = (b"/workspace", b"/tmp", b"/dev/shm")
_NOT_LISTED = frozenset({b"proc", b"dev"})
_DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty", b"ptmx", b"pts")
_LIMIT_GRANTS = 4096
_PROGRAM = b"x"
_DAEMON = b"/opt/airlock"

Identity = tuple[int, int, int] | None
_NOT_LISTED_NS = -1
# Changes that follow each other faster may leave a directory with the same time: some file systems store seconds.
_SAME_TIME_NS = 2_100_000_000


class TooManyFiles(Exception):
    """The rules cannot be written as grants: too much stands beside what they forbid."""


class FileRules:
    """Absolute paths, each for itself and all below it. What is forbidden is so also where it is allowed.

    A path may be written in any way: no link is followed, so ".." leads to what stands before it. ValueError for NUL.
    Of `readable_files` and `writable_files` each is a file that is there; a directory of its name gets nothing.
    `programs` are names and absolute paths of what may be executed; None is whatever is readable.
    """

    LISTS = ("readable", "writable", "unreadable", "unwritable", "readable_files", "writable_files")
    __slots__ = (*LISTS, "programs")

    def __init__(
        self,
        readable: tuple[bytes, ...] = (),
        writable: tuple[bytes, ...] = (),
        unreadable: tuple[bytes, ...] = (),
        unwritable: tuple[bytes, ...] = (),
        readable_files: tuple[bytes, ...] = (),
        writable_files: tuple[bytes, ...] = (),
        *,
        programs: tuple[bytes, ...] | None = None,
    ) -> None:
        lists = readable, writable, unreadable, unwritable, readable_files, writable_files
        self.readable, self.writable, self.unreadable, self.unwritable, self.readable_files, self.writable_files = (
            tuple(map(_plain, paths)) for paths in lists
        )
        self.programs = programs

    def encode(self) -> bytes:
        """Return the rules as bytes, separated by NUL: the number of a list and a path, or "x" and a program."""
        items = [b"%d%b" % (flag, path) for flag, name in enumerate(self.LISTS) for path in getattr(self, name)]
        if self.programs is not None:
            items += (_PROGRAM + name for name in (b"", *self.programs))
        return b"\0".join(items)

    @classmethod
    def decode(cls, data: bytes) -> "FileRules":
        items = data.split(b"\0") if data else []
        lists = (tuple(item[1:] for item in items if item[:1] == b"%d" % flag) for flag in range(len(cls.LISTS)))
        programs = tuple(item[1:] for item in items if item[:1] == _PROGRAM)
        return cls(*lists, programs=programs[1:] if programs else None)


def make_writable(rules: FileRules) -> None:
    """Create the directories that commands may write, so that a rule on one holds before anything is in it."""
    for path in rules.writable:
        if not any(_is_at_or_below(path, one) for one in (*rules.unwritable, *rules.unreadable)):
            try:
                os.close(open_without_links(path, make=True))
            except OSError:
                pass  # it grants nothing


class Grants:
    """The grants that rules make of the files that there are, and what they depend on."""

    __slots__ = ("_beside", "_image", "_seen", "files", "rights")

    def __init__(self, rules: FileRules) -> None:
        """Raises TooManyFiles."""
        self.rights: dict[bytes, int] = {}
        self.files: dict[bytes, int] = {}
        """Rights on single files, which no directory gets."""
        self._seen: dict[tuple[bytes, bool], Identity] = {}  # by path and whether it was listed
        # Entries of listed directories: exchanging one of these changes its directory, too.
        self._beside: set[tuple[bytes, bool]] = set()
        # The device of the image, None where it may be written.
        self._image = os.lstat(b"/").st_dev if os.statvfs(b"/").f_flag & os.ST_RDONLY else None
        read = READ if rules.programs is None else READ & ~EXECUTE
        # Nor what leads to an unreadable one: under another name it would be granted the next time.
        unwritable = (*rules.unwritable, *rules.unreadable)
        self._add_image(rules, read)
        self._add(rules.readable, rules.unreadable, read)
        self._add(rules.writable, unwritable, WRITE)
        self._add_files(rules.readable_files, rules.unreadable, read)
        self._add_files(rules.writable_files, unwritable, WRITE)
        self._add((b"/proc",), rules.unreadable, READ_FILE | READ_DIR)
        # Interpreters make locks and queues of processes there; it is gone with the sandbox.
        self._add((b"/dev/shm",), unwritable, READ_FILE | READ_DIR | WRITE)
        for name in _DEVICES:
            self.rights[b"/dev/" + name] = READ_FILE | READ_DIR | WRITE_FILE

    def _add_image(self, rules: FileRules, read: int) -> None:
        """Grant what the image has; of its programs, where rules name some, those alone: a loader needs no more."""
        # Links aside: what they lead to is granted where it is.
        with os.scandir(b"/") as entries:
            found = [entry for entry in entries if entry.name not in _BY_RULES | _NOT_LISTED]
            image = tuple(entry.path for entry in found if not entry.is_symlink())
        if rules.programs is None:
            self._add(image, (_DAEMON, *rules.unreadable), read)
            return
        places = {os.path.realpath(directory) for directory in PATH.split(b":")} - {b"/"}
        self._add(image, (_DAEMON, *places, *rules.unreadable), read)
        self._add(image, rules.unreadable, READ_DIR)
        written = (*_BELOW_RULES, *rules.writable)
        for path in executables(rules.programs, written):
            in_image = not any(_is_at_or_below(path, directory) for directory in written)
            self._add_files((path,), rules.unreadable, EXECUTE | READ_FILE if in_image else EXECUTE)

    def is_current(self) -> bool:
        """Return whether the same grants would be made now."""
        now_ns = time.time_ns()
        if not all(_identity(path, listed=listed) == seen for (path, listed), seen in self._seen.items()):
            return False
        changed_ns = max((seen[2] for seen in self._seen.values() if seen is not None), default=_NOT_LISTED_NS)
        if self._beside and changed_ns + _SAME_TIME_NS < now_ns:
            for key in self._beside:
                del self._seen[key]
            self._beside.clear()
        return True

    def is_meant(self, path: bytes, state: os.stat_result) -> bool:
        """Return whether a file is the one that was granted; tool code may have put another one in its place."""
        # With another one the grants are not current any more, even if the first one comes back.
        seen = self._seen.get((path, False))
        if seen == (state.st_dev, state.st_ino, _NOT_LISTED_NS) or (path, False) not in self._seen:
            return True
        self._seen[path, False] = (-1, -1, -1)  # no file's
        return False

    def _see(self, path: bytes, identity: Identity, *, listed: bool) -> None:
        """Note what the grants depend on; the image does not change."""
        if identity is None or identity[0] != self._image:
            self._seen[path, listed] = identity

    def _add(self, allowed: tuple[bytes, ...], forbidden: tuple[bytes, ...], rights: int) -> None:
        for top in allowed:
            for path in self._allowed(top, forbidden):
                self.rights[path] = self.rights.get(path, 0) | rights

    def _add_files(self, allowed: tuple[bytes, ...], forbidden: tuple[bytes, ...], rights: int) -> None:
        for path in allowed:
            if not any(_is_at_or_below(path, one) for one in forbidden):
                self._see(path, _identity(path, listed=False), listed=False)
                self.files[path] = self.files.get(path, 0) | rights

    def _allowed(self, path: bytes, forbidden: tuple[bytes, ...]) -> Iterator[bytes]:
        if any(_is_at_or_below(path, one) for one in forbidden):
            return
        inner = tuple(one for one in forbidden if _is_at_or_below(one, path))
        identity = _identity(path, listed=bool(inner))
        self._see(path, identity, listed=bool(inner))
        if max(len(self._seen), len(self.rights)) > _LIMIT_GRANTS:
            raise TooManyFiles
        if not inner:
            yield path
        elif identity is not None:
            for name in _names(path):
                beside = os.path.join(path, name)
                yield from self._allowed(beside, inner)
                if (beside, False) in self._seen:
                    self._beside.add((beside, False))


def _names(directory: bytes) -> list[bytes]:
    """Return what is in a directory; nothing where there is none, or one that tool code may not list.

    A file that is being written is left out: its grant would stay when it gets its name in a forbidden directory.
    """
    names: list[bytes] = []
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries, 1):
                if number > _LIMIT_GRANTS:  # a million names would be all of the sandbox's memory
                    raise TooManyFiles
                if not is_temporary_name(os.fsdecode(entry.name)):
                    names.append(entry.name)
    except OSError:
        return []
    return names


def _identity(path: bytes, *, listed: bool) -> Identity:
    """Return which file a path names, and of a directory that was listed when it changed; tool code sets no ctime."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns if listed and stat.S_ISDIR(found.st_mode) else _NOT_LISTED_NS


def _is_at_or_below(path: bytes, directory: bytes) -> bool:
    return directory in {path, b"/"} or path.startswith(directory + b"/")


def _plain(path: bytes) -> bytes:
    if b"\0" in path:
        raise ValueError(f"{path!r} has NUL, which no path has")
    return os.path.normpath(b"/" + path.lstrip(b"/"))


PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a program without a path is looked for."""

_LIMIT_LINE_BYTES = 256  # as the kernel has it
_ELF, _SCRIPT = b"\x7fELF", b"#!"
_PT_INTERP = 3


def executables(programs: Iterable[bytes], writable: tuple[bytes, ...]) -> set[bytes]:
    """Return the paths, without links, of what may be executed for programs: names, or absolute paths.

    The kernel starts the interpreter of a script and the loader of a program by itself, and both need the right to be
    executed. What the image has is followed through links and interpreters. What tool code could write, in the
    directories `writable`, is taken as it stands: a link or a first line of its own must not name another program.
    """
    found: set[bytes] = set()
    waiting = [b"/bin/sh", *programs]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        for path in (name,) if b"/" in name else [os.path.join(directory, name) for directory in PATH.split(b":")]:
            if _is_below(path, writable):
                found.add(path)
                continue
            target = os.path.realpath(path)
            if target in found or _is_below(target, writable):
                continue
            try:
                started = _started_for(target)
            except (OSError, struct.error):
                continue
            found.add(target)
            waiting += set(started) - seen
            seen.update(started)
    return found


def _is_below(path: bytes, directories: tuple[bytes, ...]) -> bool:
    return any(path.startswith(directory + b"/") for directory in directories)


def _started_for(path: bytes) -> list[bytes]:
    """Return what the kernel starts for a file: its interpreter, with what `env` runs, or its loader.

    Raises OSError, and struct.error for a header that is cut.
    """
    with open(path, "rb") as file:
        head = file.read(_LIMIT_LINE_BYTES)
        if head.startswith(_SCRIPT):
            words = head[2:].partition(b"\n")[0].split()
            by_env = words[:1] and os.path.basename(words[0]) == b"env"
            return [word for word in words[: 3 if by_env else 1] if not word.startswith(b"-")]
        if not head.startswith(_ELF):
            return []
        wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
        (offset,) = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
        size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
        file.seek(offset)
        headers = file.read(min(size * count, 64 * 1024))
        for place in range(0, len(headers), size or 1):
            if struct.unpack_from(order + "I", headers, place)[0] == _PT_INTERP:
                fields = order + ("Q" if wide else "I")
                (begin,) = struct.unpack_from(fields, headers, place + (8 if wide else 4))
                (length,) = struct.unpack_from(fields, headers, place + (32 if wide else 16))
                file.seek(begin)
                return [file.read(min(length, _LIMIT_LINE_BYTES)).rstrip(b"\0")]
    return []
