"""Errors of the gateway as those that open() and exec() raise, which most frameworks expect of a sandbox."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airlock import errors

_ERRNOS: Mapping[type[errors.AirlockError], int] = {
    errors.NotFound: errno.ENOENT,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.Conflict: errno.EEXIST,
    errors.PermissionDenied: errno.EACCES,
    errors.InvalidArgument: errno.EINVAL,
    errors.NoSpace: errno.ENOSPC,
    errors.TooLarge: errno.EFBIG,
    errors.DeadlineExceeded: errno.ETIMEDOUT,
}


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise an OSError of the fitting kind, with what the gateway says and the path as the caller wrote it.

    What is no answer to the operation, such as Unavailable or ApprovalPending, stays what it is.
    """
    try:
        yield
    except tuple(_ERRNOS) as error:
        number = next(number for kind, number in _ERRNOS.items() if isinstance(error, kind))
        raise OSError(number, str(error), path) from error
