"""Options with which known programs start another program, which the line then does not name.

They count under every enforcement. A word that might become one of them counts like one, and so does one that has a
letter in a cluster that could be the text of another option.
"""

import re
from collections.abc import Sequence

from gateway.policy.programs.call import Call, leads_with_dash
from gateway.policy.words import Word, names

_TAR = """-I -F -M -L -T --files-from --use-compress-program --to-command --checkpoint-action --info-script
    --new-volume-script --rsh-command --rmt-command --multi-volume --tape-length"""
# What takes options out of a file, or loads a library, can start anything too.
_STARTS = {
    "ar": "--plugin",
    "cpio": "-M -F -O -I --rsh-command --rmt-command --file",
    "curl": "-K --config --engine",
    "diff": "-l --paginate",
    "install": "-s --strip --strip-program",
    **dict.fromkeys(("nc", "ncat", "netcat"), "-e -c --exec --sh-exec --lua-exec"),
    "patch": "-e -g --ed --get",
    "rg": "--pre --hostname-bin",
    "rsync": "-e -M --rsh --rsync-path --remote-option --daemon --config",
    "scp": "-S -D -F -o",
    "sort": "--compress-program",
    "split": "--filter",
    "ssh": "-F -I -o",
    **dict.fromkeys(("tar", "bsdtar", "gtar"), _TAR),
    "wget": "-e --execute --config --use-askpass",
    "zip": "-T --test --unzip-command",
}
_ASK_OR_RUN = names("""aria2c ed emacs emacsclient ex joe lftp mg micro most nano nvim pax pico red rview rvim sftp
    socat vi view vim vimdiff sudoedit""")
"""Programs that take commands from a person or their input, or run others in too many ways."""
_TAKE_RESPONSE_FILES = names("""ar gcc g++ cc c++ cpp c89 c99 gfortran gccgo clang clang++ ld ld.bfd ld.gold ld.lld lld
    gold as nm objdump objcopy readelf size strip strings ranlib addr2line c++filt gprof elfedit dwp windres dlltool
    rustc javac java javadoc jar kotlinc swiftc ghc nvcc dmd ldc2 tcc""")
"""Compilers and tools like them, to which @file stands for more arguments that are in the file."""
_SAFE_PAGING = re.compile(r"-[aABcdeEfFgGiIJKLmMnNqQrRsSuUVwWX0-9]+|--?[0-9]+|\+[0-9gG]+")
# sqlite3: functions that run code or reach files, and the options and commands that do neither.
_SQL = re.compile(r"edit|load_extension|fts3_tokenizer|readfile|writefile|^\s*\.", re.IGNORECASE | re.MULTILINE)
_SQLITE_WORDS = re.compile(
    r"--?(header|noheader|csv|json|column|line|list|markdown|table|box|html|tabs|quote|ascii|bail|batch|readonly|echo"
    r"|safe|version|help)|\.(tables|schema|headers?|mode|dump|indexes|databases|width|show)( [A-Za-z0-9_%*. -]+)?"
)


def refuse_starts(call: Call) -> None:
    """Refuse a call that may start a program which the line does not name."""
    if call.name in _ASK_OR_RUN:
        call.refuse(f"{call.name} can run other programs while it is used")
    elif call.name in _TAKE_RESPONSE_FILES:
        # For ar and strings a word that only might begin with @ counts as well.
        unsure = call.name in {"ar", "strings"}
        if any(word.begins.startswith("@") or (unsure and not word.begins) for word in call.words):
            call.refuse(f"{call.name} takes more arguments out of a file with @FILE")
    elif call.name == "sqlite3":
        _refuse_sql(call)
    elif call.name in {"less", "more"}:
        for word in call.words:
            if word.begins.startswith(("-", "+")) and not _SAFE_PAGING.fullmatch(word.text):
                call.refuse(f"{call.name} with {word.text} may open files or run commands")
    if call.name in _STARTS:
        words = _tar_words(call) if call.name.endswith("tar") else call.words
        refuse_options(call, words, _STARTS[call.name])


def refuse_options(call: Call, words: Sequence[Word], options: str) -> None:
    """Refuse a call whose words are, abbreviate, or could become one of some options."""
    named = options.split()
    letters = {option[1] for option in named if not option.startswith("--")}
    for word in words:
        if word.literal == "--":
            return
        name = word.begins.partition("=")[0]
        if word.kind != "literal" and "=" not in word.prefix and leads_with_dash(word):
            call.refuse(f"{word.text} could become an option of {call.name}; write -- or ./ before it")
        is_long = name.startswith("--")
        found = any(option.startswith(name) for option in named) if is_long else not letters.isdisjoint(name)
        if name.startswith("-") and found:
            call.refuse(f"{call.name} {name} may run another program")


def _tar_words(call: Call) -> tuple[Word, ...]:
    """Return the words of tar, of which the first may be letters without a dash."""
    if any(word.kind == "literal" and ":" in word.text for word in call.words):
        call.refuse("tar takes a name with a colon for one on another host")
    first = call.words[:1]
    if first and first[0].kind != "literal":
        call.refuse(f"{first[0].text} could become the options of tar; write them out")
    if first and not first[0].text.startswith("-"):
        return (Word("-" + first[0].text), *call.words[1:])
    return call.words


def _refuse_sql(call: Call) -> None:
    """Refuse what is not plainly options, a database and SQL: the program's own commands can run others."""
    options = [word for word in call.words if word.begins.startswith("-")]
    _, *commands = [word for word in call.words if not word.begins.startswith("-")] or [Word("")]
    literal = all(word.kind == "literal" for word in call.words)
    plain = all(_SQLITE_WORDS.fullmatch(word.text) for word in options)
    safe = all(_SQLITE_WORDS.fullmatch(word.text) or not _SQL.search(word.text) for word in commands)
    if not (literal and plain and safe and commands):
        call.refuse("sqlite3 may run a program with its own commands, or by what it reads")
