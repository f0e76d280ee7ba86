"""Errors of the gateway: the classes that clients see, and how a sandbox's errors become those.

The classes are airlock.errors', under the same names. They are raised anywhere, and gateway/serving/edge.py translates
them to a gRPC status, once.
"""

import errno
from collections.abc import Mapping

from airlock.errors import *
from sandbox import errors as theirs

# A subclass precedes its parent. Most have the name that the sandbox's error has.
_NAMED_ALIKE = (
    *(NotFound, PermissionDenied, IsADirectory, NotADirectory, InvalidPath, NoSpace, TooLarge, Conflict),
    *(InvalidArgument, Exhausted, SandboxBusy),
)
_FOR_THE_OPERATOR = (theirs.PostureTooWeak, theirs.ImageMissing, theirs.ImageRefused, theirs.RuntimeMissing)
_FROM_SANDBOX: Mapping[type[theirs.SandboxError], type[AirlockError]] = {
    **{getattr(theirs, kind.__name__): kind for kind in _NAMED_ALIKE},
    **dict.fromkeys(_FOR_THE_OPERATOR, Misconfigured),
    theirs.SandboxError: Unavailable,
}

_FAILED = "failed_to_start"
# The kernel reports these for a process that has ended and for a pipe without a reader.
_ENDED_ERRNOS = (errno.ESRCH, errno.EPIPE)
# When a program starts, these are about the request, unless they carry an errno of the kernel.
_REQUEST_ERRORS = (theirs.InvalidPath, theirs.TooLarge, theirs.InvalidArgument, theirs.Exhausted)


def from_sandbox(error: theirs.SandboxError) -> AirlockError:
    """Return the client's error for a sandbox's."""
    if isinstance(error, theirs.InputNotTaken):
        kind = ProcessEnded if error.closed else InputNotTaken
        return kind(str(error), taken_bytes=str(error.taken_bytes))
    if isinstance(error, theirs.InputGap):
        return InputGap(str(error), stdin_taken_bytes=str(error.stdin_taken_bytes))
    if isinstance(error, theirs.TooManyCreations):
        return QuotaExceeded(str(error), error.retry_after_s, quota=error.quota, limit=error.limit)
    if isinstance(error, theirs.TooManyWaiting):
        return Overloaded(str(error), error.retry_after_s)
    if isinstance(error, theirs.Conflict) and error.errno in _ENDED_ERRNOS:
        return ProcessEnded(str(error))
    return next(ours for kind, ours in _FROM_SANDBOX.items() if isinstance(error, kind))(error.outside)


def from_start(error: theirs.SandboxError) -> AirlockError:
    """Return the client's error for a program that did not start; a kernel's refusal never looks like the policy's."""
    refused = isinstance(error, (theirs.FileError, theirs.Exhausted))
    if not refused or isinstance(error, theirs.Conflict):
        return from_sandbox(error)
    if error.errno is None:
        return from_sandbox(error) if isinstance(error, _REQUEST_ERRORS) else StartFailed(str(error), outcome=_FAILED)
    outcome = "pids_limit" if error.errno == errno.EAGAIN else _FAILED
    return StartFailed(str(error), outcome=outcome, errno=str(error.errno))
