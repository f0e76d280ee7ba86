"""Programs that list, copy, move, make and remove files."""

from __future__ import annotations

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.options import Parsed
from gateway.policy.programs.paths import leads_with_dash, may_be_none
from gateway.policy.programs.plain import parsed_call, plain
from gateway.policy.words import Word

_LS = (
    "-1aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ -I: -T: -w: --all --almost-all --author --escape --block-size="
    " --ignore-backups --color[=] --colour[=] --directory --dired --classify[=] --file-type --format= --full-time"
    " --group-directories-first --no-group --human-readable --si --dereference-command-line --hide= --hyperlink[=]"
    " --indicator-style= --inode --ignore= --kibibytes --dereference --numeric-uid-gid --literal --hide-control-chars"
    " --show-control-chars --quote-name --quoting-style= --reverse --recursive --size --sort= --time= --time-style="
    " --tabsize= --width= --context --zero --dereference-command-line-symlink-to-dir"
)


def _ls(call: Call) -> None:
    parsed = parsed_call(call, _LS)
    _listing(call, parsed.operands, recursive=parsed.has("-R", "--recursive"))


def _tree(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-aACdDfFghilnNpqQrRsStuUvxJX -L: -I: -P: -o:write -H: -T: --noreport --dirsfirst --filesfirst --gitignore"
        " --prune --charset= --filelimit= --si --du --inodes --device --sort[=] --ignore-case --matchdirs --info",
    )
    _listing(call, parsed.operands, recursive=True)
    if parsed.has("-R"):
        call.here("write_below")  # with -o it writes 00Tree.html everywhere


def _du(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-0abcDhHklLmPsSx -B: -d: -t: -X:read --all --apparent-size --block-size= --bytes --total --max-depth="
        " --human-readable --inodes --si --summarize --threshold= --time[=] --time-style= --exclude="
        " --exclude-from=read --one-file-system --null --separate-dirs --dereference --files0-from=read",
    )
    _listing(call, parsed.operands, recursive=True)
    if parsed.has("--files0-from"):
        call.unknown("list")


def _listing(call: Call, operands: list[Word], *, recursive: bool) -> None:
    role = "list_below" if recursive else "list"
    call.files(operands, role, dash=False)
    if all(may_be_none(word) for word in operands):
        call.here(role)


def _cp(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-abdfHilLnpPrRsTuvxZ -S: -t: --archive --attributes-only --backup[=] --force --interactive --link"
        " --dereference --no-clobber --no-dereference --preserve[=] --no-preserve= --parents --recursive --reflink[=]"
        " --remove-destination --sparse= --strip-trailing-slashes --symbolic-link --suffix="
        " --target-directory= --no-target-directory --update[=] --verbose --one-file-system --copy-contents"
        " --keep-directory-symlink --debug --context[=]",
    )
    recursive = parsed.has("-r", "-R", "-a", "--recursive", "--archive")
    if parsed.has("--parents"):
        sources = _with_parents(call, parsed)
    else:
        sources = _to_destination(call, parsed, "write_below" if recursive else "write")
    call.files(sources, "read_below" if recursive else "read", dash=False)
    if parsed.has("-l", "--link", "-s", "--symbolic-link"):
        call.files(sources, "write_below" if recursive else "write", dash=False)  # the same file by another name
    _backups(call, parsed)


def _mv(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-bfinTuvZ -S: -t: --backup[=] --force --interactive --no-clobber --strip-trailing-slashes"
        " --suffix= --target-directory= --no-target-directory --update[=] --verbose --debug --no-copy"
        " --exchange --context[=]",
    )
    sources = _to_destination(call, parsed, "write_below")
    call.files(sources, "read_below", dash=False)
    call.files(sources, "write_below", dash=False)
    _backups(call, parsed)


def _install(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-bcCdDpTvZ -g: -m: -o: -S: -t: --backup[=] --compare --directory --group= --mode= --owner="
        " --preserve-timestamps --suffix= --target-directory= --no-target-directory --verbose",
        runs=True,  # -s runs strip
    )
    if parsed.has("-d", "--directory"):
        call.files(parsed.operands, "write", dash=False)
        return
    sources = _to_destination(call, parsed)
    call.files(sources, "read", dash=False)
    _backups(call, parsed)


def _ln(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-bdfFhinLPrsTv -S: -t: --backup[=] --directory --force --interactive --logical --no-dereference"
        " --physical --relative --symbolic --suffix= --target-directory= --no-target-directory --verbose",
    )
    operands = parsed.operands
    named = parsed.values("-t", "--target-directory")
    if named:
        places = named[:1]
        targets = _to_destination(call, parsed)
    elif len(operands) == 1 and operands[0].one_word:
        places = [Word(".")]
        targets = operands
    else:
        places = operands[-1:]
        targets = _to_destination(call, parsed)
    if places == [Word(".")]:
        call.here("write_below")
    for target in targets:
        for role in ("read_below", "write_below"):
            call.file(target, role, dash=False)
            if parsed.has("-s", "--symbolic"):
                _beside(call, target, places, role)
    _backups(call, parsed)


def _beside(call: Call, target: Word, places: list[Word], role: str) -> None:
    """Take in what a symbolic link's relative target means where the link is, or below it if that is a directory."""
    if target.text.startswith("/"):
        return
    for place in places:
        if target.kind != "literal" or place.kind != "literal":
            call.unknown(role)
            continue
        directory = place.text.rstrip("/").rpartition("/")[0]
        roots = [place.text, directory or ("/" if place.text.startswith("/") else ".")]
        for root in roots:
            call.file(Word(f"{root}/{target.text}"), role, dash=False)


def _to_destination(call: Call, parsed: Parsed, role: str = "write") -> list[Word]:
    """Take in where the operands go, and return those that are sources. `role` is what is done there."""
    named = parsed.values("-t", "--target-directory")
    operands = parsed.operands
    if len(named) > 1:
        call.refuse(f"{call.name} has more than one target directory")
        call.files(named, "write_below", dash=False)
        return operands
    literals = [word.literal for word in call.words]
    before = call.words[: literals.index("--")] if "--" in literals else call.words
    if any(word.kind != "literal" and leads_with_dash(word) for word in before):
        call.unknown("write")  # it could become -t
    if named:
        for directory in named:
            for source in operands:
                call.inside(directory, source, role, possible=False)
        return operands
    if not operands:
        return []
    *sources, last = operands
    if parsed.has("-T", "--no-target-directory"):
        call.file(last, role, dash=False)
    elif last.one_word and all(source.one_word for source in sources) and len(sources) == 1:
        # A directory gets something inside; anything else is written itself.
        into = last.text.endswith("/")
        if not into:
            call.file(last, role, dash=False)
        call.inside(last, sources[0], role, possible=not into)
    elif last.one_word:
        for source in sources:
            call.inside(last, source, role, possible=False)
    else:
        # It may be no word at all, or several of which only the last is the destination.
        call.files(operands, "write_below", dash=False)
        return operands
    return sources


def _with_parents(call: Call, parsed: Parsed) -> list[Word]:
    """Take in where cp --parents puts its sources, with the whole path as it is written, and return them."""
    named = parsed.values("-t", "--target-directory")
    targets = named or parsed.operands[-1:]
    sources = parsed.operands if named else parsed.operands[:-1]
    call.files(targets, "write_below", dash=False)
    if any(word.kind != "literal" or ".." in word.text.split("/") for word in parsed.operands):
        call.unknown("write")
    return sources


def _backups(call: Call, parsed: Parsed) -> None:
    """Take in the names under which files that are written over are kept. It comes after what is written."""
    suffixes = parsed.values("-S", "--suffix")
    if any(suffix.kind != "literal" or "/" in suffix.text for suffix in suffixes) or len(suffixes) > 1:
        call.refuse(f"{call.name} keeps old files under a name that is not known")
    elif suffixes or parsed.has("-b", "--backup"):
        call.backups("~", *(suffix.text for suffix in suffixes if suffix.text))


def _rm(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-dfiIrRvx --force --interactive[=] --one-file-system --no-preserve-root --preserve-root[=] --recursive --dir"
        " --verbose",
    )
    recursive = parsed.has("-r", "-R", "--recursive")
    call.files(parsed.operands, "write_below" if recursive else "write", dash=False)


def _changing(options: str, texts: int, *reference: str) -> Describe:
    """Return a description of chmod and its like: `texts` operands, then files; -R means all below them."""

    def describe(call: Call) -> None:
        words = call.words
        if call.name == "chmod":
            # A mode such as -x looks like an option; to chmod it is the mode.
            ends = next((place for place, word in enumerate(words) if word.text == "--"), len(words))
            call.words = tuple(
                Word("u" + word.text) if place < ends and _is_mode(word) else word for place, word in enumerate(words)
            )
        parsed = parsed_call(call, options)
        operands = parsed.operands
        if not parsed.has(*reference):
            first = operands[:texts]
            operands = operands if any(not word.one_word for word in first) else operands[texts:]
        call.files(operands, "write_below" if parsed.has("-R", "--recursive") else "write", dash=False)

    return describe


def _is_mode(word: Word) -> bool:
    return word.kind == "literal" and len(word.text) > 1 and word.text[0] == "-" and set(word.text[1:]) <= set("rwxXst")


def _touch(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-acfhm -d: -r:list -t: --date= --no-create --no-dereference --reference=list --time=",
    )
    call.files(parsed.operands, "write", dash=True)


def _mktemp(call: Call) -> None:
    parsed = parsed_call(call, "-dqut -p:write_below --directory --dry-run --quiet --suffix= --tmpdir[=]write_below")
    for value in parsed.values("--tmpdir"):
        call.file(value, "write_below")
    named = bool(parsed.values("-p", "--tmpdir"))
    if not named and (parsed.has("-t", "--tmpdir") or not parsed.operands):
        call.file(Word("/tmp"), "write_below")  # noqa: S108 - what mktemp uses by default
    if not parsed.has("-t", "-p", "--tmpdir"):
        for word in parsed.operands:
            known = word.text.partition("X")[0]
            call.file(Word(known + "**", "glob", prefix=known) if word.kind == "literal" else word, "write")


def _dd(call: Call) -> None:
    for word in call.words:
        name, equals, value = word.text.partition("=")
        if word.kind != "literal":
            call.unknown("read")
            call.unknown("write")
        elif not equals or name not in {
            "if",
            "of",
            "bs",
            "ibs",
            "obs",
            "cbs",
            "count",
            "skip",
            "seek",
            "iseek",
            "oseek",
            "conv",
            "iflag",
            "oflag",
            "status",
        }:
            call.refuse(f"dd is used with {word.text}, which is not known here")
        elif name in ("if", "of"):
            call.file(Word(value), "read" if name == "if" else "write", dash=False)


def _test(call: Call) -> None:
    words = call.words[:-1] if call.name == "[" else call.words
    for place, word in enumerate(words):
        before = words[place - 1].text if place else ""
        after = words[place + 1].text if place + 1 < len(words) else ""
        files = before in ("-nt", "-ot", "-ef") or after in ("-nt", "-ot", "-ef")
        if files or (len(before) == 2 and before[0] == "-" and before[1] in "abcdefghkLNOprsSuwxG"):
            if before == "-a" and place > 1:
                continue  # the binary -a, "and"
            call.file(word, "list", dash=False)


PROGRAMS: dict[str, Describe] = {
    "ls": _ls,
    "dir": _ls,
    "vdir": _ls,
    "tree": _tree,
    "du": _du,
    "df": plain(
        "-ahHiklPTv -B: -t: -x: --all --block-size= --human-readable --inodes --local --output[=] --portability --sync"
        " --total --type= --print-type --exclude-type=",
        "list",
    ),
    "stat": plain("-Lft -c: --dereference --file-system --format= --printf= --terse --cached=", "list"),
    "file": plain(
        "-0bdEhiIklLNnprsSvz -e: -F: -m:read -P: --brief --mime --mime-type --mime-encoding --dereference"
        " --no-dereference --separator= --uncompress --extension",
        "read",
        runs=True,
    ),
    "readlink": plain(
        "-efmnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent"
        " --verbose --zero",
        "list",
    ),
    "realpath": plain(
        "-eLmPqsz --canonicalize-existing --canonicalize-missing --logical --physical --quiet --relative-to="
        " --relative-base= --strip --no-symlinks --zero",
        "list",
    ),
    "cp": _cp,
    "mv": _mv,
    "install": _install,
    "ln": _ln,
    "link": _ln,
    "rm": _rm,
    "unlink": plain("", "write", dash=False),
    "shred": plain("-fuvxz -n: -s: --force --iterations= --size= --remove[=] --verbose --exact --zero", "write"),
    "rmdir": plain("-pv --ignore-fail-on-non-empty --parents --verbose", "write", dash=False),
    "mkdir": plain("-pv -m: --mode= --parents --verbose", "write", dash=False),
    "mkfifo": plain("-m: --mode=", "write", dash=False),
    "truncate": plain("-co -r:list -s: --no-create --io-blocks --reference=list --size=", "write", dash=False),
    "touch": _touch,
    "mktemp": _mktemp,
    "dd": _dd,
    "chmod": _changing(
        "-cfRv --changes --silent --quiet --verbose --no-preserve-root --preserve-root --reference=list --recursive",
        1,
        "--reference",
    ),
    **dict.fromkeys(
        ("chown", "chgrp"),
        _changing(
            "-cfhHLPRv --changes --silent --quiet --verbose --dereference --no-dereference --from= --no-preserve-root"
            " --preserve-root --reference=list --recursive",
            1,
            "--reference",
        ),
    ),
    "test": _test,
    "[": _test,
    "date": plain(
        "-ujR -I[] -d: -f:read -r:list -s: --date= --file=read --iso-8601[=] --rfc-email --rfc-3339= --reference=list"
        " --set= --utc --universal --debug --resolution"
    ),
}
