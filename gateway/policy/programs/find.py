"""find: what it runs on the files that it finds. Which ones these are is not read, nor what it does to them itself."""

import re
from itertools import dropwhile, takewhile

from gateway.policy.programs.call import UNREAD_REASON, Call, Describe
from gateway.policy.programs.paths import may_be_none
from gateway.policy.words import Word, names

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


PROGRAMS: dict[str, Describe] = {"find": _find}
