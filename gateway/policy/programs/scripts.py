"""sed and awk: languages that can open files and run programs, so their scripts are read as far as they are plain.

Of other interpreters only the script's name is read.
"""

from __future__ import annotations

import re
from functools import partial

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.network import named_hosts
from gateway.policy.programs.options import (
    Options,
    after_text,
    compile_options,
    parsed_call,
    read_options,
    take_values,
)
from gateway.policy.programs.runners import MAKE
from gateway.policy.words import Opaque, Word

_SED_ADDRESS = re.compile(r"\s*(?:[0-9]+(?:~[0-9]+)?|\$)")
_SED_RANGE = re.compile(r"\s*[+~][0-9]+")
_SED_SIMPLE = re.compile(r"[{}=dDgGhHnNpPxzF]|[qQlL] *[0-9]*|[btT] *[A-Za-z0-9_]*|: *[A-Za-z0-9_]+")
_SED_FLAGS = re.compile(r"[gpiIM0-9]*")
_BETWEEN = re.compile(r"[\s;]*")
# Up to here quotes are surely those of strings: a / may begin a regular expression, and a # a comment.
_AWK_PLAIN = re.compile(r'(?:[^"/#\\]|"(?:[^"\\\n]|\\[^\n])*")*')
_AWK_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# `print > file` and `print | command`; `>` outside of a print compares.
_AWK_WRITES = re.compile(r">(?!=)|(?<!\|)\|(?!\|)")
_AWK_ENDS = re.compile("[;}]")
_AWK_RUNS = re.compile(r"system|getline|\|&|@[A-Za-z_/]|ARGV|ARGC|FUNCTAB|PROCINFO|/inet")
_NINJA = compile_options("-hnv -d: -C:list -f:read -j: -k: -l: -t: -w: --help --quiet --verbose --version")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def _sed(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-EnrsuzH -e: -l: -i[] --quiet --silent --debug --expression= --in-place[=] --line-length= --posix"
        " --regexp-extended --separate --sandbox --unbuffered --null-data --zero-terminated --follow-symlinks --help"
        " --version",
        runs=True,  # -e, -f
    )
    scripts = parsed.values("-e", "--expression")
    files = parsed.operands
    if not scripts:
        scripts, files = files[:1], after_text(files)
    call.files(files, "read")
    if parsed.has("-i", "--in-place"):
        call.files(files, "write", dash=False)
    suffixes = parsed.values("-i", "--in-place")
    if len(suffixes) > 1 or any(suffix.kind != "literal" or set("/*") & set(suffix.text) for suffix in suffixes):
        call.lose("it keeps the old file under a name that is not known")
    for suffix in suffixes:
        for file in files:
            if file.kind == "literal":
                call.file(Word(file.text + suffix.text), "write", dash=False)
            else:
                call.file(file, "write")
    for script in scripts:
        if script.kind != "literal":
            call.refuse("the script of sed is not literal")
        elif (problem := sed_problem(script.text)) is not None:
            call.refuse(f"the script of sed is not understood: {problem}")


def sed_problem(script: str) -> str | None:
    """Return why a script of sed might do more than edit text, None when it does not."""
    if script.endswith("\\"):
        return "it ends with a backslash"
    try:
        position = _BETWEEN.match(script).end()  # type: ignore[union-attr] # it matches the empty text
        while position < len(script):
            position = _sed_command(script, _sed_addresses(script, position))
    except Opaque as opaque:
        return str(opaque)
    return None


def _sed_addresses(script: str, position: int) -> int:
    position = _sed_address(script, position)
    if script.startswith(",", position):
        follows = _SED_RANGE.match(script, position + 1)
        position = follows.end() if follows else _sed_address(script, position + 1)
    while script[position : position + 1] in (" ", "!", "\t"):
        position += 1
    return position


def _sed_address(script: str, position: int) -> int:
    plain = _SED_ADDRESS.match(script, position)
    if plain:
        return plain.end()
    start = position
    while script[start : start + 1] in (" ", "\t"):
        start += 1
    if script.startswith("/", start):
        end = _delimited(script, start + 1, "/")
    elif script.startswith("\\", start) and len(script) > start + 1:
        end = _delimited(script, start + 2, script[start + 1])
    else:
        return position
    while script[end : end + 1] in ("I", "M"):
        end += 1
    return end


def _sed_command(script: str, position: int) -> int:
    """Return where the next command starts. Raises Opaque for one that opens a file or runs something."""
    letter = script[position : position + 1]
    if letter in ("s", "y") and len(script) > position + 1:
        delimiter = script[position + 1]
        if delimiter in "\n\\":
            raise Opaque("its delimiter is unusual")
        middle = _delimited(script, position + 2, delimiter)
        end = _delimited(script, middle, delimiter, brackets=False)
        if letter == "s":
            end = _SED_FLAGS.match(script, end).end()  # type: ignore[union-attr] # it matches the empty text
    elif letter and letter in "aic":
        return _sed_text(script, position + 1)
    else:
        simple = _SED_SIMPLE.match(script, position)
        if simple is None:
            raise Opaque(f"{script[position : position + 20]!r} may open a file or run a program")
        end = simple.end()
        if letter in ("{", "}"):
            return _BETWEEN.match(script, end).end()  # type: ignore[union-attr] # it matches the empty text
    while script[end : end + 1] in (" ", "\t"):
        end += 1
    if end < len(script) and script[end] not in ";}\n#":
        raise Opaque(f"{script[position : position + 20]!r} may open a file or run a program")
    return _BETWEEN.match(script, end).end()  # type: ignore[union-attr] # it matches the empty text


def _sed_text(script: str, position: int) -> int:
    """Return where the text of a, i or c ends, which goes on over a line end behind an odd number of backslashes."""
    while script[position : position + 1] in (" ", "\t"):
        position += 1
    # Of `a\text` the first backslash is dropped or not, so it cannot be distinguished from one that hides a line end.
    if script.startswith("\\", position) and not script.startswith("\\\n", position) and "\n" in script[position:]:
        raise Opaque("its text begins with a backslash")
    while True:
        newline = script.find("\n", position)
        if newline < 0:
            return len(script)
        backslashes = 0
        while newline - backslashes > position and script[newline - backslashes - 1] == "\\":
            backslashes += 1
        position = newline + 1
        if backslashes % 2 == 0:
            return _BETWEEN.match(script, position).end()  # type: ignore[union-attr] # it matches the empty text


def _delimited(script: str, position: int, delimiter: str, *, brackets: bool = True) -> int:
    """Return the place after the next delimiter. GNU and busybox differ on one inside [...]: that is refused."""
    start = position
    while position < len(script):
        if script[position] == "\\":
            position += 2
        elif script[position] == delimiter:
            piece = script[start:position]
            if brackets and (piece.count("[") > piece.count("]") or "[]" in piece or "[^]" in piece):
                raise Opaque("a delimiter stands inside [ ]")
            return position + 1
        else:
            position += 1
    raise Opaque("a delimiter is missing")


def _awk(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-cCPrStOsbMnN -F: -v: --field-separator= --assign= --posix --re-interval --traditional"
        " --characters-as-bytes --sandbox --version",
        runs=True,
    )  # -f, -i, -l, -E
    operands = parsed.operands
    if operands:
        program = operands[0]
        if program.kind != "literal":
            call.refuse("the program of awk is not literal")
        elif (problem := awk_problem(program.text)) is not None:
            call.refuse(f"the program of awk is not understood: {problem}")
    for word in after_text(operands):
        if word.kind != "literal" or not _ASSIGNMENT.fullmatch(word.text):
            call.file(word, "read")


def awk_problem(program: str) -> str | None:
    """Return why a program of awk might do more than print text, None when it does not."""
    runs = _AWK_RUNS.search(program)
    if runs:
        return f"{runs.group()!r} may open a file or run a program"
    plain = _AWK_PLAIN.match(program).end()  # type: ignore[union-attr] # it matches the empty text
    text = _AWK_STRING.sub('""', program[:plain])
    # In what is not plain no end of a print is sure.
    for statement in _AWK_ENDS.split(text) if plain == len(program) else [text + program[plain:]]:
        prints = statement.find("print")
        writes = _AWK_WRITES.search(statement, prints) if prints >= 0 else None
        if writes:
            return f"a print before {writes.group()!r} may write a file or run a program"
    return None


def _script(call: Call) -> None:
    """An interpreter with a script by name: the script is read."""
    if call.name in ("bun", "deno") or [word.text for word in call.words[:2]] == ["-m", "pip"]:
        named_hosts(call)
    for word in call.words:
        if word.kind != "literal":
            call.unknown("read")
            return
        if word.text in ("-c", "-e", "-m", "-E", "-p", "--eval", "-"):
            return
        if not word.text.startswith(("-", "+")):
            call.file(word, "read")
            return


def _make(call: Call, *, options: Options = MAKE) -> None:
    """With make and ninja -C is where they work, -f what they read; what they do then is in no line."""
    take_values(call, options, read_options(call, options, call.words))


PROGRAMS: dict[str, Describe] = {
    "sed": _sed,
    "gsed": _sed,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("python", "python3", "python2", "node", "perl", "ruby", "php", "lua", "deno", "bun"), _script),
    **dict.fromkeys(("make", "gmake"), _make),
    "ninja": partial(_make, options=_NINJA),
}
