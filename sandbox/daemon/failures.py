"""Failures of calls: a kind to branch on, and a message that says what is wrong and how to fix it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from sandbox.v1 import channel_pb2 as wire

_KINDS = {
    number: kind
    for kind, numbers in {
        wire.FAILURE_KIND_NOT_FOUND: (errno.ENOENT,),
        wire.FAILURE_KIND_PERMISSION_DENIED: (errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY),
        wire.FAILURE_KIND_IS_A_DIRECTORY: (errno.EISDIR,),
        wire.FAILURE_KIND_NOT_A_DIRECTORY: (errno.ENOTDIR,),
        wire.FAILURE_KIND_INVALID_PATH: (errno.ELOOP, errno.ENAMETOOLONG),
        wire.FAILURE_KIND_NO_SPACE: (errno.ENOSPC, errno.EDQUOT),
        wire.FAILURE_KIND_TOO_LARGE: (errno.EFBIG, errno.E2BIG),
        wire.FAILURE_KIND_CONFLICT: (errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY),
        wire.FAILURE_KIND_INVALID_ARGUMENT: (errno.EINVAL, errno.EXDEV, errno.ENXIO, errno.ENODEV),
        wire.FAILURE_KIND_EXHAUSTED: (errno.EAGAIN, errno.ENOMEM, errno.ETIMEDOUT, errno.EOVERFLOW),
    }.items()
    for number in numbers
}

_ADVICE = {
    errno.EROFS: "the file system is read-only; write below /workspace or /tmp",
    errno.ENOSPC: "no space is left; remove files you no longer need",
    errno.EDQUOT: "the quota is used up; remove files you no longer need",
    errno.EXDEV: "it lies on another file system; copy the file and remove the old one instead",
    errno.ENOTEMPTY: "the directory is not empty; ask for a recursive removal if all of it may go",
    errno.ENXIO: "it is a pipe, socket or device; only regular files can be used",
    errno.ENODEV: "it is a pipe, socket or device; only regular files can be used",
    errno.EAGAIN: "the sandbox has no process left to do it with; end some of its processes first",
    errno.ENOMEM: "the sandbox has no memory left to do it with; end some of its processes first",
    errno.EOVERFLOW: "too many files are in the same directory as one that its file rules forbid; remove some",
    errno.ETIMEDOUT: "the sandbox is too busy to begin it in time; end some of its processes first",
}


class Fault(Exception):
    """A failure that the caller can act on. `number` is an errno, `taken_bytes` the input that was read."""

    def __init__(self, kind: wire.FailureKind, message: str, number: int = 0, *, taken_bytes: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.number = number
        self.taken_bytes = taken_bytes

    def failure(self) -> wire.Failure:
        text = self.message.encode("utf-8", "backslashreplace")[:4096].decode("utf-8", "ignore")
        return wire.Failure(kind=self.kind, message=text, errno=self.number, taken_bytes=self.taken_bytes)


invalid_argument = partial(Fault, wire.FAILURE_KIND_INVALID_ARGUMENT)
invalid_path = partial(Fault, wire.FAILURE_KIND_INVALID_PATH)
permission_denied = partial(Fault, wire.FAILURE_KIND_PERMISSION_DENIED)
conflict = partial(Fault, wire.FAILURE_KIND_CONFLICT)
too_large = partial(Fault, wire.FAILURE_KIND_TOO_LARGE)
exhausted = partial(Fault, wire.FAILURE_KIND_EXHAUSTED)
internal = partial(Fault, wire.FAILURE_KIND_INTERNAL)


def check_most(name: str, value: int, most: int, hint: str = "is the most") -> None:
    """Raise a Fault for an argument over its limit."""
    if value > most:
        raise invalid_argument(f"{name} is {value}; {most} {hint}")


def check_range(name: str, value: int, most: int, unit: str = "") -> None:
    """Raise a Fault for an argument that is not from 1 to its limit."""
    if not 1 <= value <= most:
        raise invalid_argument(f"{name} is {value}{unit}; give 1 to {most}")


@contextmanager
def fault_at(path: str) -> Iterator[None]:
    """Raise errors of the kernel as the faults of a path."""
    try:
        yield
    except OSError as error:
        raise fault_of(error, path) from None


def fault_of(error: OSError, path: str) -> Fault:
    """Return the fault for an error of the kernel at `path`."""
    number = error.errno or 0
    what = _ADVICE.get(number) or (error.strerror or str(error)).lower()
    return Fault(_KINDS.get(number, wire.FAILURE_KIND_INTERNAL), f"{path}: {what}", number)
