"""git: which files of the work tree a subcommand reads and writes, and which hosts it speaks to (subcommands.py).

The repository itself (.git) is not named in the line and is no effect. The top of the work tree cannot be
determined either, so what concerns all of it concerns the whole file system that the command runs in: /workspace, /tmp.
Settings, hooks and aliases of a repository can run programs; that too is nothing a line says, so aliases are opaque,
and so is a line that changes other settings than a few harmless ones.
"""

from __future__ import annotations

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.git.subcommands import SUBCOMMANDS, refuse_git_starts
from gateway.policy.programs.paths import absolute
from gateway.policy.words import Word

_BEFORE = frozenset(
    {"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs", "--glob-pathspecs",
     "--noglob-pathspecs"}
)  # fmt: skip
_ALONE = frozenset({"--version", "-v", "--help", "-h"})


def _git(call: Call) -> None:
    position = 0
    if len(call.words) == 1 and call.words[0].literal in _ALONE:
        return
    while position < len(call.words):
        word = call.words[position]
        if word.kind != "literal":
            call.refuse("the subcommand of git is not literal")
            return
        if not word.text.startswith("-"):
            break
        if word.text == "-C" and position + 1 < len(call.words):
            _move(call, call.words[position + 1])
            position += 1
        elif word.text not in _BEFORE:
            call.refuse(f"git is used with {word.text}, which can change what it does")
        position += 1
    if position == len(call.words):
        return
    name = call.words[position].text
    describe = SUBCOMMANDS.get(name)
    if describe is None:
        call.refuse(f"git {name[:40]} is not known here; it may be an alias or run other programs")
        return
    call.name = f"git {name}"
    words = list(call.words[position + 1 :])
    refuse_git_starts(call, name, words)
    describe(call, words)


def _move(call: Call, word: Word) -> None:
    """Take in -C: everything after it is seen from there."""
    if word.kind != "literal":
        call.directories = None
        return
    paths = absolute(word.text, call.directories)
    known = tuple(path for path in paths if path is not None)
    call.directories = known if len(known) == len(paths) else None


PROGRAMS: dict[str, Describe] = {"git": _git}
