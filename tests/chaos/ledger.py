"""What must be in a thread's workspace, by what its calls returned.

A call that was acknowledged has been done, once. One that failed may have been done, unless it returned that it was
not. So a file has the content that was acknowledged last, or one of those that were sent since; a line of the log is
there once, at most once, or never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class FileEntry:
    """One file: what it was last known to hold, None for that it is not there, and what it may hold instead."""

    known: bytes | None = None
    maybe: list[bytes | None] = field(default_factory=list)

    def sent(self, content: bytes | None) -> None:
        """Note that a call was made that is to leave this content."""
        self.maybe.append(content)

    def done(self, content: bytes | None) -> None:
        """Note that it was acknowledged."""
        self.known, self.maybe = content, []

    def seen(self, content: bytes | None) -> bool:
        """Return whether a reading is right."""
        if content == self.known:
            return True
        if content not in self.maybe:
            return False
        self.known = content  # what was before it does not come back
        return True

    def copy(self) -> FileEntry:
        """Return it as it is now."""
        return FileEntry(self.known, list(self.maybe))


class Ledger:
    """The files of one thread by their paths, and the lines of its log."""

    def __init__(self) -> None:
        self.files: dict[str, FileEntry] = {}
        self.lines: dict[str, str] = {}

    def file(self, path: str) -> FileEntry:
        """Return a file's entry."""
        return self.files.setdefault(path, FileEntry())

    def wrong_lines(self, log: Sequence[str], *, in_order: bool = True) -> list[str]:
        """Return what is wrong with the log, a sentence each; `in_order` where one call was made after the other."""
        found = Counter(log)
        wrong = [f"line {line!r} is there, and no call wrote it" for line in found if line not in self.lines]
        for line, state in self.lines.items():
            times = found[line]
            if times > 1:
                wrong.append(f"line {line!r} is there {times} times")
            elif state == "sure" and not times:
                wrong.append(f"line {line!r} was acknowledged and is not there")
            elif state == "never" and times:
                wrong.append(f"line {line!r} is there, though its call returned that it did not run")
        sure = [line for line in log if self.lines.get(line) == "sure"]
        if in_order and sure != sorted(sure, key=list(self.lines).index):
            wrong.append("the lines are not in the order of their calls")
        return wrong
