"""Programs that copy, move and remove files, and curl; and the programs of which it is not read which files they use.

The hosts of curl are not read here: each connection is judged when it is made.
"""

import re

from gateway.policy.programs.call import UNREAD_REASON, Access, Call, Describe, may_be_none
from gateway.policy.programs.options import after_first, read_options
from gateway.policy.words import Word, names

_KINDS: dict[Access, frozenset[str]] = {
    "read": names("""base64 cat cmp column cut date diff egrep fgrep grep head jq md5sum nl od paste rg sha1sum
        sha256sum sha512sum b2sum tac tail wc"""),
    "list": names("df dir ls readlink realpath stat vdir"),
    "write": names("chgrp chmod chown mkdir rm rmdir tee touch truncate unlink"),
}
"""Programs that do this with the files that they are given, and nothing else with any file."""
_OPTIONS = {
    "cat": "-AbeEnstTuv",
    "grep": "-cEFhHilLnoPqrRsvwx -A: -B: -C: -m: --include= --exclude= --exclude-dir=",
    "head": "-qv# -c: -n:",
    "ls": "-1aAcdFghlrRStu",
    "mkdir": "-pv -m:",
    "rm": "-dfiIrRv --force --recursive",
    "tail": "-fFqv# -c: -n:",
    "tee": "-ai",
    "touch": "-acm",
    "wc": "-clLmw",
}
"""Of the most common ones the options that name no file; of the others no option is known."""
_NO_OPTION_NAMES_A_FILE = frozenset({"cat", "head", "ls", "tail"})
# With it grep has no pattern among its operands.
_PATTERN = re.compile(r"-[A-Za-z]*[ef]|--(file|regexp)")
UNREAD = names("""ar aria2c axel base32 bsdtar bunzip2 bzcat bzip2 cksum comm cpio csplit dd du expand file fmt fold
    ftp gtar gunzip gzcat gzip hd hexdump iconv install join less lftp link ln lzma mkfifo mktemp more nc ncat
    netcat ninja patch pax ping pr rev rgrep rsync scp sftp sha224sum sha384sum shred shuf socat split sqlite3 ssh
    strings sum tar telnet tree tsort unexpand unlzma unxz unzip unzstd wget xxd xz xzcat zcat zip zipinfo zstd
    zstdcat""")
"""Programs that use files in ways that are not read from a line."""


def _of_one_kind(call: Call) -> None:
    kind = next(kind for kind, programs in _KINDS.items() if call.name in programs)
    if call.name in _OPTIONS:
        harmless = call.name in _NO_OPTION_NAMES_A_FILE
        operands = read_options(call, _OPTIONS[call.name], kind, harmless=harmless).operands
    else:
        call.lose(UNREAD_REASON, kind)
        operands = _without_options(call)
    if call.name in ("egrep", "fgrep", "grep", "rg") and not any(_PATTERN.match(word.text) for word in call.words):
        operands = after_first(operands)[1]
    call.files(operands, kind, below=call.goes_below, dash=kind == "read")
    if (call.goes_below or kind == "list") and all(may_be_none(word) for word in operands):
        call.file(Word("."), kind, below=call.goes_below)


def _without_options(call: Call) -> list[Word]:
    return [word for word in call.words if not word.text.startswith("-")]


def unread(call: Call) -> None:
    """Take in a call that may use any file."""
    call.lose(UNREAD_REASON)


def _uniq(call: Call) -> None:
    unread(call)
    call.files(_without_options(call), "read")
    call.files(_without_options(call), "write")


def _test(call: Call) -> None:
    words = call.words[:-1] if call.name == "[" else call.words
    for before, word in zip((None, *words), words, strict=False):
        option = before.text if before is not None else ""
        if len(option) == 2 and option[0] == "-" and option[1] in "abcdefghkLNOprsSuwxG":
            call.file(word, "list", dash=False)
    if any(word.text in ("-nt", "-ot", "-ef") for word in words):
        call.files(words, "list", dash=False)


def _sort(call: Call) -> None:
    parsed = read_options(
        call,
        """-bcCdfghiMmnRrsuVz -k: -o: -S: -t: -T: --field-separator= --human-numeric-sort --key= --numeric-sort
        --output= --reverse --unique --version-sort""",
    )
    call.files(parsed.operands, "read")
    call.files(parsed.values("-o", "--output"), "write")
    call.files(parsed.values("-T"), "write", below=True)


def _cp_or_mv(call: Call) -> None:
    copies = call.name == "cp"
    options = "-finTuv -t: --force --interactive --no-clobber --no-target-directory --target-directory= --verbose"
    parsed = read_options(call, f"{options} -aHLpPrR --archive --preserve[=] --recursive" if copies else options)
    deep = not copies or parsed.has("-r", "-R", "-a", "--recursive", "--archive")
    named = parsed.values("-t", "--target-directory")
    *sources, last = [*parsed.operands, *(Word(f"{to.text}/", to.kind) for to in named[:1])] or [Word("")]
    if len(named) > 1 or not last.one_word:
        # It may be no word at all, or several of which only the last is the destination.
        call.lose(UNREAD_REASON)
        sources = [*sources, last]
        call.files(sources, "write", below=True, dash=False)
    call.files(sources, "read", below=deep, dash=False)
    if not copies:
        call.files(sources, "write", below=True, dash=False)
    _to_destination(call, sources, last, below=deep, itself=parsed.has("-T", "--no-target-directory"))


def _to_destination(call: Call, sources: list[Word], last: Word, *, below: bool, itself: bool) -> None:
    """Take in where sources go: a directory gets something inside, and anything else is written itself."""
    may_be = len(sources) == 1 and sources[0].one_word and not last.text.endswith("/")
    if itself or may_be or last.kind != "literal":
        call.file(last, "write", below=below, dash=False)
    for source in () if itself or last.kind != "literal" else sources:
        name = source.text.rstrip("/").rpartition("/")[2]
        # Of a pattern the last part says the name, unless a bracket goes over slashes.
        wild = source.kind == "glob" and "]" not in name and not set("*?[") & set(last.text)
        if not (source.kind == "literal" or wild) or name in ("", ".", ".."):
            call.file(last, "write", below=True, dash=False, possible=may_be)
        else:
            call.file(Word(f"{last.text}/{name}", source.kind), "write", below=below, dash=False, possible=may_be)


_CURL = """-0468afgGiIkLNOpRsSvZ -A: -b: -c: -d: -D: -e: -F: -H: -m: -o: -r: -T: -u: -w: -x: -X: -z: --compressed
    --connect-timeout= --create-dirs --data= --data-raw= --data-urlencode= --fail --fail-with-body --get --globoff
    --header= --http1.1 --http2 --include --insecure --json= --location --max-time= --output= --progress-bar --proxy=
    --range= --remote-name --request= --retry= --retry-delay= --show-error --silent --url= --user= --user-agent=
    --verbose --version --help"""
# How a URL begins that is surely no file, as file:///x is; of a literal one also a mere host.
_OF_A_HOST = re.compile(r"(https?|ftps?|wss?)://|[A-Za-z0-9._-]+(:[0-9]+)?[/?#]", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]+)?")
_OUTPUTS = ("-c", "-D", "-o", "--output")
# What curl takes for data or for the name of a file that has them.
_MAY_READ = names("-b -d -F -H -T -w --data --data-urlencode --header --json")


def _curl(call: Call) -> None:
    parsed = read_options(call, _CURL)
    call.files(parsed.values(*_OUTPUTS), "write")
    for name, value in parsed.given:
        if name in _MAY_READ and value is not None:
            file = name == "-T" or (name == "-b" and "=" not in value.text)
            if file or value.kind != "literal" or set("@<") & set(value.text) or "%output{" in value.text:
                call.lose(f"{name} may name a file")
    for url in [*parsed.operands, *parsed.values("--url")]:
        if not _OF_A_HOST.match(url.begins) and not _HOST.fullmatch(url.literal or ""):
            call.lose(f"{url.text} may be a file", "read")
    if parsed.has("-O", "--remote-name"):
        call.file(Word("."), "write", below=True)
    if any("#" in target.text for target in parsed.values(*_OUTPUTS)):
        call.lose("# may stand for a part of the URL", "write")


PROGRAMS: dict[str, Describe] = {
    **dict.fromkeys(UNREAD, unread),
    **dict.fromkeys(frozenset().union(*_KINDS.values()), _of_one_kind),
    **dict.fromkeys(("cp", "mv"), _cp_or_mv),
    "sort": _sort,
    "uniq": _uniq,
    "curl": _curl,
    **dict.fromkeys(("test", "["), _test),
}
