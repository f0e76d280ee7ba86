"""Errors of the gateway, as clients see them: one gRPC code and one machine-readable reason each.

    AirlockError
    +-- Unauthenticated      UNAUTHENTICATED      no key, or one that is not known
    |   +-- KeyExpired                            the key has expired
    +-- InvalidArgument      INVALID_ARGUMENT     a field of the request is wrong; with BadRequest
    |   +-- RequestIdReused                       the request id was given to another request before
    |   +-- PolicyInvalid                         a policy does not load or does not fit; details: problems
    |   +-- InvalidPath                           a path that is malformed or goes through a symbolic link
    +-- NotFound             NOT_FOUND            not there, or another tenant's: no difference in answer
    +-- PermissionDenied     PERMISSION_DENIED    policy, or the file's mode, says no
    |   +-- ScopeMissing                          the key is not for such calls; details: scope
    +-- StillConfigured      FAILED_PRECONDITION  what is to be deleted is in the configuration yet
    +-- PolicyChanged        FAILED_PRECONDITION  another policy is in force than was expected; details: version
    +-- ApprovalPending      FAILED_PRECONDITION  the call waits for an approval; details: approval_id
    +-- AlreadyResolved      FAILED_PRECONDITION  somebody answered first; details: status
    +-- EditRefused          FAILED_PRECONDITION  the policy denies an approver's arguments; details: rule
    +-- IsADirectory         FAILED_PRECONDITION  a file was expected
    +-- NotADirectory        FAILED_PRECONDITION  a directory was expected
    +-- Conflict             ALREADY_EXISTS       it is there already
    +-- StartFailed          FAILED_PRECONDITION  a program could not be started; details: outcome, errno
    +-- ProcessEnded         FAILED_PRECONDITION  a process has ended, or its stdin is closed; details: taken_bytes
    +-- InputNotTaken        DEADLINE_EXCEEDED    a process did not read all of its input in time; details: taken_bytes
    +-- InputGap             OUT_OF_RANGE         input begins past what stdin took; details: stdin_taken_bytes
    +-- NoSpace              RESOURCE_EXHAUSTED   the workspace, or the engine's disk, is full; details: disk where it
    |                                             is the gateway's
    +-- TooLarge             OUT_OF_RANGE         larger than the call takes
    +-- Exhausted            RESOURCE_EXHAUSTED   the sandbox has no process or memory left, or no room for a process
    +-- Overloaded           RESOURCE_EXHAUSTED   too many sandboxes, runs or calls at once; with RetryInfo where
    |   |                                         waiting helps
    |   +-- QuotaExceeded                         a quota of the tenant is used up; details: quota; with QuotaFailure
    +-- InProgress           ABORTED              the same request, by its id, is under way; with RetryInfo
    +-- SandboxBusy          FAILED_PRECONDITION  calls are under way in the sandbox that was to be stopped
    +-- OtherEngine          FAILED_PRECONDITION  the thread's files are on another engine; details: engine
    +-- ThreadBusy           FAILED_PRECONDITION  a run or a call is under way in the thread
    +-- WorkspaceNotSaved    FAILED_PRECONDITION  the files of that moment are not kept; details: nearest
    +-- Unavailable          UNAVAILABLE          the engine, a sandbox or the gateway does not answer; of a call that
    |                                             the database took no record of details: call_id, outcome
    |   +-- ClientClosed                          the Python client was closed: raised by the client itself
    +-- WrongEventLoop       FAILED_PRECONDITION  the Python client belongs to another event loop: raised by the client
    |                                             itself
    +-- Unrecorded           INTERNAL             it was done, and its record follows: not to be asked for again
    +-- DeadlineExceeded     DEADLINE_EXCEEDED    the caller's own time limit passed first
    +-- Cancelled            CANCELLED            the caller took the call back
    +-- Misconfigured        FAILED_PRECONDITION  the operator has to mend the configuration
    +-- Internal             INTERNAL             a fault of the gateway

The server raises them anywhere and gateway/serving/edge.py translates them once; the client turns a status back into
the same class. str() says what is wrong and how to mend it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import ClassVar, Self

import grpc

from sandbox import errors as sandbox_errors

_FIELD = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*): (.+)", re.DOTALL)


class AirlockError(Exception):
    """Something the gateway could not do."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.details = details


class Unauthenticated(AirlockError):
    """No key, or one that is not known."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"

    def __init__(self, message: str, *, noted: Mapping[str, str] | None = None, **details: str) -> None:
        """`noted` is for the operators' audit and log; the caller is never told."""
        super().__init__(message, **details)
        self.noted = noted or {}


class KeyExpired(Unauthenticated):
    """The key has expired: ask an operator for a new one."""

    reason = "KEY_EXPIRED"


class InvalidArgument(AirlockError):
    """A field of the request is wrong. `violations` say what would be right, by the paths of fields, where known."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message, **details)
        # Most are raised as "field: what is right".
        field = _FIELD.match(message)
        self.violations: Mapping[str, str] = {field[1]: field[2]} if field else {}

    def of_fields(self, violations: Mapping[str, str]) -> Self:
        """Return this error, about these fields."""
        self.violations = dict(violations)
        return self


class RequestIdReused(InvalidArgument):
    """The request id was given to another request before: take a new one for each request."""

    reason = "REQUEST_ID_REUSED"


class PolicyInvalid(InvalidArgument):
    """A policy does not load or does not fit; `problems` of `details` is a JSON list of {line, field, message}."""

    reason = "POLICY_INVALID"


class InvalidPath(InvalidArgument):
    """A path that is malformed or goes through a symbolic link."""

    reason = "INVALID_PATH"


class NotFound(AirlockError):
    """Not there, or another tenant's."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class PermissionDenied(AirlockError):
    """Policy, or the file's mode, says no."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class ScopeMissing(PermissionDenied):
    """The key is not for such calls; `scope` of `details` is what it would need."""

    reason = "SCOPE_MISSING"


class StillConfigured(AirlockError):
    """What is to be deleted is in the configuration yet, and would be made again."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STILL_CONFIGURED"


class PolicyChanged(AirlockError):
    """Another policy is in force than was expected, `version` of `details`; empty where nothing was ever applied."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "POLICY_CHANGED"


class ApprovalPending(AirlockError):
    """The call waits for an approval, `approval_id` of `details`: make it again once that is given."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "APPROVAL_PENDING"


class AlreadyResolved(AirlockError):
    """Somebody answered first, or it expired; `status` of `details` says which."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "ALREADY_RESOLVED"


class EditRefused(AirlockError):
    """The arguments an approver gave are denied by the policy, `rule` of `details`; the approval waits on."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "EDIT_REFUSED"


class IsADirectory(AirlockError):
    """A file was expected."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "IS_A_DIRECTORY"


class NotADirectory(AirlockError):
    """A directory was expected."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "NOT_A_DIRECTORY"


class Conflict(AirlockError):
    """It is there already."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "CONFLICT"


class StartFailed(AirlockError):
    """A program could not be started. `details` have `outcome`, and `errno` (Linux') where the kernel gave one."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "START_FAILED"


class ProcessEnded(AirlockError):
    """A process has ended, or its stdin is closed. Of input, `details` have `taken_bytes`."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "PROCESS_ENDED"


class InputNotTaken(AirlockError):
    """A process did not read all of its input in time; from `taken_bytes` of `details` on one may go on."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "INPUT_NOT_TAKEN"


class InputGap(AirlockError):
    """Input begins past what a process has taken, `stdin_taken_bytes` of `details`; nothing was written."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "INPUT_GAP"


class NoSpace(AirlockError):
    """The workspace, or the engine's disk, is full; with `disk: gateway` in `details` the gateway's is."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "NO_SPACE"


class TooLarge(AirlockError):
    """Larger than the call takes."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "TOO_LARGE"


class Exhausted(AirlockError):
    """The sandbox has no process or memory left for it, or 64 background processes run."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "EXHAUSTED"


class Overloaded(AirlockError):
    """Too many sandboxes, runs or calls at once. `retry_after_s` is None where nobody knows when there are fewer."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"

    def __init__(self, message: str, retry_after_s: float | None = None, **details: str) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class QuotaExceeded(Overloaded):
    """A quota of the tenant is used up, `quota` of `details`. `retry_after_s` is None where waiting is no help."""

    reason = "QUOTA_EXCEEDED"


class InProgress(AirlockError):
    """The same request, by its request id, is under way: make it again after `retry_after_s`, and have its result."""

    code = grpc.StatusCode.ABORTED
    reason = "IN_PROGRESS"

    def __init__(self, message: str, retry_after_s: float | None = 0.2, **details: str) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class SandboxBusy(AirlockError):
    """Calls are under way in the sandbox that was to be stopped, on whichever gateway."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SANDBOX_BUSY"


class OtherEngine(AirlockError):
    """The thread's files are on another engine, `engine` of `details`, than this gateway's."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "OTHER_ENGINE"


class ThreadBusy(AirlockError):
    """A run or a call is under way in the thread, or it is being deleted or restored."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "THREAD_BUSY"


class WorkspaceNotSaved(AirlockError):
    """The files of a thread at some moment are not kept; `nearest` of `details` are the steps whose are."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WORKSPACE_NOT_SAVED"


class Unavailable(AirlockError):
    """The engine, a sandbox or the gateway does not answer. `outcome` of `details`: not_executed, or withheld."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class ClientClosed(Unavailable):
    """The Python client was closed, before the call or while it was under way: make another client."""

    reason = "CLIENT_CLOSED"


class WrongEventLoop(AirlockError):
    """The Python client belongs to the event loop that it was first used in: make one client for each loop."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WRONG_EVENT_LOOP"


class Unrecorded(AirlockError):
    """It was done, and the database took no record of it yet, which follows: not to be asked for again."""

    # Not UNAVAILABLE, which is asked for again.
    code = grpc.StatusCode.INTERNAL
    reason = "UNRECORDED"


class DeadlineExceeded(AirlockError):
    """The caller's own time limit passed first; what the call had started was killed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Cancelled(AirlockError):
    """The caller took the call back."""

    code = grpc.StatusCode.CANCELLED
    reason = "CANCELLED"


class Misconfigured(AirlockError):
    """The operator has to mend the configuration."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MISCONFIGURED"


class Internal(AirlockError):
    """A fault of the gateway."""


# Order matters: a subclass stands before its parent.
_FROM_SANDBOX: tuple[tuple[type[sandbox_errors.SandboxError], type[AirlockError]], ...] = (
    (sandbox_errors.NotFound, NotFound),
    (sandbox_errors.PermissionDenied, PermissionDenied),
    (sandbox_errors.IsADirectory, IsADirectory),
    (sandbox_errors.NotADirectory, NotADirectory),
    (sandbox_errors.InvalidPath, InvalidPath),
    (sandbox_errors.NoSpace, NoSpace),
    (sandbox_errors.TooLarge, TooLarge),
    (sandbox_errors.Conflict, Conflict),
    (sandbox_errors.InvalidArgument, InvalidArgument),
    (sandbox_errors.Exhausted, Exhausted),
    (sandbox_errors.SandboxBusy, SandboxBusy),
    (sandbox_errors.PostureTooWeak, Misconfigured),
    (sandbox_errors.ImageMissing, Misconfigured),
    (sandbox_errors.ImageRefused, Misconfigured),
    (sandbox_errors.RuntimeMissing, Misconfigured),
    (sandbox_errors.SandboxError, Unavailable),
)


_FAILED = "failed_to_start"
# What the kernel says of a process that is no more, or of a pipe that nobody reads.
_ENDED = (errno.ESRCH, errno.EPIPE)
# At a start they are about the request, unless the kernel itself said so.
_OF_THE_REQUEST = (
    sandbox_errors.InvalidPath,
    sandbox_errors.TooLarge,
    sandbox_errors.InvalidArgument,
    sandbox_errors.Exhausted,
)


def from_sandbox(error: sandbox_errors.SandboxError) -> AirlockError:
    """Return the client's error for a sandbox's."""
    if isinstance(error, sandbox_errors.InputNotTaken):
        kind = ProcessEnded if error.closed else InputNotTaken
        return kind(str(error), taken_bytes=str(error.taken_bytes))
    if isinstance(error, sandbox_errors.InputGap):
        return InputGap(str(error), stdin_taken_bytes=str(error.stdin_taken_bytes))
    if isinstance(error, sandbox_errors.TooManyCreations):
        return QuotaExceeded(str(error), error.retry_after_s, quota=error.quota, limit=error.limit)
    if isinstance(error, sandbox_errors.TooManyWaiting):
        return Overloaded(str(error), error.retry_after_s)
    if isinstance(error, sandbox_errors.Conflict) and error.errno in _ENDED:
        return ProcessEnded(str(error))
    return next(ours for theirs, ours in _FROM_SANDBOX if isinstance(error, theirs))(error.outside)


def from_start(error: sandbox_errors.SandboxError) -> AirlockError:
    """Return the client's error for a process that did not start: the kernel's no is never like a policy's."""
    refused = isinstance(error, (sandbox_errors.FileError, sandbox_errors.Exhausted))
    if not refused or isinstance(error, sandbox_errors.Conflict):
        return from_sandbox(error)
    if error.errno is None:
        return from_sandbox(error) if isinstance(error, _OF_THE_REQUEST) else StartFailed(str(error), outcome=_FAILED)
    outcome = "pids_limit" if error.errno == errno.EAGAIN else _FAILED
    return StartFailed(str(error), outcome=outcome, errno=str(error.errno))


def all_errors(root: type[AirlockError] = AirlockError) -> dict[str, type[AirlockError]]:
    """Return every class by its reason."""
    found = {root.reason: root} if root is not AirlockError else {}
    for child in root.__subclasses__():
        found |= all_errors(child)
    return found
