"""A program as a service names it, and the shell line that stands for it before policy and in the journal.

The line is for judging and for people: a shell that read it would find exactly these words. No shell does. argv goes to
the kernel as it is, nothing in it is ever expanded, and so there is no second reading that could differ from the judged
one. Where a shell has a builtin or a keyword of argv[0]'s name, policy judges that, which is the stricter reading.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent import errors as agent_errors
from agent.tools.paths import WORKSPACE, resolve
from gateway.errors import InvalidArgument, InvalidPath, TooLarge
from gateway.v1 import process_service_pb2 as pb

# What one frame to the daemon takes, and half of what Linux does: 1 MiB of text, and room for what each word costs.
PROGRAM_LIMIT_BYTES = 1024 * 1024 + 32 * 1024
_WORD_COST_BYTES = 8
# MAX_ARG_STRLEN of Linux, without the NUL at the end.
_WORD_LIMIT_BYTES = 128 * 1024 - 1
_PATH_LIMIT_BYTES = 4095
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset(
    """case coproc do done elif else esac fi for function if in select then time until while""".split()  # noqa: SIM905 - one a line would take seventeen
)


@dataclass(frozen=True)
class Program:
    """What to run: argv[0] is looked up in PATH, `cwd` is absolute, `env` is added to the sandbox's."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]

    def argv_bytes(self) -> list[bytes]:
        """Return argv as the kernel gets it."""
        return [word.encode() for word in self.argv]

    def line(self) -> str:
        """Return the shell line; the working directory is left out where it is the one that execute has."""
        return " ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.cwd != WORKSPACE:
            yield f"cd -- {shlex.quote(self.cwd)} &&"
        for name, value in self.env.items():
            yield f"{name}={shlex.quote(value)}"
        name = shlex.quote(self.argv[0])
        # Unquoted, a shell takes `if` for a keyword and `A=b` for an assignment.
        yield f"'{name}'" if name in _KEYWORDS or ("=" in name and name == self.argv[0]) else name
        for word in self.argv[1:]:
            yield shlex.quote(word)


def program_of(asked: pb.Program) -> Program:
    """Return a request's program. Raises InvalidArgument, InvalidPath and TooLarge."""
    if not asked.argv or not asked.argv[0]:
        raise InvalidArgument("program.argv: the program and its arguments; its first word names the program")
    cost_bytes = 0
    for place, word in enumerate(asked.argv):
        cost_bytes += _checked(f"program.argv[{place}]", word)
    for name, value in asked.env.items():
        if not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"program.env: {name[:100]!r} is not a valid name: use A-Z a-z 0-9 _, not starting with a digit"
            )
        cost_bytes += _checked(f"program.env[{name[:100]!r}]", value) + len(name)
    if cost_bytes > PROGRAM_LIMIT_BYTES:
        raise TooLarge(
            f"program: argv and env have {cost_bytes:,} bytes, {_WORD_COST_BYTES} more counted a word; "
            f"{PROGRAM_LIMIT_BYTES:,} are the limit: pass the rest by standard input or in a file"
        )
    return Program(tuple(asked.argv), _working_directory(asked.cwd), dict(sorted(asked.env.items())))


def _checked(field: str, text: str) -> int:
    """Return what a word costs in bytes."""
    if "\0" in text:
        raise InvalidArgument(f"{field}: contains a NUL character, which ends a string in the kernel")
    size_bytes = len(text.encode())
    if size_bytes > _WORD_LIMIT_BYTES:
        raise TooLarge(
            f"{field}: has {size_bytes:,} bytes, and Linux allows {_WORD_LIMIT_BYTES:,} per argument: pass it by "
            "standard input or in a file"
        )
    return size_bytes + _WORD_COST_BYTES


def _working_directory(asked: str) -> str:
    """Return where to run, normalised as the paths of tools are."""
    if not asked:
        return WORKSPACE
    if not asked.startswith("/"):
        raise InvalidPath(
            f"program.cwd: {asked[:200]!r} is not an absolute path; did you mean {f'{WORKSPACE}/{asked[:200]}'!r}?"
        )
    if len(asked.encode()) > _PATH_LIMIT_BYTES:
        raise InvalidPath(f"program.cwd: at most {_PATH_LIMIT_BYTES:,} bytes")
    try:
        return resolve(asked)
    except agent_errors.InvalidPath as error:
        raise InvalidPath(f"program.cwd: {error}") from error
