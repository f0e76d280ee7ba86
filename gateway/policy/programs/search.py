"""find: what it lists, tests, deletes and writes. What it runs (-exec) is unwrapped in wrappers.py."""

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.paths import may_be_none
from gateway.policy.words import Word

_BARE = frozenset(
    """-H -L -P -delete ! ( ) -a -and -o -or -not , -print -print0 -prune -quit -ls -depth -d -mount -xdev -daystart
    -empty -executable -readable -writable -true -false -nouser -nogroup -follow -warn -nowarn -noleaf
    -ignore_readdir_race -noignore_readdir_race""".split()  # noqa: SIM905 - one name a line would take thirty
)
_TEXT = frozenset(
    """-name -iname -path -ipath -wholename -iwholename -lname -ilname -regex -iregex -regextype -type
    -xtype -size -mtime -mmin -atime -amin -ctime -cmin -maxdepth -mindepth -perm -user -group -uid -gid -links -inum
    -fstype -printf -used -context""".split()  # noqa: SIM905 - as above
)
# What takes arguments: what is done to the first one, and how many there are.
_TAKES = {
    **dict.fromkeys(_TEXT, ("", 1)),
    **dict.fromkeys(("-newer", "-anewer", "-cnewer", "-samefile"), ("list", 1)),
    **dict.fromkeys(("-fprint", "-fprint0", "-fls"), ("write", 1)),
    "-fprintf": ("write", 2),
}
_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


def starting_points(words: tuple[Word, ...]) -> list[Word]:
    """Return where a find starts; `words` are those after its name."""
    position = 0
    while position < len(words) and words[position].text in ("-H", "-L", "-P"):
        position += 1
    starts: list[Word] = []
    for word in words[position:]:
        # As find reads it, `-`, `,` and `)` are names here.
        if word.kind == "literal" and ((word.text.startswith("-") and word.text != "-") or word.text in ("(", "!")):
            break
        starts.append(word)
    return starts or [Word(".")]


def _find(call: Call) -> None:
    words = call.words
    starts = starting_points(words)
    call.files(starts, "list_below", dash=False)
    if any(word.text == "-delete" for word in words):
        call.files(starts, "write_below", dash=False)
    if all(may_be_none(word) for word in starts):
        call.file(Word("."), "list_below")  # where none is left it starts here
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        role, count = _TAKES.get(word.text, ("", 0))
        if word.text.startswith("-newer") and len(word.text) == len("-newerXY"):
            role, count = "" if word.text.endswith("t") else "list", 1
        if word.kind != "literal":
            if not word.prefix or word.prefix[0] in "-!(),":
                call.refuse(f"{word.text} could become an option of find; quote it")
        elif count:
            arguments = words[position : position + count]
            call.files(arguments[:1], role, dash=False)
            for argument in arguments:
                if not argument.one_word:
                    call.refuse(f"{argument.text} could become options of find; quote it")
            position += count
        elif word.text in _RUNS:
            while position < len(words) and words[position].text != ";":
                position += 1
                if words[position - 1].text == "+" and words[position - 2].text == "{}":
                    break
        elif word.text.startswith("-") and word.text not in _BARE:
            call.lose(f"{word.text} is not known here")


PROGRAMS: dict[str, Describe] = {"find": _find}
