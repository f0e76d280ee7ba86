"""git: which files of the work tree a subcommand reads and writes, and which hosts it speaks to (subcommands.py).

The repository itself (.git) is not named in the line and is no effect. The top of the work tree cannot be
determined either, so what concerns all of it concerns the whole file system that the command runs in: /workspace, /tmp.
Settings, hooks and aliases of a repository can run programs; that too is nothing a line says, so aliases are opaque,
and so is a line that changes other settings than a few harmless ones.

Start at `subcommands.py`. Imports gateway.policy.
"""

from __future__ import annotations

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.git.subcommands import SUBCOMMANDS, refuse_git_starts

_ALONE = frozenset({"--version", "-v", "--help", "-h"})


def _git(call: Call) -> None:
    if not call.words or (len(call.words) == 1 and call.words[0].literal in _ALONE):
        return
    name = call.words[0].literal
    if name is None:
        call.refuse("the subcommand of git is not literal")
        return
    if name.startswith("-"):  # what changes little is taken away before (global_options.py)
        call.refuse(f"git is used with {name}, which can change what it does")
        return
    describe = SUBCOMMANDS.get(name)
    if describe is None:
        call.refuse(f"git {name[:40]} is not known here; it may be an alias or run other programs")
        return
    call.name = f"git {name}"
    words = list(call.words[1:])
    refuse_git_starts(call, name, words)
    describe(call, words)


PROGRAMS: dict[str, Describe] = {"git": _git}
