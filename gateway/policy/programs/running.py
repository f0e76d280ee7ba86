"""Programs that read a script or talk to a person, and ones that take a directory or a file to work by."""

from __future__ import annotations

import re

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.plain import plain, refuse_response_files
from gateway.policy.words import Word

_EDITORS = frozenset(
    """vi vim view nvim vimdiff nano pico ed ex emacs emacsclient micro joe mg red rvim rview""".split()  # noqa: SIM905 - one name a line would take fifteen
)  # Of these only that is known: what they read and write is no effect.
_TAKE_RESPONSE_FILES = frozenset(
    """gcc g++ cc c++ cpp c89 c99 gfortran gccgo clang clang++ ld ld.bfd ld.gold ld.lld lld gold as nm objdump objcopy
    readelf size strip ranlib addr2line c++filt gprof elfedit dwp windres dlltool rustc javac java javadoc jar kotlinc
    swiftc ghc nvcc dmd ldc2 tcc""".split()  # noqa: SIM905 - as above
)


def _response_files(call: Call) -> None:
    """A compiler or a tool like it: all that is said here is that @file hides more arguments."""
    refuse_response_files(call, surely=True)


def _script(call: Call) -> None:
    """An interpreter with a script by name: the script is read."""
    for word in call.words:
        if word.kind != "literal":
            call.unknown("read")
            return
        if word.text in ("-c", "-e", "-m", "-E", "-p", "--eval", "-"):
            return
        if not word.text.startswith(("-", "+")):
            call.file(word, "read")
            return


def _interactive(call: Call) -> None:
    call.refuse(f"{call.name} can run other programs while it is used")
    for word in call.words:
        if word.kind != "literal" or not word.text.startswith(("-", "+")):
            call.file(word, "read")
            call.file(word, "write")


def _pager(call: Call) -> None:
    """Without a terminal less and more only print, but some of their options open files and run commands."""
    for word in call.words:
        if word.kind == "literal" and word.text.startswith(("-", "+")):
            if not re.fullmatch(r"-[aABcdeEfFgGiIJKLmMnNqQrRsSuUVwWX0-9]+|--?[0-9]+|\+[0-9gG]+", word.text):
                call.refuse(f"{call.name} is used with {word.text}, which is not known here")
        else:
            call.file(word, "read")


def _make(call: Call) -> None:
    """With make and ninja -C is where they work, -f what they read; what they do then is in no line."""
    for place, word in enumerate(call.words):
        following = call.words[place + 1] if place + 1 < len(call.words) else None
        if word.kind != "literal":
            call.unknown("read")
        elif word.text in ("-C", "-f", "--directory", "--file", "--makefile", "--include-dir", "-I"):
            if following is not None:
                call.file(following, _make_role(word.text))
        elif re.match(r"-[CfI].|--(directory|file|makefile|include-dir)=", word.text):
            value = word.text.partition("=")[2] if word.text.startswith("--") else word.text[2:]
            call.file(Word(value), _make_role(word.text))


def _make_role(option: str) -> str:
    return "read" if option.startswith(("-f", "--file", "--makefile")) else "list"


PROGRAMS: dict[str, Describe] = {
    **dict.fromkeys(("python", "python3", "python2", "node", "perl", "ruby", "php", "lua", "deno", "bun"), _script),
    **dict.fromkeys(_TAKE_RESPONSE_FILES, _response_files),
    **dict.fromkeys(_EDITORS, _interactive),
    **dict.fromkeys(("less", "more"), _pager),
    "most": _interactive,
    **dict.fromkeys(("make", "gmake", "ninja"), _make),
    "cd": plain("-LPe"),
}
