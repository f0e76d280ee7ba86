"""Errors of the gateway as clients see them: each class has one gRPC code and one machine-readable reason.

Each class statement below shows the parent and, unless it is the parent's, the code. The reason is the class name in
upper snake case (`NotFound`, NOT_FOUND) and part of the API; docs/reference/errors.md lists all of them.

The gateway raises these errors anywhere, and gateway/serving/edge.py translates them to a gRPC status. The client turns
a status back into the same class. str() says what is wrong and how to fix it.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from grpc import StatusCode

_FIELD = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*): (.+)", re.DOTALL)


class _Code:
    """A gRPC status code. grpc is imported when someone looks at it: most commands of the CLI need none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, error: object, kind: type | None = None) -> "StatusCode":
        from grpc import StatusCode  # noqa: PLC0415 - see above

        return StatusCode[self._name]


class AirlockError(Exception):
    """The root of all errors."""

    code = _Code("INTERNAL")
    reason: ClassVar[str] = "INTERNAL"

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__()
        if code:
            cls.code = _Code(code)
        cls.reason = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.details = details


class Unauthenticated(AirlockError, code="UNAUTHENTICATED"):
    """The call has no credential, or one that is unknown."""

    def __init__(self, message: str, *, audit_details: Mapping[str, str] | None = None, **details: str) -> None:
        """`audit_details` go to the operators' audit and log, never to the caller."""
        super().__init__(message, **details)
        self.audit_details = audit_details or {}


class KeyExpired(Unauthenticated):
    """The key has expired: ask an operator for a new one."""


class InvalidArgument(AirlockError, code="INVALID_ARGUMENT"):
    """A field of the request is invalid. `violations` maps field paths to what is expected, where known."""

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message, **details)
        # Most are raised as "field: what is expected".
        field = _FIELD.match(message)
        self.violations: Mapping[str, str] = {field[1]: field[2]} if field else {}

    def of_fields(self, violations: Mapping[str, str]) -> Self:
        """Return this error with other violations."""
        self.violations = dict(violations)
        return self


class RequestIdReused(InvalidArgument):
    """The request id belongs to an earlier, different request: use a new id for each request."""


class PolicyInvalid(InvalidArgument):
    """The policy does not load or does not fit; `details.problems` is a JSON list of {line, field, message}."""


class InvalidPath(InvalidArgument):
    """The path is malformed or goes through a symbolic link."""


class NotFound(AirlockError, code="NOT_FOUND"):
    """The object does not exist or belongs to another tenant."""


class PermissionDenied(AirlockError, code="PERMISSION_DENIED"):
    """The policy or the file's mode denies the call."""


class ScopeMissing(PermissionDenied):
    """The credential lacks the scope `details.scope`."""


class StillConfigured(AirlockError, code="FAILED_PRECONDITION"):
    """The object to delete is still in the configuration, so it would be created again."""


class PolicyChanged(AirlockError, code="FAILED_PRECONDITION"):
    """Another policy than the expected one is in force: `details.version`, empty if none was ever applied."""


class PinsChanged(AirlockError, code="FAILED_PRECONDITION"):
    """The MCP server was seen with other tools since: `details.digest` is theirs."""


class ApprovalPending(AirlockError, code="FAILED_PRECONDITION"):
    """The call waits for the approval `details.approval_id`: make the call again once it is approved."""


class AlreadyResolved(AirlockError, code="FAILED_PRECONDITION"):
    """The approval was answered before or has expired; `details.status` says which."""


class EditRefused(AirlockError, code="FAILED_PRECONDITION"):
    """The policy denies the approver's arguments by `details.rule`; the approval stays open."""


class IsADirectory(AirlockError, code="FAILED_PRECONDITION"):
    """The path is a directory; a file is expected."""


class NotADirectory(AirlockError, code="FAILED_PRECONDITION"):
    """The path is not a directory."""


class Conflict(AirlockError, code="ALREADY_EXISTS"):
    """The object already exists."""


class StartFailed(AirlockError, code="FAILED_PRECONDITION"):
    """A program could not be started: `details.outcome`, and `details.errno` if the Linux kernel returned one."""


class CallFailed(AirlockError, code="FAILED_PRECONDITION"):
    """A tool call or a program failed, says `raise_for_status()`: `details.outcome`, and any `details.exit_code`."""


class ProcessEnded(AirlockError, code="FAILED_PRECONDITION"):
    """The process has ended, or its stdin is closed. For input, `details.taken_bytes` counts what it accepted."""


class InputNotTaken(AirlockError, code="DEADLINE_EXCEEDED"):
    """The process did not read all of its input in time; resume at `details.taken_bytes`."""


class InputGap(AirlockError, code="OUT_OF_RANGE"):
    """The input starts past `details.stdin_taken_bytes`, the end of what the process accepted; nothing was written."""


class NoSpace(AirlockError, code="RESOURCE_EXHAUSTED"):
    """The workspace or the engine's disk is full; with `details.disk` = gateway, the gateway's disk is."""


class TooLarge(AirlockError, code="OUT_OF_RANGE"):
    """The value exceeds the limit of the call."""


class Exhausted(AirlockError, code="RESOURCE_EXHAUSTED"):
    """The sandbox has no process or memory left, or 64 background processes already run in it."""


class Overloaded(AirlockError, code="RESOURCE_EXHAUSTED"):
    """Too many sandboxes, runs or calls at once. `retry_after_s` is None if it cannot be estimated."""

    def __init__(self, message: str, retry_after_s: float | None = None, **details: str) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class QuotaExceeded(Overloaded):
    """The tenant's quota `details.quota` is used up. `retry_after_s` is None if waiting does not help."""


class InProgress(AirlockError, code="ABORTED"):
    """A request with this request id is in progress: repeat it after `retry_after_s` to get its result."""

    def __init__(self, message: str, retry_after_s: float | None = 0.2, **details: str) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class SandboxBusy(AirlockError, code="FAILED_PRECONDITION"):
    """Calls are in progress in the sandbox to stop, on this gateway or another."""


class OtherEngine(AirlockError, code="FAILED_PRECONDITION"):
    """The thread's files are on the engine `details.engine`, not on this gateway's."""


class ThreadBusy(AirlockError, code="FAILED_PRECONDITION"):
    """A run or a call is in progress in the thread, or the thread is being deleted or restored."""


class WorkspaceNotSaved(AirlockError, code="FAILED_PRECONDITION"):
    """The files of a thread at the requested step were not saved; `details.nearest` lists the nearest saved steps."""


class Unavailable(AirlockError, code="UNAVAILABLE"):
    """The engine, a sandbox, the database or the gateway does not answer.

    For a call without a record in the database, `details` has `call_id` and `outcome`: not_executed or withheld.
    """


class ClientClosed(Unavailable):
    """The Python client was closed before or during the call: create another client."""


class WrongEventLoop(AirlockError, code="FAILED_PRECONDITION"):
    """The Python client belongs to the event loop of its first call: create one client for each loop."""


class WrongProcess(AirlockError, code="FAILED_PRECONDITION"):
    """The process was forked after a Python client had connected: fork before the first call, or use `spawn`."""


# Not UNAVAILABLE, on which clients retry.
class Unrecorded(AirlockError, code="INTERNAL"):
    """The call was executed but is not recorded yet; the record follows. Do not retry."""


class DeadlineExceeded(AirlockError, code="DEADLINE_EXCEEDED"):
    """The caller's time limit passed; everything that the call had started was killed."""


class Cancelled(AirlockError, code="CANCELLED"):
    """The client cancelled the call."""


class Misconfigured(AirlockError, code="FAILED_PRECONDITION"):
    """The operator must fix the configuration."""


class Internal(AirlockError):
    """A fault of the gateway."""


def all_errors(root: type[AirlockError] = AirlockError) -> dict[str, type[AirlockError]]:
    """Return every error class by its reason."""
    found = {root.reason: root} if root is not AirlockError else {}
    for child in root.__subclasses__():
        found |= all_errors(child)
    return found
