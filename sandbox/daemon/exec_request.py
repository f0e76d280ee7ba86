"""Checking what is asked of exec, and the environment a program gets."""

from __future__ import annotations

import os

from sandbox.daemon.failures import Fault, fault_of, invalid_argument
from sandbox.daemon.paths import components
from sandbox.v1 import channel_pb2 as wire

ARGV_LIMIT_BYTES = 1024 * 1024
SPILL_LIMIT_BYTES = 64 * 1024**3
# Head and tail must fit one frame together.
EXCERPT_LIMIT_CHARS = 100_000
TIMEOUT_LIMIT_MS = 7 * 24 * 3600 * 1000

_DEFAULT_LIMIT = wire.OutputLimit(limit_chars=80_000, head_chars=2_000, tail_chars=2_000)
_DEFAULT_ENVIRONMENT = {
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    b"LANG": b"C.UTF-8",
}


class Program:
    """What to run; every member has been checked."""

    __slots__ = ("argv", "cwd", "env", "limit", "stdin", "stream", "timeout_s")

    def __init__(
        self,
        argv: list[bytes],
        env: list[bytes],
        cwd: bytes,
        timeout_s: float | None,
        limit: wire.OutputLimit,
        *,
        stdin: bool,
        stream: bool,
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.timeout_s = timeout_s
        self.limit = limit
        self.stdin = stdin
        self.stream = stream


def tool_environment(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what programs inherit: the image's environment, without what is meant for the daemon."""
    inherited = {name: value for name, value in environment.items() if not name.startswith(b"AIRLOCK_")}
    return {**_DEFAULT_ENVIRONMENT, **inherited, b"HOME": b"/tmp"}


def check_program(request: wire.ExecRequest, workspace: str, environment: dict[bytes, bytes]) -> Program:
    """Return the program; Fault says which field is wrong."""
    argv = list(request.argv)
    if not argv or not argv[0]:
        raise invalid_argument("argv is empty; its first member is the program to run")
    if any(b"\0" in argument for argument in argv):
        raise invalid_argument("argv has a NUL byte, which no argument of a program can have; pass such data by a file")
    size = sum(len(argument) + 1 for argument in argv)
    if size > ARGV_LIMIT_BYTES:
        raise Fault(
            wire.FAILURE_KIND_TOO_LARGE,
            f"argv takes {size} bytes; {ARGV_LIMIT_BYTES} are allowed; write the data to a file and name the file",
        )
    if request.timeout_ms > TIMEOUT_LIMIT_MS:
        raise invalid_argument(f"timeout_ms is {request.timeout_ms}; {TIMEOUT_LIMIT_MS} (7 days) is the most")
    return Program(
        argv,
        _environment(request, environment),
        _directory(request.cwd or workspace),
        request.timeout_ms / 1000 if request.timeout_ms else None,
        _limit(request),
        stdin=request.stdin,
        stream=request.stream,
    )


def _environment(request: wire.ExecRequest, environment: dict[bytes, bytes]) -> list[bytes]:
    result = dict(environment)
    for name, value in request.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise invalid_argument(f"env name {name!r}: names must not be empty or have =, neither side may have NUL")
        result[name.encode()] = value.encode()
    return [name + b"=" + value for name, value in result.items()]


def _directory(cwd: str) -> bytes:
    if not cwd.startswith("/") or "\0" in cwd or len(cwd.encode()) > 4096:
        raise invalid_argument(f"cwd {cwd[:200]!r} must be an absolute path of 4096 bytes at most, without NUL")
    try:
        # Opened, not only looked at: the tool user must be able to enter it.
        os.close(os.open(f"{cwd}/.", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise fault_of(error, f"working directory {cwd}") from None
    return cwd.encode()


def _limit(request: wire.ExecRequest) -> wire.OutputLimit:
    if not request.HasField("output_limit"):
        return _DEFAULT_LIMIT
    limit = request.output_limit
    if limit.head_chars + limit.tail_chars > limit.limit_chars:
        raise invalid_argument("output_limit: head_chars and tail_chars together must not exceed limit_chars")
    if limit.head_chars + limit.tail_chars > EXCERPT_LIMIT_CHARS:
        raise invalid_argument(
            f"output_limit: head_chars and tail_chars must not exceed {EXCERPT_LIMIT_CHARS} together"
        )
    if limit.spill_path:
        components(limit.spill_path, "output_limit.spill_path")
    if limit.spill_limit_bytes > SPILL_LIMIT_BYTES:
        raise invalid_argument(f"output_limit: spill_limit_bytes must not exceed {SPILL_LIMIT_BYTES}")
    return limit
