"""find: where it looks, what it does to the files there, and what it runs on them."""

import re
from itertools import dropwhile

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.paths import may_be_none
from gateway.policy.words import Word, names

_LIMIT_STARTS = 8
_BARE = names("""-H -L -P -delete ! ( ) -a -and -o -or -not , -print -print0 -prune -quit -ls -depth -d -mount -xdev
    -daystart -empty -executable -readable -writable -true -false -nouser -nogroup -follow -warn -nowarn -noleaf
    -ignore_readdir_race -noignore_readdir_race""")
_TEXT = names("""-name -iname -path -ipath -wholename -iwholename -lname -ilname -regex -iregex -regextype -type
    -xtype -size -mtime -mmin -atime -amin -ctime -cmin -maxdepth -mindepth -perm -user -group -uid -gid -links -inum
    -fstype -printf -used -context""")
# What takes arguments: what is done to the first one, and how many there are.
_TAKES = {
    **dict.fromkeys((*_TEXT, "-newerat", "-newerct", "-newermt", "-newerBt"), ("", 1)),
    **dict.fromkeys(("-newer", "-anewer", "-cnewer", "-samefile"), ("list", 1)),
    **dict.fromkeys(("-fprint", "-fprint0", "-fls"), ("write", 1)),
    "-fprintf": ("write", 2),
}
_NEWER = re.compile(r"-newer[^t][^t]", re.DOTALL)
_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


def _starting_points(words: tuple[Word, ...]) -> list[Word]:
    """Return where a find starts; `words` are those after its name."""
    starts: list[Word] = []
    for word in dropwhile(lambda option: option.text in ("-H", "-L", "-P"), words):
        # As find reads it, `-`, `,` and `)` are names here.
        if word.kind == "literal" and ((word.text.startswith("-") and word.text != "-") or word.text in ("(", "!")):
            break
        starts.append(word)
    return starts or [Word(".")]


def _command_end(words: tuple[Word, ...], start: int, *, plus: bool) -> int:
    """Return where the command of -exec ends: at `;`, or at `+` behind {}, which -ok does not know."""
    for place in range(start, len(words)):
        if words[place].literal == ";" or (plus and words[place].literal == "+" and words[place - 1].literal == "{}"):
            return place
    return len(words)


def _find(call: Call) -> None:
    words = call.words
    starts = _starting_points(words)
    call.files(starts, "list_below", dash=False)
    if any(word.text == "-delete" for word in words):
        call.files(starts, "write_below", dash=False)
    if all(may_be_none(word) for word in starts):
        call.file(Word("."), "list_below")  # where none is left it starts here
    behind = 0  # what the words before it take
    for place, word in enumerate(words):
        if place < behind:
            continue
        role, count = ("list", 1) if _NEWER.fullmatch(word.text) else _TAKES.get(word.text, ("", 0))
        if word.kind != "literal":
            if not word.prefix or word.prefix[0] in "-!(),":
                call.refuse(f"{word.text} could become an option of find; quote it")
        elif count:
            behind = place + 1 + count
            call.files(words[place + 1 : place + 2], role, dash=False)
            for argument in words[place + 1 : behind]:
                if not argument.one_word or argument.text in _RUNS:
                    call.refuse(f"{argument.text} could become options of find; quote it")
        elif word.text in _RUNS:
            behind = _command_end(words, place + 1, plus=word.text.startswith("-exec"))
            _run(call, word.text, words[place + 1 : behind] if behind < len(words) else (), starts)
        elif word.text.startswith("-") and word.text not in _BARE:
            call.lose(f"{word.text} is not known here")
            if any(after.kind != "literal" for after in words[place + 1 :]):
                call.refuse(f"what follows {word.text} could become options of find; write it without expansions")
    if any(word.text.startswith("-files0") for word in words) and any(word.literal in _RUNS for word in words):
        call.refuse("find -files0-from starts at places that are not known")


def _run(call: Call, option: str, wrapped: tuple[Word, ...], starts: list[Word]) -> None:
    """Take in the command of -exec, for each place where find starts."""
    if not wrapped or wrapped[0].kind != "literal" or "{}" in wrapped[0].text:
        call.refuse(f"find {option} is used in a form that is not understood")
    elif option in ("-execdir", "-okdir"):
        call.run([_with_found(inner, Word(".")) for inner in wrapped], anywhere=True)
    elif len(starts) > _LIMIT_STARTS:
        call.refuse("find starts at too many places")
    else:
        for words in dict.fromkeys(tuple(_with_found(inner, start) for inner in wrapped) for start in starts):
            call.run(words)


def _with_found(word: Word, start: Word) -> Word:
    """Return a word with a file below `start` in the place of {}."""
    if "{}" not in word.text:
        return word
    if word.kind != "literal" or start.kind != "literal" or word.text != "{}":
        # {}/../x may be anywhere; what it begins with is known, and that it is no option.
        begins = word.text.partition("{}")[0] or start.begins
        return Word(word.text, "expansion", single=True, prefix=begins)
    root = start.text.rstrip("/") if start.text.strip("/") else ""
    return Word(f"{root}/**", "glob", prefix=f"{root}/")


PROGRAMS: dict[str, Describe] = {"find": _find}
