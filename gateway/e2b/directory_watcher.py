"""Runs inside a sandbox, by its own python3: reports what happens in a directory, by inotify. Imports nothing of ours.

    python3 -I -c SOURCE DIRECTORY RECURSIVE

prints `ready`, or `error` and why. For each line on standard input it prints that line, and after it a JSON list of the
events [kind, name] since the line before; the line `-` means each event at once, on a line of its own.
"""

import ctypes
import json
import os
import re
import select
import struct
import sys

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_IGNORED, _IS_DIRECTORY, _ONLY_DIRECTORY = 0x8000, 0x40000000, 0x01000000
_LIMIT = 10_000
# Files that the gateway is writing: their names, and what the kernel calls one without a name.
_TEMPORARY = (".airlock-", ".tmp")
_UNNAMED = re.compile(r"#\d+")


class Watcher:
    """Watches a directory."""

    def __init__(self, root: str, recursive: bool) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self.paths: dict[int, str] = {}
        self.known: set[str] = set()
        self.events: list[list[str]] = []
        self.root, self.recursive = root, recursive
        self.watch(root, announce=False)

    def watch(self, path: str, *, announce: bool = True) -> None:
        mask = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORY
        descriptor = self.libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if descriptor < 0:
            error = ctypes.get_errno()
            if path == self.root:
                raise OSError(error, os.strerror(error))
            return
        self.paths[descriptor] = path
        try:
            entries = list(os.scandir(path))
        except OSError:
            return
        for entry in entries:
            new = entry.path not in self.known
            self.known.add(entry.path)
            if new and announce:  # made before the watch was there
                self.note("create", entry.path)
            if self.recursive and entry.is_dir(follow_symlinks=False):
                self.watch(entry.path, announce=announce)

    def note(self, kind: str, path: str) -> None:
        if len(self.events) < _LIMIT:
            self.events.append([kind, os.path.relpath(path, self.root)])

    def read(self) -> None:
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            descriptor, mask, _, length = struct.unpack_from("iIII", data, at)
            name = os.fsdecode(data[at + 16 : at + 16 + length].rstrip(b"\0"))
            at += 16 + length
            if mask & _IGNORED:
                self.paths.pop(descriptor, None)
            elif descriptor in self.paths and name:
                self.take(mask, name, os.path.join(self.paths[descriptor], name))

    def take(self, mask: int, name: str, path: str) -> None:
        if (name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1])) or _UNNAMED.fullmatch(name):
            return
        is_known = path in self.known
        if mask & (_CREATE | _MOVED_TO):
            self.known.add(path)
            if not (mask & _MOVED_TO and is_known):
                self.note("create", path)
            if not mask & _IS_DIRECTORY and (mask & _MOVED_TO or has_content(path)):
                self.note("write", path)  # the gateway writes files as a whole, beside their place
            if mask & _IS_DIRECTORY and self.recursive:
                self.watch(path)
        elif mask & (_DELETE | _MOVED_FROM):
            self.known.discard(path)
            self.note("remove" if mask & _DELETE else "rename", path)
        elif mask & _MODIFY:
            self.note("write", path)
        elif mask & _ATTRIB:
            self.note("chmod", path)

    def taken(self) -> list[list[str]]:
        events, self.events = self.events, []
        return events


def has_content(path: str) -> bool:
    """Return whether a file has bytes."""
    try:
        return os.lstat(path).st_size > 0
    except OSError:
        return False


def main(root: str, recursive: bool) -> None:
    """Watch until standard input ends."""
    try:
        watcher = Watcher(root, recursive)
    except OSError as error:
        print("error", error.strerror, flush=True)
        return
    print("ready", flush=True)
    at_once, pending = False, b""
    while True:
        ready, _, _ = select.select([watcher.fd, 0], [], [])
        watcher.read()
        if 0 in ready:
            given = os.read(0, 4096)
            if not given:
                return
            *lines, pending = (pending + given).split(b"\n")
            for line in lines:
                if line == b"-":
                    at_once = True
                else:
                    print(line.decode(), json.dumps(watcher.taken()), flush=True)
        if at_once:
            for event in watcher.taken():
                print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1")
