"""A command line down to the programs it runs: what a wrapper runs is judged in the wrapper's place.

`timeout 5 make`, `sh -c '...'`, `find ... -exec rm {} +` are taken apart (programs/). Builtins that change
what the rest of the line means (alias, eval, ...) and programs that exist to run others (sudo, ...) are opaque always.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.policy.programs import read_call
from gateway.policy.programs.call import LIMIT_USES, TOO_MANY, FileUse, any_file
from gateway.policy.shell import LIMIT_COMMANDS, parse_line
from gateway.policy.shell_line import START, Redirect, ShellLine, SimpleCommand, joined
from gateway.policy.words import Word

_LIMIT_DEPTH = 4
# Of all programs of a line: find can put one command, and one script, in many places.
_LIMIT_WORDS = 12_000
_LIMIT_SCRIPTS_BYTES = 64 * 1024


@dataclass(frozen=True)
class Program(SimpleCommand):
    """A simple command to judge, and where it may run. A `wrapper` runs the next one in its place.

    Of a wrapper's words only deny and ask rules are about; the files that it uses are judged like any other's. `within`
    are the commands that end in these words and run them, innermost first.
    """

    wrapper: bool = False
    uses: tuple[FileUse, ...] = ()
    within: tuple[SimpleCommand, ...] = ()


def read_programs(command: str) -> Programs:
    """Parse a command line, unwrap its commands and see what known programs do. Never raises."""
    reading = Programs()
    reading.line(parse_line(command), depth=0)
    return reading


class Programs:
    """A command line down to the programs it runs. `opaque` is None when these are all."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.redirects: list[Redirect] = []
        self.opaque: str | None = None
        self._words = self._uses = self._scripts_bytes = 0

    def line(self, line: ShellLine, depth: int) -> None:
        """Take in a line and what its commands wrap."""
        self.opaque = self.opaque or line.opaque
        self.redirects.extend(line.redirects)
        for command in line.commands:
            self.command(command, depth)

    def command(self, command: SimpleCommand, depth: int, within: tuple[SimpleCommand, ...] = ()) -> None:
        """Take in one simple command and what it wraps."""
        if not command.words:
            return
        self._words += len(command.words)
        if depth > _LIMIT_DEPTH or len(self.programs) > LIMIT_COMMANDS or self._words > _LIMIT_WORDS:
            self._refuse("it wraps commands too deep or has too many")
            return
        if command.words[0].kind != "literal":
            self._refuse("the name of a program is not literal")
            self.programs.append(Program(command.words, command.cwd))
            return
        command = self._placed(command)
        call = read_call(command.words, command.cwd)
        self._uses += len(call.uses)
        if self._uses > LIMIT_USES:
            call.uses = dict.fromkeys(any_file(TOO_MANY))
        if call.opaque is not None:
            self._refuse(call.opaque)
        self.programs.append(Program(command.words, command.cwd, call.replaces, tuple(call.uses), within))
        if call.script is not None:
            self._scripts_bytes += len(call.script.encode(errors="replace"))
            if self._scripts_bytes > _LIMIT_SCRIPTS_BYTES:
                self._refuse(f"its scripts are longer than {_LIMIT_SCRIPTS_BYTES} bytes together")
                return
            self.line(parse_line(call.script, command.cwd), depth + 1)
        for wrapped in call.commands:
            # `git -C lib diff` ends in a `git diff`, which begins with git.
            end = wrapped.words[wrapped.words[0] == command.words[0] :]
            ends = bool(end) and end == command.words[-len(end) :]
            self.command(wrapped, depth + 1, (command, *within) if ends else ())

    def _refuse(self, reason: str) -> None:
        self.opaque = self.opaque or reason

    def _placed(self, command: SimpleCommand) -> SimpleCommand:
        """Return a command whose program has the absolute path that it runs by, where that is not as it is written.

        `cd x && ./build.sh` is another program than the ./build.sh that rules name; deny rules see both.
        """
        name = command.words[0].text
        if "/" not in name or name.startswith("/") or command.cwd == START:
            return command
        if command.cwd is None or len(command.cwd) > 1 or ".." in name.split("/"):
            self._refuse("it runs a program by a relative path after cd; write the absolute path")
            return command
        self.programs.append(Program(command.words, command.cwd, wrapper=True))
        return replace(command, words=(Word(joined(command.cwd[0], name)), *command.words[1:]))
