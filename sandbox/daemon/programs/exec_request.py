"""Validates requests of exec, and builds the environment of programs."""

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache

from sandbox.daemon.failures import check_most, fault_of, invalid_argument, too_large
from sandbox.daemon.paths import components, real
from sandbox.daemon.supervisor.control_wire import FILE_RULES_LIMIT_BYTES
from sandbox.daemon.supervisor.file_rules import PATH, FileRules
from sandbox.v1 import channel_pb2 as wire

ENV_LIMIT = 4096
ARGV_LIMIT_BYTES = 1024 * 1024 + 32 * 1024
SPILL_LIMIT_BYTES = 64 * 1024**3
# Head and tail must fit one frame together.
EXCERPT_LIMIT_CHARS = 150_000


class ProgramFields:
    """What to start, from a request; Fault says which field is wrong."""

    def __init__(
        self, request: wire.ExecRequest | wire.ProcessStartRequest, workspace: str, environment: dict[bytes, bytes]
    ) -> None:
        self.argv = _checked_argv(request.argv)
        self.timeout_s = request.timeout_ms / 1000 or None
        check_most("timeout_ms", request.timeout_ms, 7 * 24 * 3600 * 1000, "(7 days) is the most")
        self.env = _checked_environment(request.env, environment)
        rules = request.file_rules.SerializeToString(deterministic=True)
        self.file_rules = _file_rules(rules) if request.HasField("file_rules") else None
        self.cwd = _checked_directory(request.cwd or workspace)
        self.stdin = request.stdin


class Program(ProgramFields):
    """A program of exec. Without `stream_limit_bytes`, `limit` bounds what is kept and streamed."""

    def __init__(self, request: wire.ExecRequest, workspace: str, environment: dict[bytes, bytes]) -> None:
        super().__init__(request, workspace, environment)
        _check_stream(request)
        self.limit = _limit(request)
        self.stream = request.stream
        self.stream_limit_bytes = request.stream_limit_bytes


def tool_environment(environment: dict[bytes, bytes], home: str) -> dict[bytes, bytes]:
    """Return what programs inherit: the image's environment without the daemon's variables."""
    # HOME is the same in every image: a writable directory that is kept.
    inherited = {name: value for name, value in environment.items() if not name.startswith(b"AIRLOCK_")}
    return {b"PATH": PATH, b"LANG": b"C.UTF-8", **inherited, b"HOME": os.fsencode(home)}


def _checked_argv(given: Iterable[bytes]) -> list[bytes]:
    argv = list(given)
    if not argv or not argv[0]:
        raise invalid_argument("argv is empty; its first member is the program to run")
    if any(b"\0" in argument for argument in argv):
        raise invalid_argument("argv has a NUL byte, which no argument of a program can have; pass such data by a file")
    size = sum(len(argument) + 1 for argument in argv)
    if size > ARGV_LIMIT_BYTES:
        raise too_large(
            f"argv takes {size} bytes; {ARGV_LIMIT_BYTES} are allowed; write the data to a file and name the file"
        )
    return argv


@lru_cache(maxsize=16)  # the same ones come with each call
def _file_rules(serialized: bytes) -> bytes:
    given = wire.FileRules.FromString(serialized)
    lists = [getattr(given, name) for name in FileRules.LISTS]
    if odd := [path for paths in lists for path in paths if not path.startswith("/") or "\0" in path]:
        raise invalid_argument(f"file_rules: {odd[0][:200]!r} must be an absolute path without NUL")
    if odd := [name for name in given.programs if not name or "\0" in name or ("/" in name and name[0] != "/")]:
        raise invalid_argument(f"file_rules: {odd[0][:200]!r} must be a program's name or absolute path, without NUL")
    programs = tuple(os.fsencode(real(name) if "/" in name else name) for name in given.programs)
    made = FileRules(
        *(tuple(map(os.fsencode, map(real, paths))) for paths in lists),
        programs=programs if given.only_programs else None,
    )
    rules = made.encode()
    if len(rules) > FILE_RULES_LIMIT_BYTES:
        raise invalid_argument(f"file_rules take {len(rules)} bytes; {FILE_RULES_LIMIT_BYTES} are allowed")
    return rules


def _checked_environment(given: Mapping[str, str], environment: dict[bytes, bytes]) -> list[bytes]:
    """Return `environment` with the given variables added, as NAME=value."""
    if len(given) > ENV_LIMIT:
        raise invalid_argument(f"env has {len(given)} entries; {ENV_LIMIT} are allowed; pass such data by a file")
    result = dict(environment)
    for name, value in given.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise invalid_argument(f"env name {name!r}: names must not be empty or have =, neither side may have NUL")
        result[name.encode()] = value.encode()
    return [name + b"=" + value for name, value in result.items()]


def _checked_directory(cwd: str) -> bytes:
    """Return the real path of a working directory that the tool user can enter."""
    if not cwd.startswith("/") or "\0" in cwd or len(cwd.encode()) > 4096:
        raise invalid_argument(f"cwd {cwd[:200]!r} must be an absolute path of 4096 bytes at most, without NUL")
    try:
        # Opened rather than stat()ed: the tool user must be able to enter it.
        os.close(os.open(f"{real(cwd)}/.", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise fault_of(error, f"working directory {cwd}") from None
    return real(cwd).encode()


def _check_stream(request: wire.ExecRequest) -> None:
    if not request.stream_limit_bytes:
        return
    if not request.stream:
        raise invalid_argument(
            "stream_limit_bytes is for streamed output only; set stream, or give output_limit instead"
        )
    if request.HasField("output_limit"):
        raise invalid_argument(
            "stream_limit_bytes and output_limit exclude each other: the first streams everything, the second evicts; "
            "leave one of them out"
        )
    check_most("stream_limit_bytes", request.stream_limit_bytes, 1024**4, "(1 TiB) is the most")


def _limit(request: wire.ExecRequest) -> wire.OutputLimit:
    if not request.HasField("output_limit"):
        return wire.OutputLimit(limit_chars=80_000, head_chars=2_000, tail_chars=2_000)
    limit = request.output_limit
    # The tail may be longer: to find secrets, the gateway needs the text before what it shows.
    if limit.head_chars > limit.limit_chars:
        raise invalid_argument("output_limit: head_chars must not exceed limit_chars")
    if limit.head_chars + limit.tail_chars > EXCERPT_LIMIT_CHARS:
        raise invalid_argument(
            f"output_limit: head_chars and tail_chars must not exceed {EXCERPT_LIMIT_CHARS} together"
        )
    if limit.spill_path:
        components(limit.spill_path, "output_limit.spill_path")
    if limit.spill_limit_bytes > SPILL_LIMIT_BYTES:
        raise invalid_argument(f"output_limit: spill_limit_bytes must not exceed {SPILL_LIMIT_BYTES}")
    if limit.spill_quota_bytes > SPILL_LIMIT_BYTES:
        raise invalid_argument(f"output_limit: spill_quota_bytes must not exceed {SPILL_LIMIT_BYTES}; 0 is no quota")
    return limit
