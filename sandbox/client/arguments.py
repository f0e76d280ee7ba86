"""Validates the arguments of calls: plain absolute paths, pages within bounds, patterns that are text, programs.

Programs have the limits of the kernel and of a frame.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from sandbox.daemon.frames import MAX_FRAME_BYTES
from sandbox.errors import InvalidArgument, InvalidPath, TooLarge
from sandbox.file_rules import FileRules
from sandbox.v1 import channel_pb2 as pb

PAGE_LIMIT = 10_000
LINES_LIMIT = 100_000
LINES_LIMIT_BYTES = 1024 * 1024
OFFSET_LIMIT = 2**62
_PATTERN_CHARS = 4096
_PATH_BYTES = 4095
_NAME_BYTES = 255


def checked_path(path: str) -> str:
    """Return the path without doubled or trailing slashes and dots; raises InvalidPath when it is not a plain one."""
    if not path.startswith("/"):
        raise InvalidPath(f"{path!r} is not an absolute path: start it with /, for example /workspace/{path[:200]}")
    if "\0" in path:
        raise InvalidPath("the path contains a NUL character: remove it")
    try:
        size_bytes = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidPath(f"{path!r} is not valid UTF-8, so this call cannot name it: rename it with execute") from None
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise InvalidPath(f"{path[:500]!r} contains '..': give the resolved path")
    if size_bytes > _PATH_BYTES or any(len(name.encode()) > _NAME_BYTES for name in names):
        raise InvalidPath(f"the path is too long: at most {_PATH_BYTES:,} bytes, and {_NAME_BYTES} bytes per name")
    return "/" + "/".join(names)


def checked_page(offset: int, limit: int) -> int:
    """Return the limit of a page of entries or matches, 10,000 at most; raises InvalidArgument."""
    if not 0 <= offset <= OFFSET_LIMIT or limit < 1:
        raise InvalidArgument("offset is 0 or more and limit 1 or more")
    return min(limit, PAGE_LIMIT)


def checked_lines(offset: int, limit: int, limit_bytes: int) -> int:
    """Return the limit of a page of lines, 100,000 at most; raises InvalidArgument."""
    if not 0 <= offset <= OFFSET_LIMIT or limit < 1 or not 1 <= limit_bytes <= LINES_LIMIT_BYTES:
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


# All arguments together, each with its terminating NUL.
ARGV_LIMIT_BYTES = 1024 * 1024 + 32 * 1024
# The kernel's limit for one argument or variable, without the terminating NUL (MAX_ARG_STRLEN).
ARGUMENT_LIMIT_BYTES = 128 * 1024 - 1


def checked_argv(argv: Sequence[bytes]) -> list[bytes]:
    """Return the program and its arguments; raises InvalidArgument or TooLarge."""
    if not argv or not argv[0]:
        raise InvalidArgument("argv is a list whose first member is the program to run, and that is not empty")
    total_bytes = 0
    for index, argument in enumerate(argv):
        if b"\0" in argument:
            raise InvalidArgument(f"argument {index} has a NUL byte, which no argument can have; pass it by a file")
        if len(argument) > ARGUMENT_LIMIT_BYTES:
            raise TooLarge(
                f"argument {index} has {len(argument):,} bytes, and the kernel allows {ARGUMENT_LIMIT_BYTES:,}: "
                "pass it in a file or by stdin"
            )
        total_bytes += len(argument) + 1
    if total_bytes > ARGV_LIMIT_BYTES:
        raise TooLarge(
            f"the arguments take {total_bytes:,} bytes, and the limit is {ARGV_LIMIT_BYTES:,}: pass them in a "
            "file or by stdin"
        )
    return list(argv)


def checked_environment(*parts: Mapping[str, str]) -> dict[str, str]:
    """Merge variables, later parts over earlier ones; raises InvalidArgument or TooLarge."""
    merged: dict[str, str] = {}
    for part in parts:
        merged.update(part)
    for name, value in merged.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidArgument(f"variable {name[:100]!r}: a name is not empty and has no '=', and neither has a NUL")
        try:
            size_bytes = len(name.encode()) + 1 + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidArgument(f"variable {name[:100]!r} is not UTF-8 text; pass such bytes by a file") from None
        if size_bytes > ARGUMENT_LIMIT_BYTES:
            raise TooLarge(
                f"variable {name[:100]!r} takes {size_bytes:,} bytes, and the kernel allows "
                f"{ARGUMENT_LIMIT_BYTES:,}: write the value to a file"
            )
    return merged


@lru_cache(256)
def file_rules_message(rules: FileRules) -> pb.FileRules:
    """Return file rules in the form of the wire, which no caller may change."""
    programs = rules.programs or ()
    return pb.FileRules(**{**vars(rules), "programs": programs}, only_programs=rules.programs is not None)


def checked_request(request: pb.Request) -> pb.Request:
    """Return the request; TooLarge if it exceeds a frame, as many tiny arguments or a large environment may."""
    if request.ByteSize() > MAX_FRAME_BYTES:
        raise TooLarge(
            f"the arguments and environment take {request.ByteSize():,} bytes in a message, and the limit is "
            f"{MAX_FRAME_BYTES:,}: pass them in a file"
        )
    return request
