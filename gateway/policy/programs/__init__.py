"""What known programs do with their arguments: the files they read and write, the hosts they speak to.

Each module is a group of programs with a table PROGRAMS, from a program's name to what describes a call of it. A
program in no table has no effects: the argv rules are what there is to say about it. An option that a table does not
know makes the line opaque, with a reason that names it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.policy.effects import NO_EFFECTS, Effects
from gateway.policy.programs import archives, git, network, running, scripts, search, sqlite, text, trees
from gateway.policy.programs.call import Call, Describe
from gateway.policy.shell_line import START, Directories
from gateway.policy.words import Opaque, Word

SYSTEM_DIRECTORIES = frozenset({"/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin"})
"""Where a program has the name that it is known by. Anywhere else `grep` may be anything."""

_PROGRAMS: dict[str, Describe] = {
    name: describe
    for module in (text, trees, scripts, search, archives, git, network, running, sqlite)
    for name, describe in module.PROGRAMS.items()
}


def effects_of(words: Sequence[Word], cwd: Directories = START) -> Effects:
    """Return what a simple command does by its arguments. `cwd` is where it may run. Never raises.

    `words` starts with the program's name. Effects of a call that is opaque are what was seen, and no promise.
    """
    if not words or words[0].kind != "literal":
        return NO_EFFECTS
    directory, _, name = words[0].text.rpartition("/")
    describe = _PROGRAMS.get(name)
    if describe is None or (directory and directory not in SYSTEM_DIRECTORIES):
        return NO_EFFECTS
    call = Call(name, words[1:], cwd)
    try:
        describe(call)
    except Opaque as opaque:
        call.refuse(str(opaque))
    return call.effects()
