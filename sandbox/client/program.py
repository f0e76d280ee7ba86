"""Validates the arguments, environment and directory of a program against the limits of the kernel and of a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandbox.daemon.frames import MAX_FRAME_BYTES
from sandbox.errors import InvalidArgument, TooLarge
from sandbox.file_rules import FileRules
from sandbox.v1 import channel_pb2 as pb

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


def file_rules_message(rules: FileRules) -> pb.FileRules:
    """Return file rules in the form of the wire."""
    return pb.FileRules(
        readable=rules.readable,
        writable=rules.writable,
        unreadable=rules.unreadable,
        unwritable=rules.unwritable,
        readable_files=rules.readable_files,
        writable_files=rules.writable_files,
        programs=rules.programs or (),
        only_programs=rules.programs is not None,
    )


def checked_request(request: pb.Request) -> pb.Request:
    """Return the request; TooLarge if it exceeds a frame, as many tiny arguments or a large environment may."""
    if request.ByteSize() > MAX_FRAME_BYTES:
        raise TooLarge(
            f"the arguments and environment take {request.ByteSize():,} bytes in a message, and the limit is "
            f"{MAX_FRAME_BYTES:,}: pass them in a file"
        )
    return request
