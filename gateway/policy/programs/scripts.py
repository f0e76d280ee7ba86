"""sed, awk and find: languages that can open files and run programs, so they are read as far as they are plain.

Of make the options and the variables are read, and of other interpreters only the name of the script. Which files find
finds is not read, nor what it does to them itself: only what it runs on them.
"""

import re
from dataclasses import replace
from itertools import dropwhile, takewhile

from gateway.policy.programs.call import UNREAD_REASON, Call, Describe, is_stream, may_be_none
from gateway.policy.programs.options import after_first, read_options
from gateway.policy.words import Word, may_assign, names

_SED_DELIMITER = r"[^\n\\\[\]]"


def _sed_pattern(name: str, delimiter: str) -> str:
    """Return what matches from a delimiter to the next one, with none in a [...]: GNU and busybox differ on those."""
    bracket = rf"\[(?!\^?\])(?:\\.|(?!\[\^?\]|(?P={name}))[^\]\\])*+\]"
    return rf"(?P<{name}>{delimiter})(?:\\.|{bracket}|(?!(?P={name}))[^\\\[])*+(?P={name})"


def _sed_address(name: str) -> str:
    pattern = _sed_pattern(name, rf"/|(?<=\\){_SED_DELIMITER}")
    return rf"(?:\s*+(?:[0-9]++(?:~[0-9]++)?|\$)|[ \t]*+\\?{pattern}[IM]*+)"


# One command of sed that opens no file and runs nothing, with its addresses. Text that begins with a backslash is not
# read on to a line end: whether that backslash is dropped decides about the ones after it.
_SED_COMMAND = re.compile(
    rf"""
    {_sed_address("first")}?+ (?:,(?:\s*+[+~][0-9]++|{_sed_address("last")})?+)?+ [ !\t]*+
    (?: [{{}}]
      | [aic] [ \t]*+ (?!\\(?!\n).*\n) (?:\\.|[^\\\n])*+ (?:\n|(?<!\\)\Z)
      | (?: [sy]{_sed_pattern("edit", _SED_DELIMITER)} (?:\\.|(?!(?P=edit))[^\\])*+ (?P=edit) [gpiIM0-9]*+
          | [=dDgGhHnNpPxzF] | [qQlL]\ *+[0-9]*+ | [btT]\ *+[A-Za-z0-9_]*+ | :\ *+[A-Za-z0-9_]++
        ) [ \t]*+ (?=[;}}\n]|\Z)
    ) [\s;]*+""",
    re.VERBOSE | re.DOTALL,
)
# Up to here quotes are surely those of strings: a / may begin a regular expression, and a # a comment.
_AWK_PLAIN = re.compile(r'(?:[^"/#\\]|"(?:[^"\\\n]|\\[^\n])*")*')
_AWK_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# `print > file` and `print | command`; `>` outside of a print compares.
_AWK_WRITES = re.compile(r">(?!=)|(?<!\|)\|(?!\|)")
_AWK_ENDS = re.compile("[;}]")
_AWK_RUNS = re.compile(r"system|getline|\|&|@[A-Za-z_/]|ARGV|ARGC|FUNCTAB|PROCINFO|/inet")
_MAKE = """-bBdehikLmnNpqrRsStvw -C: -f: -I: -j[] -l[] -o: -O[] -W: --always-make --directory= --dry-run
    --file= --ignore-errors --include-dir= --jobs[=] --just-print --keep-going --load-average[=] --makefile=
    --no-builtin-rules --no-print-directory --output-sync[=] --print-data-base --print-directory --question --quiet
    --recon --silent --touch --trace --version --warn-undefined-variables"""
# A value of a variable of make that is no command.
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.,:/@%+-]*")
_BARE = names("""-H -L -P ! ( ) -a -and -o -or -not , -print -print0 -prune -quit -ls -depth -d -mount -xdev
    -daystart -empty -executable -readable -writable -true -false -nouser -nogroup -follow -warn -nowarn -noleaf
    -ignore_readdir_race -noignore_readdir_race""")
_WITH_TEXT = names("""-name -iname -path -ipath -wholename -iwholename -lname -ilname -regex -iregex -regextype -type
    -xtype -size -mtime -mmin -atime -amin -ctime -cmin -maxdepth -mindepth -perm -user -group -uid -gid -links -inum
    -fstype -printf -used -context -newer -anewer -cnewer -samefile""")
_WRITES = {"-delete": 0, "-fprint": 1, "-fprint0": 1, "-fls": 1, "-fprintf": 2}
"""What writes, and how many arguments it takes."""
_NEWER = re.compile(r"-newer..", re.DOTALL)
_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


def _sed(call: Call) -> None:
    parsed = read_options(
        call,
        """-EnrsuzH -e: -l: -i[] --quiet --silent --debug --expression= --in-place[=] --line-length= --posix
        --regexp-extended --separate --sandbox --unbuffered --null-data --zero-terminated --follow-symlinks --help
        --version""",
        runs=True,  # -e, -f
    )
    scripts, files = parsed.values("-e", "--expression"), parsed.operands
    if not scripts:
        scripts, files = after_first(files)
    call.files(files, "read")
    if parsed.has("-i", "--in-place"):
        call.files(files, "write", dash=False)
    suffixes = parsed.values("-i", "--in-place")
    if len(suffixes) > 1 or any(suffix.kind != "literal" or set("/*") & set(suffix.text) for suffix in suffixes):
        call.lose("it keeps the old file under a name that is not known")
    for suffix in suffixes[-1:]:
        call.files([replace(file, text=file.text + suffix.text) for file in files], "write", dash=False)
    for script in scripts:
        if script.kind != "literal":
            call.refuse("the script of sed is not literal")
        elif (problem := sed_problem(script.text)) is not None:
            call.refuse(f"the script of sed is not understood: {problem}")


def sed_problem(script: str) -> str | None:
    """Return why a script of sed might do more than edit text, None when it does not."""
    position = len(script) - len(script.lstrip(" \t\n\r\f\v;"))
    while position < len(script):
        command = _SED_COMMAND.match(script, position)
        if command is None:
            return f"{script[position : position + 20]!r} may open a file or run a program, or is ambiguous"
        position = command.end()
    return None


def _awk(call: Call) -> None:
    parsed = read_options(
        call,
        """-cCPrStOsbMnN -F: -v: --field-separator= --assign= --posix --re-interval --traditional --characters-as-bytes
        --sandbox --version""",
        runs=True,
    )  # -f, -i, -l, -E
    programs, files = after_first(parsed.operands)
    call.files(files, "read")
    for program in programs:
        if program.kind != "literal":
            call.refuse("the program of awk is not literal")
        elif (problem := _awk_problem(program.text)) is not None:
            call.refuse(f"the program of awk is not understood: {problem}")


def _awk_problem(program: str) -> str | None:
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


def read_script(call: Call) -> None:
    """An interpreter with a script by name: the script is read."""
    for word in call.words:
        if word.kind != "literal":
            call.lose(f"{word.text} may be an option or any script", "read")
            call.file(word, "read")
            return
        if word.text in ("-c", "-e", "-m", "-E", "-p", "--eval", "-"):
            return
        if not word.text.startswith(("-", "+")):
            call.file(word, "read")
            return


def _make(call: Call) -> None:
    """Take in where make works and what it reads. It may run what stands in the line, and not only in a makefile."""
    parsed = read_options(call, _MAKE, runs=True)
    call.files(parsed.values("-C", "-I", "--directory", "--include-dir"), "list")
    for value in parsed.values("-f", "--file", "--makefile"):
        call.file(value, "read")
        if value.literal is None or is_stream(value.text):
            call.refuse(f"{call.name} takes its makefile from {value.text}, which may be its input")
    for word in parsed.operands:
        name, equals, value_text = word.text.partition("=")
        known = name.isupper() and may_assign(name) and _PLAIN_VALUE.fullmatch(value_text)
        if word.literal is None or (equals and not known):
            call.refuse(f"{call.name} with {word.text} may run what the word says; set the variable in the makefile")


def _is_start(word: Word) -> bool:
    """Return whether a word before the first test is a starting point: `-`, `,` and `)` are."""
    return word.kind != "literal" or word.text == "-" or not word.text.startswith(("-", "(", "!"))


def _command_end(words: tuple[Word, ...], start: int, *, plus: bool) -> int:
    """Return where the command of -exec ends: at `;`, or at `+` behind {}, which -ok does not know."""
    for place in range(start, len(words)):
        if words[place].literal == ";" or (plus and words[place].literal == "+" and words[place - 1].literal == "{}"):
            return place
    return len(words)


def _find(call: Call) -> None:
    words, writes = call.words, False
    starts = [*takewhile(_is_start, dropwhile(lambda option: option.text in ("-H", "-L", "-P"), words))]
    behind = 0  # what the words before it take
    for place, word in enumerate(words):
        if place < behind:
            continue
        count = 1 if word.text in _WITH_TEXT or _NEWER.fullmatch(word.text) else _WRITES.get(word.text, 0)
        writes = writes or word.text in {*_WRITES, "-samefile"}
        if word.kind != "literal":
            if not word.prefix or word.prefix[0] in "-!(),":
                call.refuse(f"{word.text} could become an option of find; quote it")
        elif count:
            behind = place + 1 + count
            for argument in words[place + 1 : behind]:
                if not argument.one_word or argument.text in _RUNS:
                    call.refuse(f"{argument.text} could become options of find; quote it")
        elif word.text in _RUNS:
            behind = _command_end(words, place + 1, plus=word.text.startswith("-exec"))
            _run(call, word.text, words[place + 1 : behind] if behind < len(words) else (), starts)
        elif word.text.startswith("-") and word.text not in {*_BARE, *_WRITES}:
            writes = True
            if any(after.kind != "literal" for after in words[place + 1 :]):
                call.refuse(f"what follows {word.text} could become options of find; write it without expansions")
    if any(word.text.startswith("-files0") for word in words) and any(word.literal in _RUNS for word in words):
        call.refuse("find -files0-from starts at places that are not known")
    here = [Word(".")] if all(may_be_none(start) for start in starts) else []
    call.files([*starts, *here], "list", below=True, dash=False)
    if writes or any(word.text.startswith(("-files0", "-newer")) for word in words):
        call.lose(UNREAD_REASON)


def _run(call: Call, option: str, wrapped: tuple[Word, ...], starts: list[Word]) -> None:
    """Take in the command of -exec."""
    if not wrapped or wrapped[0].kind != "literal" or "{}" in wrapped[0].text:
        call.refuse(f"find {option} is used in a form that is not understood")
        return
    in_place = option in ("-execdir", "-okdir")
    # What it finds begins as one of the starts does.
    for begins in dict.fromkeys("." if in_place else start.begins[:1] for start in starts or [Word(".")]):
        call.run([_with_found(word, begins) for word in wrapped], anywhere=in_place)


def _with_found(word: Word, begins: str) -> Word:
    """Return a word with a file that begins so in the place of {}; where that is known, it is no option."""
    if "{}" not in word.text:
        return word
    if word.text == "{}":  # several may take its place, and one at least: as of a pattern
        return Word("{}", "glob", prefix=begins)
    before = word.begins.partition("{}")[0]
    return Word(word.text, "expansion", single=word.one_word, prefix=before or begins * word.text.startswith("{}"))


PROGRAMS: dict[str, Describe] = {
    "find": _find,
    "sed": _sed,
    "gsed": _sed,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("python", "python3", "python2", "node", "perl", "ruby", "php", "lua", "deno"), read_script),
    **dict.fromkeys(("make", "gmake"), _make),
}
