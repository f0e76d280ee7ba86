"""What real shells make of a command line that the policy claims to understand.

Every program is a stub that writes down its argv, so a line can be run for real and harms nothing: each shell runs it
twice, once with stubs that succeed and once with stubs that fail, which between them reach every command of a line of
`;`, `&&`, `||` and `|`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gateway.policy.shell import ShellLine, parse_line

_STUB = """#!/bin/sh
printf '%s\\0' "$#" "${0##*/}" "$@" >> "$ARGV_LOG"
exit "$STUB_STATUS"
"""

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
_APPLETS = (
    frozenset(subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split())
    if "busybox" in SHELLS
    else frozenset()
)

_BUILTINS = frozenset(
    """: . [ alias bg break builtin caller cd command compgen complete compopt continue declare dirs disown echo enable
    eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd
    read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias
    unset wait chdir newgrp""".split()  # noqa: SIM905 - one name a line would take sixty
)


def can_run(line: ShellLine) -> bool:
    """Whether stubs can stand in for all that the line runs and opens."""
    names = [words[0].text for words in line.commands]
    return all(
        "/" not in name and name not in _BUILTINS | {"..", "busybox"} and len(name) < 200 for name in names
    ) and all(
        redirect.target == "/dev/null"
        or (redirect.writes and "/" not in redirect.target and redirect.target not in {".", ".."})
        for redirect in line.redirects
    )


def disagreements(command: str) -> list[str]:
    """What real shells do otherwise than the policy reads; empty for an opaque line and for one that cannot be run."""
    line = parse_line(command)
    if line.opaque is not None or not can_run(line):
        return []
    found = []
    for name, shell in SHELLS.items():
        if name == "busybox" and any(words[0].text in _APPLETS for words in line.commands):
            continue
        ran: list[list[str]] = []
        opened: set[str] = set()
        for status in (0, 1):
            argvs, files, complaint = _run(shell, command, line, status)
            if complaint:
                found.append(f"{name}: {command!r} -> {complaint!r}")
            ran.extend(argv for argv in argvs if argv not in ran)
            found.extend(f"{name}: {command!r} ran {argv}" for argv in argvs if not _expected(argv, line))
            opened |= files
        # A redirect alone succeeds, stubs or not: what || has after it is then never reached.
        partly = "||" in command and (">" in command or "<" in command)
        found.extend(
            f"{name}: {command!r} never ran {[word.text for word in words]}"
            for words in line.commands
            if not partly and not any(_is(argv, words) for argv in ran)
        )
        wanted = {redirect.target for redirect in line.redirects if redirect.target != "/dev/null"}
        if not opened <= wanted or (opened != wanted and not partly):
            found.append(f"{name}: {command!r} made files {opened}, not {wanted}")
    return found


def _expected(argv: list[str], line: ShellLine) -> bool:
    return any(_is(argv, words) for words in line.commands)


def _is(argv: list[str], words: tuple) -> bool:  # type: ignore[type-arg]
    for place, word in enumerate(words):
        if word.kind == "glob":
            return argv[:place] == [earlier.text for earlier in words[:place]]
    return argv == [word.text for word in words]


def _run(shell: list[str], command: str, line: ShellLine, status: int) -> tuple[list[list[str]], set[str], str]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        log, programs, cwd = place / "log", place / "bin", place / "cwd"
        programs.mkdir()
        cwd.mkdir()
        stub = place / "stub"
        stub.write_text(_STUB)
        stub.chmod(0o755)
        for words in line.commands:
            link = programs / words[0].text
            if not link.is_symlink():
                link.symlink_to(stub)
        log.touch()
        done = subprocess.run(
            [shutil.which(shell[0]) or shell[0], *shell[1:], command],
            cwd=cwd,
            env={"PATH": str(programs), "ARGV_LOG": str(log), "STUB_STATUS": str(status), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        complaint = os.fsdecode(done.stderr + done.stdout)
        return _argvs(log.read_bytes()), {path.name for path in cwd.iterdir()}, complaint


def _argvs(log: bytes) -> list[list[str]]:
    fields = [os.fsdecode(field) for field in log.split(b"\0")[:-1]]
    argvs = []
    while fields:
        count = int(fields[0]) + 1
        argvs.append(fields[1 : 1 + count])
        fields = fields[1 + count :]
    return argvs
