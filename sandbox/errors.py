"""Errors of sandboxes and their file systems.

    SandboxError
    +-- EngineUnavailable        the engine does not answer
    +-- SandboxUnavailable       a sandbox could not be made or did not come up
    |   +-- ImageMissing         its image is not there and could not be pulled
    |   +-- RuntimeMissing       the engine does not know its runtime
    |   +-- ImageRefused         its image is not one that the operator allows
    |   +-- EngineFull           the engine has no memory, disk or processes left for one more
    |   +-- PostureTooWeak       it came up weaker than its policy asks; it was removed
    |   +-- WorkspaceIncomplete  a workspace was being replaced or removed, and files of it may be gone
    +-- TooManyCreations         the tenant has had too many sandboxes made, by a quota
    +-- TooManyWaiting           too many of the tenant wait already: for a sandbox to be made, a workspace to be saved
    +-- SandboxBusy              calls are under way in a sandbox that was to be stopped
    +-- DaemonLost               the daemon went away or broke the protocol during a call
    |   +-- SandboxRetired       another gateway removed the sandbox before a call began
    +-- Exhausted                the sandbox has no process or memory left for it
    +-- InputNotTaken            a process took only a part of its input, or none
    +-- InputGap                 input begins past what a process has taken
    +-- FileError (OSError)      a file operation failed
        +-- NotFound             (FileNotFoundError)
        +-- PermissionDenied     (PermissionError)
        +-- IsADirectory         (IsADirectoryError)
        +-- NotADirectory        (NotADirectoryError)
        +-- InvalidPath
        +-- NoSpace
        +-- TooLarge
        +-- Conflict             (FileExistsError)
        +-- InvalidArgument

str() of each says what is wrong and how to fix it. The gateway translates them to gRPC once, in gateway/errors.py.
"""


class SandboxError(Exception):
    """A sandbox did not do what was asked. `errno` is what the kernel in the sandbox said, None when it did not."""

    errno: int | None = None

    @property
    def outside(self) -> str:
        """The message for tenants."""
        return str(self)


def said_outside(error: BaseException) -> str:
    """Return the message of any error for tenants."""
    return error.outside if isinstance(error, SandboxError) else str(error)


def reason_of(error: BaseException) -> str:
    """Return why a sandbox did not come up, for its tenant."""
    return said_outside(error) or "every caller that waited for it has given up"


class EngineUnavailable(SandboxError):
    """The engine does not answer. Its address, and how to fix that, is for operators only."""

    @property
    def outside(self) -> str:
        return "the engine of the gateway's sandboxes does not answer: contact the gateway's operator"


class SandboxUnavailable(SandboxError):
    """A sandbox could not be made or did not come up."""


class ImageMissing(SandboxUnavailable):
    """The image is not there and could not be pulled. `image` is its name, "" for the runtime's."""

    def __init__(self, message: str, image: str = "") -> None:
        super().__init__(message)
        self.image = image


class ImageRefused(SandboxUnavailable):
    """The image is not one that the operator allows."""


class RuntimeMissing(SandboxUnavailable):
    """The engine does not know the runtime."""


class EngineFull(SandboxUnavailable):
    """The engine has no room for one more."""


class PostureTooWeak(SandboxUnavailable):
    """The sandbox is weaker than its policy asks."""


class WorkspaceIncomplete(SandboxUnavailable):
    """A workspace was being replaced or removed when something went wrong: files of it may be gone."""


class TooManyCreations(SandboxError):
    """No sandbox may be made for its tenant now. It may be `retry_after_s` from now; None means unknown.

    `quota` is the one that is used up, and `limit` what it is.
    """

    def __init__(self, message: str, *, retry_after_s: float | None, quota: str, limit: str) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.quota = quota
        self.limit = limit


class TooManyWaiting(SandboxError):
    """Too many of the tenant wait already; in `retry_after_s` some of them are over."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SandboxBusy(SandboxError):
    """Calls are under way in it, in this process or another."""


class DaemonLost(SandboxError):
    """The daemon went away or broke the protocol during a call. `outcome` is what a tool call then ended with."""

    outcome = "daemon_lost"


class SandboxRetired(DaemonLost):
    """Another gateway removed the sandbox, or is about to, before the call began."""


class Exhausted(SandboxError):
    """The sandbox has no process or memory left for it; what runs there has to end first."""


class InputNotTaken(SandboxError):
    """A process took only a part of its input: the first `taken_bytes` of it.

    `closed` says that its stdin takes no more; else its buffer stayed full, and the caller may go on from there.
    """

    def __init__(self, message: str, *, taken_bytes: int, closed: bool) -> None:
        super().__init__(message)
        self.taken_bytes = taken_bytes
        self.closed = closed


class InputGap(SandboxError):
    """Input begins past what a process has taken: `stdin_taken_bytes` in all. Nothing was written."""

    def __init__(self, message: str, *, stdin_taken_bytes: int) -> None:
        super().__init__(message)
        self.stdin_taken_bytes = stdin_taken_bytes


class FileError(SandboxError, OSError):
    """A file operation failed."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class NotFound(FileError, FileNotFoundError):
    """No such file or directory."""


class PermissionDenied(FileError, PermissionError):
    """The tool user may not."""


class IsADirectory(FileError, IsADirectoryError):
    """A file was expected."""


class NotADirectory(FileError, NotADirectoryError):
    """A directory was expected."""


class InvalidPath(FileError):
    """The path is not absolute, has NUL or "..", is too long, or goes through a symbolic link."""


class NoSpace(FileError):
    """No space or quota left."""


class TooLarge(FileError):
    """Larger than the call takes."""


class Conflict(FileError, FileExistsError):
    """It is there already, or a directory is not empty."""


class InvalidArgument(FileError):
    """Another argument is wrong."""
