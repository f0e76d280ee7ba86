"""What known programs do with their arguments: the files they read and write, the programs they run.

`files`, `find`, `git`, `scripts` and `wrapping` are groups of programs, each with a table PROGRAMS from a program's
name to the function that describes a call of it. The tables know the usual options of common programs. For any other
option, and for a program in UNREAD, it is unknown which files are used, and the line is opaque. Of a program in no
table nothing is known: only argv rules judge it.

With `enforcement: kernel`, files are not read from the line; only what starts other programs matters (`starts.py`).

Start at `call.py`. Imports gateway.policy.
"""

from collections.abc import Sequence

from gateway.policy.programs import files, find, git, scripts, wrapping
from gateway.policy.programs.call import UNREAD_REASON, Call, Describe
from gateway.policy.programs.starts import refuse_starts
from gateway.policy.programs.wrapping import refuse_others
from gateway.policy.shell_line import START, Directories
from gateway.policy.words import Opaque, Word, names

SYSTEM_DIRECTORIES = frozenset({"/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin"})
"""Where a program has the name that it is known by. Anywhere else `grep` may be anything."""

UNREAD = names("""ar aria2c axel base32 bsdtar bunzip2 bzcat bzip2 cksum comm cpio csplit dd expand fmt fold ftp gtar
    gunzip gzcat gzip hd hexdump iconv install join less lftp link ln lzma mkfifo mktemp more nc ncat netcat ninja patch
    pax ping pr rev rgrep rsync scp sftp sha224sum sha384sum shred shuf socat split sqlite3 ssh strings sum tar telnet
    tree tsort unexpand unlzma unxz unzip unzstd wget xxd xz xzcat zcat zip zipinfo zstd zstdcat""")
"""Programs that use files in ways that are not read from a line."""

_PROGRAMS: dict[str, Describe] = {
    name: describe for module in (files, find, git, scripts, wrapping) for name, describe in module.PROGRAMS.items()
}


def read_call(words: Sequence[Word], cwd: Directories = START) -> Call:
    """Return what a simple command does by its arguments. `cwd` is where it may run. Never raises.

    `words` starts with the program's name. What is found of a call that is not known entirely was seen, and is no
    promise.
    """
    call = Call(words, cwd)
    if call.program.kind != "literal":
        return call
    directory = call.program.text.rpartition("/")[0]
    is_elsewhere = bool(directory) and directory not in SYSTEM_DIRECTORIES
    if not is_elsewhere:
        refuse_starts(call)
        try:
            if (describe := _PROGRAMS.get(call.name)) is not None:
                describe(call)
            elif call.name in UNREAD:
                call.lose(UNREAD_REASON)
        except Opaque as opaque:
            call.refuse(str(opaque))
    refuse_others(call, elsewhere=is_elsewhere)
    return call
