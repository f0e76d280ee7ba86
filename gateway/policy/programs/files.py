"""Programs that read, list, copy, make and remove the files that are their operands, and curl.

The hosts of curl are not read here: each connection is judged when it is made.
"""

import re
from itertools import takewhile

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.options import Parsed, after_text, read_options
from gateway.policy.programs.paths import leads_with_dash, may_be_none
from gateway.policy.words import Word, names


def _uses(role: str, options: str, *, below: str = "", text: str | None = None, here: bool = False) -> Describe:
    """Return a description of a program whose operands all have one role.

    With one of the options in `below` (or where that is "always") it is about all that is in them. The first operand is
    text unless one of the options in `text` is given, None for no text. With `here` it is about the directory it runs
    in where nothing is named, or is where it goes below directories.
    """

    def describe(call: Call) -> None:
        parsed = read_options(call, options)
        operands = parsed.operands
        if text is not None and not parsed.has(*text.split()):
            operands = after_text(operands)
        deep = below == "always" or parsed.has(*below.split())
        full_role = f"{role}_below" if deep else role
        call.files(operands, full_role, dash=role == "read")
        if here and (deep or role == "list") and all(may_be_none(word) for word in operands):
            call.file(Word("."), full_role)

    return describe


def _input_and_output(call: Call) -> None:
    """Take in the operands of `uniq [INPUT [OUTPUT]]`."""
    for place, word in enumerate(read_options(call, "-cdDiuz -f: -s: -w: --count --repeated --unique").operands):
        call.file(word, "read")
        if place or not word.one_word:
            call.file(word, "write")


def _jq(call: Call) -> None:
    parsed = read_options(call, "-acCeMnrRsSj --raw-output --compact-output --null-input --slurp --exit-status --tab")
    if any("import" in word.text or "include" in word.text for word in parsed.operands):
        call.lose("its program may read other files")
    call.files(after_text(parsed.operands), "read")


def _test(call: Call) -> None:
    words = call.words[:-1] if call.name == "[" else call.words
    for before, word in zip((None, *words), words, strict=False):
        option = before.text if before is not None else ""
        if len(option) == 2 and option[0] == "-" and option[1] in "abcdefghkLNOprsSuwxG":
            call.file(word, "list", dash=False)
    if any(word.text in ("-nt", "-ot", "-ef") for word in words):
        call.files(words, "list", dash=False)


def _cp_or_mv(call: Call) -> None:
    options = "-finTuv -t: --force --interactive --no-clobber --no-target-directory --target-directory= --verbose"
    copies = " -aHLpPrR --archive --preserve[=] --recursive --update[=]" if call.name == "cp" else ""
    parsed = read_options(call, options + copies)
    below = "_below" if not copies or parsed.has("-r", "-R", "-a", "--recursive", "--archive") else ""
    sources = _to_destination(call, parsed, f"write{below}")
    call.files(sources, f"read{below}", dash=False)
    if not copies:
        call.files(sources, "write_below", dash=False)


def _to_destination(call: Call, parsed: Parsed, role: str) -> list[Word]:
    """Take in where the operands go, and return those that are sources. `role` is what is done there."""
    named = parsed.values("-t", "--target-directory")
    operands = parsed.operands
    if len(named) > 1:
        call.lose("it has more than one target directory")
        return operands
    before = takewhile(lambda word: word.literal != "--", call.words)
    if any(word.kind != "literal" and leads_with_dash(word) for word in before):
        call.unknown("write")  # it could become -t
    if not named and operands and not operands[-1].one_word:
        # It may be no word at all, or several of which only the last is the destination.
        call.files(operands, "write_below", dash=False)
        return operands
    *sources, last = [*operands, *named] or [Word("")]
    one = not named and len(sources) == 1 and sources[0].one_word
    # A directory gets something inside; anything else is written itself.
    is_itself, may_be = parsed.has("-T", "--no-target-directory"), one and not last.text.endswith("/")
    if is_itself or may_be:
        call.file(last, role, dash=False)
    for source in () if is_itself else sources:
        call.inside(last, source, role, possible=may_be)
    return sources


_CURL = """-0468afgGiIkLNOpRsSvZ -A: -b: -c:write -d: -D:write -e: -F: -H: -m: -o:write -r: -T: -u: -w: -x: -X: -z:
    --cacert=read --compressed --connect-timeout= --cookie= --cookie-jar=write --create-dirs --data= --data-binary=
    --data-raw= --data-urlencode= --dump-header=write --fail --fail-with-body --form= --get --globoff --header=
    --http1.1 --http2 --include --insecure --json= --limit-rate= --location --max-time= --no-progress-meter
    --output=write --progress-bar --proxy= --range= --referer= --remote-name --request= --retry= --retry-delay=
    --show-error --silent --tlsv1.2 --tlsv1.3 --upload-file= --url= --user= --user-agent= --verbose --write-out=
    --version --help"""
# How a URL begins that is surely no file, as file:///x is; of a literal one also a mere host.
_OF_A_HOST = re.compile(r"(https?|ftps?|wss?)://|[A-Za-z0-9._-]+(:[0-9]+)?[/?#]", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]+)?")
# What curl takes for data or for the name of a file that has them.
_MAY_READ = names("""-b -d -F -H -T -w --cookie --data --data-binary --data-urlencode --form --header --json
    --upload-file --write-out""")


def _curl(call: Call) -> None:
    parsed = read_options(call, _CURL, strict=True)
    for name, value in parsed.given:
        if name in _MAY_READ and value is not None:
            file = name in ("-T", "--upload-file") or (name in ("-b", "--cookie") and "=" not in value.text)
            if file or value.kind != "literal" or set("@<") & set(value.text) or "%output{" in value.text:
                call.lose(f"{name} may name a file")
    for url in [*parsed.operands, *parsed.values("--url")]:
        if not _OF_A_HOST.match(url.begins) and not _HOST.fullmatch(url.literal or ""):
            call.unknown("read")
        if parsed.has("-O", "--remote-name"):
            name = url.text.partition("?")[0].partition("#")[0].rpartition("/")[2]
            known_name = url.kind == "literal" and name and not set("[]{}%*\\") & set(name)
            call.file(Word(name) if known_name else Word("."), "write" if known_name else "write_below")
    if any("#" in target.text for target in parsed.values("-o", "--output")):
        call.unknown("write")  # #1 stands for a part of the URL


_LS = _uses(
    "list",
    """-1aAbBcCdFghHiklLmnNopqQrsStuUvxX -I: -R --all --almost-all --color[=] --directory --human-readable --recursive
    --reverse --sort= --full-time --time-style= --group-directories-first""",
    below="-R --recursive",
    here=True,
)
_GREP = """-abcEFGHhiIlLnoPqrRsTUvVwxyzZ# -A: -B: -C: -e: -f:read -m: --after-context= --before-context= --context[=]
    --color[=] --count --exclude= --exclude-dir= --exclude-from=read --extended-regexp --file=read
    --files-with-matches --files-without-match --fixed-strings --ignore-case --include= --invert-match --line-number
    --max-count= --no-filename --no-messages --only-matching --perl-regexp --quiet --recursive --regexp= --text
    --with-filename --word-regexp"""
_RG = """-aceFHhiIlLnNopPqsSuUvVwx0 -A: -B: -C: -e: -f:read -g: -j: -m: -M: -r: -t: -T: --after-context=
    --before-context= --color= --context= --count --file=read --files --files-with-matches --fixed-strings --glob=
    --hidden --ignore-case --ignore-file=read --json --line-number --max-count= --max-depth= --multiline --no-heading
    --no-ignore --only-matching --pcre2 --regexp= --smart-case --sort= --type= --type-not= --word-regexp"""

PROGRAMS: dict[str, Describe] = {
    "cat": _uses("read", "-AbeEnstTuv --number --show-all --help --version"),
    "tac": _uses("read", "-br -s:"),
    "head": _uses("read", "-qvz# -c: -n: --bytes= --lines= --quiet"),
    "tail": _uses("read", "-fFqvzr# -c: -n: -s: --bytes= --lines= --follow[=] --pid= --quiet --retry"),
    "nl": _uses("read", "-p -b: -n: -s: -v: -w:"),
    "od": _uses("read", "-abcdovx -A: -j: -N: -t: -w[]"),
    "cut": _uses("read", "-nsz -b: -c: -d: -f: --characters= --complement --delimiter= --fields= --output-delimiter="),
    "paste": _uses("read", "-sz -d: --delimiters= --serial"),
    "tr": _uses("", "-cCdst --complement --delete --squeeze-repeats"),
    "column": _uses("read", "-tx -c: -N: -o: -s: --table --separator= --json"),
    "cmp": _uses("read", "-bls -i: -n: --silent --quiet"),
    "diff": _uses(
        "read",
        """-abBdeiNpqrstTuwyZ# -C: -I: -L: -U: -W: -x: -X:read --brief --color[=] --exclude= --exclude-from=read
        --from-file=read_below --to-file=read_below --ignore-all-space --recursive --side-by-side --unified[=]
        --width= --new-file --label= --suppress-common-lines --strip-trailing-cr""",
        below="always",  # of a directory and a file it reads the file of that name in the directory
    ),
    "tee": _uses("write", "-aip --append --ignore-interrupts"),
    "base64": _uses("read", "-di -w: --decode --ignore-garbage --wrap="),
    **dict.fromkeys(("md5sum", "sha1sum", "sha256sum", "sha512sum", "b2sum"), _uses(
        "read", "-btwz -c:names --check=names --tag --zero"
    )),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _uses(
        "read", _GREP, below="-r -R --recursive", text="-e -f --regexp --file", here=True
    )),
    "rg": _uses("read", _RG, below="always", text="-e -f --regexp --file --files", here=True),
    "jq": _jq,
    "sort": _uses(
        "read",
        """-bcCdfghiMmnRrsuVz -k: -o:write -S: -t: -T:write_below --field-separator= --files0-from=names --key=
        --numeric-sort --output=write --random-source=read --reverse --temporary-directory=write_below --unique
        --human-numeric-sort --version-sort --parallel= --stable --zero-terminated""",
    ),
    "uniq": _input_and_output,
    "wc": _uses("read", "-clLmw --bytes --chars --files0-from=names --lines --words"),
    **dict.fromkeys(("ls", "dir", "vdir"), _LS),
    "du": _uses(
        "list",
        """-0abcDhHklLmPsSx -d: -t: -X:read --all --apparent-size --bytes --exclude= --exclude-from=read
        --files0-from=names --human-readable --max-depth= --one-file-system --summarize --total""",
        below="always", here=True,
    ),
    "df": _uses("list", "-ahHiklPTv -B: -t: -x: --human-readable --inodes --local --output[=] --total"),
    "stat": _uses("list", "-Lft -c: --dereference --format= --printf= --terse"),
    "file": _uses("read", "-0bEhiIkLnNprs -f:names -m:read --brief --files-from=names --mime --mime-type"),
    **dict.fromkeys(("readlink", "realpath"), _uses("list", "-eEfLmnPqsz --relative-to= --relative-base=")),
    **dict.fromkeys(("cp", "mv"), _cp_or_mv),
    "rm": _uses(
        "write", "-dfiIrRv --dir --force --interactive[=] --one-file-system --recursive --verbose",
        below="-r -R --recursive",
    ),
    "unlink": _uses("write", ""),
    "rmdir": _uses("write", "-pv --ignore-fail-on-non-empty --parents --verbose"),
    "mkdir": _uses("write", "-pv -m: --mode= --parents --verbose"),
    "truncate": _uses("write", "-co -r:list -s: --no-create --reference=list --size="),
    "touch": _uses("write", "-acfhm -d: -r:list -t: --date= --no-create --reference=list"),
    **dict.fromkeys(("chmod", "chown", "chgrp"), _uses(
        "write", "-cfhRv --changes --no-dereference --quiet --recursive --verbose", below="-R --recursive", text=""
    )),
    "curl": _curl,
    **dict.fromkeys(("test", "["), _test),
    "date": _uses("", "-ujR -I[] -d: -f:read -r:list -s: --date= --file=read --iso-8601[=] --reference=list --utc"),
    "cd": _uses("", "-LPe"),
}  # fmt: skip
