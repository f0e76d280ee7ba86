"""What both file systems take as arguments: plain absolute paths, pages within bounds, patterns that are text."""

from __future__ import annotations

from sandbox.errors import InvalidArgument, InvalidPath

PAGE_LIMIT = 10_000
LINES_LIMIT = 100_000
LINES_LIMIT_BYTES = 1024 * 1024
_PATTERN_CHARS = 4096
_PATH_BYTES = 4095
_NAME_BYTES = 255


def checked_path(path: str) -> str:
    """Return the path without doubled or trailing slashes and dots; raises InvalidPath when it is not a plain one."""
    if not path.startswith("/"):
        raise InvalidPath(f"{path!r} is not absolute: paths start with /, for example /workspace/{path[:200]}")
    if "\0" in path:
        raise InvalidPath("the path has a NUL character; leave it out")
    try:
        size_bytes = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidPath(
            f"{path!r} has bytes that are not UTF-8, and such a path cannot be asked for; rename it with execute"
        ) from None
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise InvalidPath(f"{path[:500]!r} has '..': give the path it leads to")
    if size_bytes > _PATH_BYTES or any(len(name.encode()) > _NAME_BYTES for name in names):
        raise InvalidPath(f"the path is too long: {_PATH_BYTES:,} bytes, and {_NAME_BYTES} bytes a name, are the limit")
    return "/" + "/".join(names)


def checked_page(offset: int, limit: int) -> int:
    """Return the limit of a page of entries or matches, 10,000 at most; raises InvalidArgument."""
    if offset < 0 or limit < 1:
        raise InvalidArgument("offset is 0 or more and limit 1 or more")
    return min(limit, PAGE_LIMIT)


def checked_lines(offset: int, limit: int, limit_bytes: int) -> int:
    """Return the limit of a page of lines, 100,000 at most; raises InvalidArgument."""
    if offset < 0 or limit < 1 or not 1 <= limit_bytes <= LINES_LIMIT_BYTES:
        raise InvalidArgument(f"offset is 0 or more, limit 1 or more, limit_bytes 1 to {LINES_LIMIT_BYTES:,}")
    return min(limit, LINES_LIMIT)


def checked_pattern(pattern: str) -> str:
    """Return a pattern of glob or grep; raises InvalidArgument when it is empty, long or no text."""
    if not pattern or len(pattern) > _PATTERN_CHARS or "\0" in pattern:
        raise InvalidArgument(f"a pattern has 1 to {_PATTERN_CHARS:,} characters and no NUL")
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("a pattern is UTF-8 text") from None
    return pattern
