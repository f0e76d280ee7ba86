"""Which files a call may execute where its rules name programs: those, the shell, and what the kernel starts for them.

The kernel starts the interpreter of a script and the loader of a program by itself, and both need the right to be
executed. What the image has is followed through links and interpreters. What tool code could write is taken as it
stands: a link or a first line of its own must not name another program.
"""

import os
import struct
from collections.abc import Iterable

PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a program without a path is looked for."""

_SHELL = b"/bin/sh"
_LIMIT_LINE_BYTES = 256  # as the kernel has it
_LIMIT_HEADERS_BYTES = 64 * 1024
_ELF, _SCRIPT = b"\x7fELF", b"#!"
_PT_INTERP = 3


def executables(programs: Iterable[bytes], writable: tuple[bytes, ...]) -> set[bytes]:
    """Return the paths, without links, of what may be executed for programs: names, or absolute paths.

    `writable` are the directories that tool code may write. A program that is not there has none.
    """
    found: set[bytes] = set()
    waiting = [_SHELL, *programs]
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
        headers = file.read(min(size * count, _LIMIT_HEADERS_BYTES))
        for place in range(0, len(headers), size or 1):
            if struct.unpack_from(order + "I", headers, place)[0] == _PT_INTERP:
                fields = order + ("Q" if wide else "I")
                (begin,) = struct.unpack_from(fields, headers, place + (8 if wide else 4))
                (length,) = struct.unpack_from(fields, headers, place + (32 if wide else 16))
                file.seek(begin)
                return [file.read(min(length, _LIMIT_LINE_BYTES)).rstrip(b"\0")]
    return []
