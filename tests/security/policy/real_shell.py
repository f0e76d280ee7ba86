"""What real shells make of a command line that the policy claims to understand.

Every program is a stub that writes down its argv and where it runs, so a line can be run for real and harms nothing:
PATH holds nothing but stubs, and what names a file elsewhere is never run. Each shell runs a line twice, once with
stubs that succeed and once with stubs that fail, which between them reach every command of a flat line; lines with
branches and loops get stubs that do now this, now that, and a stub ends a line that has run too many.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hypothesis import settings

from gateway.policy.shell import parse_line
from gateway.policy.shell_builtins import keeps_meaning
from gateway.policy.shell_line import ShellLine, SimpleCommand
from gateway.policy.words import Word

_STUB = """#!/bin/sh
n=0
read -r n < "$COUNT"
case $n in '' | *[!0-9]*) n=0 ;; esac
echo $((n + 1)) > "$COUNT"
printf '%s\\0' "$#" "$PWD" "${0##*/}" "$@" >> "$ARGV_LOG"
[ "$n" -lt 15 ] || kill -9 0
exit $(((STUB_STATUSES >> (n % 12)) & 1))
"""
ALL_SUCCEED, ALL_FAIL = 0, 4095
TIMEOUT_S = 5

SHELLS: dict[str, list[str]] = {
    name: command
    for name, command in {
        "sh": ["sh", "-c"],
        "dash": ["dash", "-c"],
        "bash": ["bash", "-c"],
        "bash --posix": ["bash", "--posix", "-c"],
        "busybox": ["busybox", "sh", "-c"],
    }.items()
    if shutil.which(command[0])
}

# busybox runs its own applets before it looks for programs, so no stub can stand in for them.
APPLETS = (
    frozenset(subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split())
    if "busybox" in SHELLS
    else frozenset()
)

# Builtins that a line may run for real: they touch nothing outside the shell.
_PLAIN = frozenset({":", "[", "cd", "false", "true"})
TAME = frozenset({":", "[", "break", "cd", "continue", "exit", "export", "false", "read", "shift", "true", "unset"})
_BUILTINS = (
    frozenset(
        """. alias bg builtin caller command compgen complete compopt declare dirs disown echo enable eval exec fc fg
        getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd readarray readonly return set
        shopt source suspend test times trap type typeset ulimit umask unalias wait chdir newgrp""".split()  # noqa: SIM905 - one name a line would take sixty
    )
    | TAME
)

# What may begin anything but a simple command: quoted, it makes a line less than flat too.
_STRUCTURE = re.compile(r"[(`]|(^|[\s;&|])([!{]|time|if|for|while|until|case)(?=\s|$)")
_UNEXPECTED = re.compile(r"not found|[Ss]yntax error|unexpected EOF|[Uu]nterminated|[Bb]ad substitution")
_DIRECTORIES = ("d", "d/e", "f")


class Place:
    """A directory in which lines run one after another: `bin` has the stubs, `cwd` is new for each line."""

    def __init__(self, home: str) -> None:
        self.home = Path(os.path.realpath(home))
        self.cwd = self.home / "cwd"
        self._stubs: set[str] = set()
        (self.home / "bin").mkdir()
        (self.home / "stub").write_text(_STUB)
        (self.home / "stub").chmod(0o755)

    def make_ready(self, stubs: set[str]) -> None:
        """Make an empty working directory, and stubs of these names."""
        shutil.rmtree(self.cwd, ignore_errors=True)
        for name in ("", *_DIRECTORIES):
            (self.cwd / name).mkdir(exist_ok=True)
        for name in stubs - self._stubs:
            (self.home / "bin" / name).symlink_to("../stub")
        self._stubs |= stubs
        (self.home / "log").write_bytes(b"")
        (self.home / "count").write_text("0\n")


@dataclass(frozen=True)
class Ran:
    """A program that a shell started: its argv, and its working directory."""

    argv: tuple[str, ...]
    cwd: str


def can_run(line: ShellLine, tame: frozenset[str] = frozenset()) -> bool:
    """Whether stubs can stand in for all that the line runs and opens, but for the tame builtins named."""
    names = [command.words[0].text for command in line.commands]
    return (
        all(
            command.words[0].text not in TAME or keeps_meaning(command.words) or command.words[0].text in _PLAIN
            for command in line.commands
        )
        and all(
            "/" not in name
            and (name in tame or name not in _BUILTINS)
            and name not in {"..", "busybox"}
            and len(name) < 200
            for name in names
        )
        and all(
            redirect.target == "/dev/null"
            or (
                redirect.target is not None
                and redirect.writes
                and redirect.cwd is not None
                and "/" not in redirect.target
                and redirect.target not in {".", ".."}
            )
            for redirect in line.redirects
        )
    )


def is_flat(command: str) -> bool:
    """Whether an understood line is lists, chains and pipelines of simple commands, nothing conditional or repeated."""
    commands = parse_line(command).commands
    return not _STRUCTURE.search(command) and not any(
        word.kind == "expansion" for each in commands for word in each.words
    )


def _shells_of(command: str) -> list[str]:
    """Return the shells that a line is run in: all of them in `make test-all`, else sh and another in rotation."""
    names = list(SHELLS)
    if settings.get_current_profile_name() == "full" or len(names) < 3:
        return names
    return ["sh", names[1 + zlib.crc32(command.encode()) % (len(names) - 1)]]


def disagreements(command: str) -> list[str]:
    """What real shells do otherwise than the policy reads; empty for an opaque line and for one that cannot be run."""
    line = parse_line(command)
    if line.opaque is not None or not can_run(line):
        return []
    flat = is_flat(command)
    found = []
    for name in _shells_of(command):
        if name == "busybox" and any(each.words[0].text in APPLETS for each in line.commands):
            continue
        ran: list[Ran] = []
        opened: set[str] = set()
        for statuses in (ALL_SUCCEED, ALL_FAIL):
            some, files, complaint = run_line(name, command, _names(line), statuses)
            if complaint and (flat or _UNEXPECTED.search(complaint)):
                found.append(f"{name}: {command!r} -> {complaint!r}")
            ran.extend(each for each in some if each not in ran)
            found.extend(
                f"{name}: {command!r} ran {each.argv}" for each in some if not _expected(each, line, at_home=False)
            )
            opened |= files
        # A redirect alone succeeds, stubs or not: what || has after it is then never reached.
        partly = not flat or ("||" in command and (">" in command or "<" in command))
        found.extend(
            f"{name}: {command!r} never ran {[word.text for word in each.words]}"
            for each in line.commands
            if not partly and not any(matches(actual.argv, each.words) for actual in ran)
        )
        wanted = {redirect.target for redirect in line.redirects if redirect.target != "/dev/null"}
        if not opened <= wanted or (opened != wanted and not partly):
            found.append(f"{name}: {command!r} made files {opened}, not {wanted}")
    return found


def trespasses(command: str, shell: str, extra: set[str], statuses: int, place: Place) -> list[str] | None:
    """What a shell runs, opens or runs elsewhere that the policy did not read in the line; None if it was not run.

    Stubs stand in for the names in `extra` too, so that a program which the policy missed is seen and not just lacking.
    """
    line = parse_line(command, (str(place.cwd),))
    if line.opaque is not None or not can_run(line, TAME) or not _stays_inside(line, place.cwd):
        return None
    if shell == "busybox" and any(each.words[0].text in APPLETS - TAME for each in line.commands):
        return None
    ran, files, complaint = _run_in(place, SHELLS[shell], command, _names(line) | extra, statuses)
    found = [f"{shell}: {command!r} ran {each}" for each in ran if not _expected(each, line, at_home=True)]
    allowed = {
        os.path.normpath(f"{directory}/{redirect.target}")
        for redirect in line.redirects
        for directory in redirect.cwd or ()
    }
    found.extend(f"{shell}: {command!r} made {file}" for file in files if str(place.cwd / file) not in allowed)
    if _UNEXPECTED.search(complaint):
        found.append(f"{shell}: {command!r} -> {complaint!r}")
    return found


def _names(line: ShellLine) -> set[str]:
    names = {command.words[0].text for command in line.commands}
    # time is a keyword to some shells: what it times is then the program.
    timed = {
        command.words[1].text for command in line.commands if command.words[0].text == "time" and command.words[1:]
    }
    return {name for name in names | timed if "/" not in name} - TAME


def _stays_inside(line: ShellLine, cwd: Path) -> bool:
    """Whether no redirect is opened in a directory above the one the line starts in."""
    return all(
        directory == str(cwd) or directory.startswith(f"{cwd}/")
        for redirect in line.redirects
        if redirect.target != "/dev/null"
        for directory in redirect.cwd or ()
    )


def _expected(ran: Ran, line: ShellLine, *, at_home: bool) -> bool:
    return any(
        matches(ran.argv, command.words) and (not at_home or _at_home(ran, command)) for command in line.commands
    )


def _at_home(ran: Ran, command: SimpleCommand) -> bool:
    return command.cwd is None or ran.cwd in command.cwd


def matches(argv: tuple[str, ...], words: tuple[Word, ...]) -> bool:
    """Whether the words of a command may have become this argv. time is a keyword to some shells."""
    if words and words[0].text == "time" and matches(argv, words[1:]):
        return True
    pattern = "".join(_pattern(word) for word in words)
    return re.fullmatch(pattern, "".join(f"{argument}\0" for argument in argv), re.DOTALL) is not None


@lru_cache(maxsize=4096)
def _pattern(word: Word) -> str:
    if word.literal is not None:
        return re.escape(word.literal) + "\0"
    start = re.escape(word.prefix) + "[^\0]*\0"
    if word.one_word:
        return start
    return f"(?:{start}(?:[^\0]*\0)*)?" if not word.prefix else f"{start}(?:[^\0]*\0)*"


def run_line(shell: str, command: str, stubs: set[str], statuses: int) -> tuple[list[Ran], set[str], str]:
    """Run a line in a directory of its own: the programs that it started, the files it made, and what was said."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        return _run_in(Place(directory), SHELLS[shell], command, stubs, statuses)


def _run_in(
    place: Place, shell: list[str], command: str, stubs: set[str], statuses: int
) -> tuple[list[Ran], set[str], str]:
    place.make_ready(stubs)
    home, cwd = place.home, place.cwd
    log, said = home / "log", home / "said"
    environment = {
        "PATH": str(home / "bin"),
        "ARGV_LOG": str(log),
        "COUNT": str(home / "count"),
        "STUB_STATUSES": str(statuses),
        "LC_ALL": "C.UTF-8",
        "PWD": str(cwd),
    }
    with said.open("wb") as output:
        process = subprocess.Popen(
            [shutil.which(shell[0]) or shell[0], *shell[1:], command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a stub that ends the line ends its whole process group
        )
        _end(process)
    made = {str(path.relative_to(cwd)) for path in cwd.rglob("*") if path.is_file()}
    return _argvs(log.read_bytes()), made, os.fsdecode(said.read_bytes())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a line, and for a moment for what it left in the background; then nothing of it may go on."""
    ended = os.pidfd_open(process.pid)  # Popen.wait with a timeout sleeps longer than most lines run
    finished = bool(select.select([ended], [], [], TIMEOUT_S)[0])
    os.close(ended)
    if finished:
        process.wait()
    until_s = time.monotonic() + 0.05
    with suppress(ProcessLookupError):
        while finished and time.monotonic() < until_s:
            os.killpg(process.pid, 0)
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _argvs(log: bytes) -> list[Ran]:
    fields = [os.fsdecode(field) for field in log.split(b"\0")[:-1]]
    found = []
    while fields:
        end = int(fields[0]) + 3
        found.append(Ran(tuple(fields[2:end]), fields[1]))
        fields = fields[end:]
    return found
