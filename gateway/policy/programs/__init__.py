"""What known programs do with their arguments: the files they read and write, the programs they run.

`files`, `git`, `scripts` and `wrapping` are groups of programs, each with a table PROGRAMS from a program's
name to the function that describes a call of it. What a line says of files is read for few programs and their usual
options; any other option, or another program that uses files, may use any of them. Of a program in no table nothing is
known: only argv rules judge it.

With `enforcement: kernel`, the kernel judges the files; only what starts other programs matters (`starts.py`).

Start at `call.py`. Imports gateway.policy.
"""

from collections.abc import Sequence

from gateway.policy.programs import files, git, scripts, wrapping
from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.starts import refuse_starts
from gateway.policy.programs.wrapping import refuse_others
from gateway.policy.shell_line import START, Directories
from gateway.policy.words import Opaque, Word

SYSTEM_DIRECTORIES = frozenset({"/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin"})
"""Where a program has the name that it is known by. Anywhere else `grep` may be anything."""

_PROGRAMS: dict[str, Describe] = {
    name: describe for module in (files, git, scripts, wrapping) for name, describe in module.PROGRAMS.items()
}


def read_call(words: Sequence[Word], cwd: Directories = START) -> Call:
    """Return what a simple command does by its arguments. `cwd` is where it may run. Never raises.

    `words` starts with the program's name, which is literal. What is found of a call that is not known entirely was
    seen, and is no promise.
    """
    call = Call(words, cwd)
    directory = call.program.text.rpartition("/")[0]
    is_elsewhere = bool(directory) and directory not in SYSTEM_DIRECTORIES
    if not is_elsewhere:
        refuse_starts(call)
        try:
            if (describe := _PROGRAMS.get(call.name)) is not None:
                describe(call)
        except Opaque as opaque:
            call.refuse(str(opaque))
    refuse_others(call, elsewhere=is_elsewhere)
    return call
