"""Programs that run other programs: the wrapped command is judged in the wrapper's place, or the line is opaque.

Simple forms only (`timeout 5 make`, `sh -c '...'`, `find ... -exec rm {} +`). Builtins that change what the rest of the
line means (export, alias, eval, ...) and programs that exist to run others (sudo, ...) are opaque always.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.policy.shell import LIMIT_COMMANDS, Redirect, ShellLine, parse_line
from gateway.policy.words import Opaque, Word

LIMIT_DEPTH = 4

_SYSTEM_DIRECTORIES = ("/bin", "/usr/bin")
_CHANGES_THE_SHELL = frozenset(
    """. alias bg bind break builtin compgen complete compopt continue coproc declare disown enable eval exec export fc
    fg getopts hash history jobs let local logout mapfile popd pushd read readarray readonly return set shift shopt
    source suspend trap typeset unalias unset""".split()  # noqa: SIM905 - one name a line would take fifty
)
_RUNS_OTHERS = frozenset(
    """aa-exec capsh chroot chrt chpst cpulimit dbus-run-session doas entr expect fakeroot flock gdb ionice ltrace
    nsenter numactl parallel pkexec prlimit run-parts runcon runuser screen script setarch setpriv setuidgid sg
    softlimit start-stop-daemon strace su sudo systemd-run taskset time tmux unbuffer unshare watch""".split()  # noqa: SIM905 - as above
)
_FIND_WRITES = ("-delete", "-fprint", "-fls", "-ok", "-execdir")


@dataclass(frozen=True)
class Program:
    """A simple command to judge. A `wrapper` runs the next one in its place: only deny rules look at it."""

    words: tuple[Word, ...]
    wrapper: bool = False


@dataclass(frozen=True)
class Programs:
    """A command line down to the programs it runs. `opaque` is None when these are all."""

    programs: tuple[Program, ...]
    redirects: tuple[Redirect, ...]
    opaque: str | None


def read_programs(command: str) -> Programs:
    """Parse a command line and unwrap its commands. Never raises."""
    reading = _Unwrapping()
    reading.line(parse_line(command), depth=0)
    return Programs(tuple(reading.programs), tuple(reading.redirects), reading.opaque or reading.moved())


class _Unwrapping:
    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.redirects: list[Redirect] = []
        self.opaque: str | None = None

    def line(self, line: ShellLine, depth: int) -> None:
        self.opaque = self.opaque or line.opaque
        self.redirects.extend(line.redirects)
        for words in line.commands:
            self.command(words, depth)

    def command(self, words: tuple[Word, ...], depth: int) -> None:
        """Take in one simple command and what it wraps."""
        if not words:
            return
        if depth > LIMIT_DEPTH or len(self.programs) > LIMIT_COMMANDS:
            self.opaque = self.opaque or "it wraps commands too deep or has too many"
            return
        if words[0].kind != "literal":
            self.opaque = self.opaque or "the name of a program is not literal"
            self.programs.append(Program(words))
            return
        place = len(self.programs)
        self.programs.append(Program(words))
        try:
            inner = _unwrap(words)
        except Opaque as opaque:
            self.opaque = self.opaque or str(opaque)
            return
        if inner is None:
            return
        self.programs[place] = Program(words, wrapper=inner.replaces)
        if inner.script is not None:
            self.line(parse_line(inner.script), depth + 1)
        for wrapped in inner.commands:
            self.command(wrapped, depth + 1)

    def moved(self) -> str | None:
        """Return why a `cd` in the line makes it opaque: what is relative after it is elsewhere."""
        if not any(program.words[0].text == "cd" for program in self.programs):
            return None
        if any(not redirect.target.startswith("/") for redirect in self.redirects):
            return "it redirects to a relative path after cd; write the absolute path"
        for program in self.programs:
            name = program.words[0].text
            if "/" in name and not name.startswith("/"):
                return "it runs a program by a relative path after cd; write the absolute path"
        return None


@dataclass(frozen=True)
class _Inner:
    """What a wrapper runs: commands, or the script of a shell. find runs as well as what it wraps."""

    commands: tuple[tuple[Word, ...], ...] = ()
    script: str | None = None
    replaces: bool = True


def _unwrap(words: tuple[Word, ...]) -> _Inner | None:
    """Return what a command runs, None for one that runs nothing but itself. Raises Opaque."""
    directory, _, name = words[0].text.rpartition("/")
    unwrap = _WRAPPERS.get(name)
    known = unwrap is not None or name in _RUNS_OTHERS
    if name in _CHANGES_THE_SHELL and not directory:
        raise Opaque(f"{name} changes what the rest of the line means")
    if not known:
        if not directory:
            _check_builtin(name, words)
        return None
    if directory and directory not in _SYSTEM_DIRECTORIES:
        raise Opaque(f"{words[0].text} has the name of a program that runs others")
    if unwrap is None:
        raise Opaque(f"{name} runs other programs")
    return unwrap(words)


def _check_builtin(name: str, words: tuple[Word, ...]) -> None:
    """Raise Opaque for the forms of harmless builtins in which some shells evaluate an argument."""
    flags = {"printf": ("-v",), "test": ("-v", "-R"), "[": ("-v", "-R"), "wait": ("-p",)}.get(name, ())
    for word in words[1:]:
        if flags and (word.kind != "literal" or word.text.startswith(flags)):
            raise Opaque(f"{name} with {word.text} may evaluate an argument")


def _shell(words: tuple[Word, ...]) -> _Inner | None:
    _all_literal(words)
    texts = [word.text for word in words]
    if len(texts) == 3 and texts[1] == "-c":
        return _Inner(script=texts[2])
    if len(texts) > 1 and not texts[1].startswith(("-", "+")):
        return None  # a script by name: judged as the program it is
    raise Opaque(f"{texts[0]} runs commands in another form than -c '...'")


def _all_literal(words: Sequence[Word]) -> None:
    for word in words:
        if word.kind != "literal":
            raise Opaque(f"{words[0].text} runs a command that is not literal")


def _rest(words: tuple[Word, ...], start: int) -> _Inner:
    """Return the words from `start` on as the wrapped command."""
    rest = words[start:]
    if not rest or rest[0].kind != "literal" or not rest[0].text or rest[0].text.startswith("-") or "=" in rest[0].text:
        raise Opaque(f"{words[0].text} is used in a form that is not understood")
    return _Inner(commands=(rest,))


def _env(words: tuple[Word, ...]) -> _Inner | None:
    return _rest(words, 1) if len(words) > 1 else None


def _plain(words: tuple[Word, ...]) -> _Inner:
    return _rest(words, 1)


def _command(words: tuple[Word, ...]) -> _Inner | None:
    if len(words) > 1 and words[1].text in ("-v", "-V"):
        return None
    return _rest(words, 1)


def _timeout(words: tuple[Word, ...]) -> _Inner:
    if len(words) < 3 or words[1].kind != "literal" or not re.fullmatch(r"[0-9]+(\.[0-9]+)?[smhd]?", words[1].text):
        raise Opaque("timeout is used in another form than timeout DURATION COMMAND")
    return _rest(words, 2)


def _nice(words: tuple[Word, ...]) -> _Inner:
    numbered = len(words) > 2 and words[1].text == "-n" and re.fullmatch("-?[0-9]+", words[2].text)
    return _rest(words, 3 if numbered else 1)


def _stdbuf(words: tuple[Word, ...]) -> _Inner:
    start = 1
    while start < len(words) and re.fullmatch("-[ioe](0|L|[0-9]+)", words[start].text):
        start += 1
    return _rest(words, start)


def _xargs(words: tuple[Word, ...]) -> _Inner | None:
    start = 1
    while start < len(words) and words[start].text.startswith("-"):
        if words[start].text in ("-0", "-r", "-0r", "-r0"):
            start += 1
        elif words[start].text == "-n" and start + 1 < len(words) and words[start + 1].text.isdigit():
            start += 2
        else:
            raise Opaque(f"xargs is used with {words[start].text}")
    if start == len(words):
        return None
    wrapped = _rest(words, start).commands[0]
    return _Inner(commands=((*wrapped, Word("*", "glob")),))


def _find(words: tuple[Word, ...]) -> _Inner | None:
    commands: list[tuple[Word, ...]] = []
    position = 1
    while position < len(words):
        word = words[position]
        position += 1
        if word.kind == "glob" and word.text[0] in "*?[-!(":
            raise Opaque("file names in place of a pattern could become options of find; quote the pattern")
        if word.kind == "literal" and word.text.startswith(_FIND_WRITES):
            raise Opaque(f"find is used with {word.text}")
        if word.kind == "literal" and word.text == "-exec":
            end = position
            while end < len(words) and not (
                words[end].text == ";" or (words[end].text == "+" and words[end - 1].text == "{}")
            ):
                end += 1
            _all_literal(words[position - 1 : end])
            if end in (position, len(words)) or "{}" in words[position].text:
                raise Opaque("find -exec is used in a form that is not understood")
            wrapped = words[position:end]
            commands.append(tuple(Word("*", "glob") if "{}" in inner.text else inner for inner in wrapped))
            position = end + 1
    return _Inner(commands=tuple(commands), replaces=False) if commands else None


_WRAPPERS: dict[str, Callable[[tuple[Word, ...]], _Inner | None]] = {
    "busybox": _plain,
    "command": _command,
    "env": _env,
    "find": _find,
    "nice": _nice,
    "nohup": _plain,
    "setsid": _plain,
    "stdbuf": _stdbuf,
    "timeout": _timeout,
    "toybox": _plain,
    "xargs": _xargs,
    **dict.fromkeys(("sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"), _shell),
}
