"""Programs that read a script or talk to a person, and ones that take a directory or a file to work by."""

from __future__ import annotations

import re

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.plain import plain
from gateway.policy.words import Word

_EDITORS = frozenset(
    """vi vim view nvim vimdiff nano pico ed ex emacs emacsclient micro joe mg red rvim rview""".split()  # noqa: SIM905 - one name a line would take fifteen
)
_SQL_OPENS = re.compile(r"readfile|writefile|attach|load_extension|edit\s*\(|vacuum\s+into|fts3_tokenizer|zipfile|fsdir"
                        r"|^\s*\.|\n\s*\.", re.IGNORECASE)  # fmt: skip

_SQL_LOOKS = re.compile(r"\.(tables|schema|headers?|mode|dump|indexes|databases|width|show)( [A-Za-z0-9_%*. -]+)?")


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


def _sqlite(call: Call) -> None:
    operands: list[Word] = []
    plain_options = {"-header", "-noheader", "-csv", "-json", "-column", "-line", "-list", "-markdown", "-table",
                     "-box", "-html", "-tabs", "-quote", "-ascii", "-bail", "-batch", "-readonly", "-echo", "-stats",
                     "-safe", "-version", "-help"}  # fmt: skip
    position = 0
    while position < len(call.words):
        word = call.words[position]
        position += 1
        text = "-" + word.text.lstrip("-") if word.text.startswith("-") else ""
        if word.kind == "literal" and text:
            if text in ("-separator", "-nullvalue", "-newline"):
                position += 1
            elif text not in plain_options:
                call.refuse(f"sqlite3 is used with {word.text}, which may open a file or run a program")
        else:
            operands.append(word)
    for role in ("read", "write"):
        for word in operands[:1]:
            if word.text not in ("", ":memory:"):
                call.file(word, role, dash=False)
    for word in operands[1:]:
        if word.kind != "literal" or (_SQL_OPENS.search(word.text) and not _SQL_LOOKS.fullmatch(word.text)):
            call.refuse("sqlite3 runs SQL that may open a file or run a program")
    if len(operands) < 2:
        call.refuse("sqlite3 takes its commands from its input, which can run programs")
    if any(word.kind == "literal" and word.text.startswith("file:") for word in operands[:1]):
        call.refuse("sqlite3 opens a file by a URI")


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
    **dict.fromkeys(_EDITORS, _interactive),
    **dict.fromkeys(("less", "more"), _pager),
    "most": _interactive,
    "sqlite3": _sqlite,
    **dict.fromkeys(("make", "gmake", "ninja"), _make),
    "cd": plain("-LPe"),
}
