"""Programs that pack and unpack."""

from __future__ import annotations

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.options import compile_options, read_options
from gateway.policy.programs.paths import leads_with_dash
from gateway.policy.programs.plain import parsed_call, refuse_response_files, take_values
from gateway.policy.words import Word

_TAR = (
    "-AcdrtuxWkOpmUSsvwhljzJZaoPBniR -# -f: -C: -X:read -T: -g:write -b: -H: -N: -K: -V:"
    " --create --extract --get --list --append --update --diff --compare --catenate --concatenate --delete --file="
    " --directory= --exclude= --exclude-from=read --exclude-vcs --exclude-vcs-ignores --exclude-caches --files-from="
    " --gzip --gunzip --ungzip --bzip2 --xz --lzma --zstd --lzip --auto-compress --no-auto-compress --verbose"
    " --strip-components= --transform= --xform= --keep-old-files --skip-old-files --overwrite --to-stdout"
    " --preserve-permissions --same-permissions --no-same-owner --same-owner --no-same-permissions --owner= --group="
    " --mode= --mtime= --sort= --numeric-owner --wildcards --no-wildcards --anchored --no-anchored --totals"
    " --dereference --one-file-system --no-recursion --touch --format= --null --remove-files --ignore-failed-read"
    " --verify --label= --posix --warning= --no-xattrs --xattrs --no-acls --acls --listed-incremental=write"
    " --absolute-names --show-transformed-names --utc --full-time --recursion --sparse --ignore-case --no-selinux"
)
_ZIPS = (
    "-acdfhklLnNqrtvV123456789 -S: --stdout --to-stdout --decompress --uncompress --force --keep --list --no-name"
    " --name --quiet --recursive --suffix= --test --verbose --fast --best --rsyncable"
)


def _tar(call: Call) -> None:
    words = list(call.words)
    if words and words[0].kind == "literal" and words[0].text and not words[0].text.startswith("-"):
        words = _old_style(call, words)
    options = compile_options(_TAR)
    # --to-command, --checkpoint-action, -I, -F and more run programs; -M and -L ask for commands at the end of a tape.
    parsed = read_options(call, options, words, runs=True)
    take_values(call, options, parsed)
    if parsed.has("-T", "--files-from"):
        call.unknown("read")
        call.unknown("write")
        call.refuse("tar takes names and options out of a file")
    if parsed.has("-P", "--absolute-names", "--transform", "--xform", "-K") and _extracts(parsed.given):
        call.unknown("write")
    archives = parsed.values("-f", "--file")
    for archive in archives:
        if archive.kind == "literal" and ":" in archive.text:
            call.refuse("tar takes a name with a colon for one on another host")
    creates = parsed.has(
        "-c", "--create", "-r", "--append", "-u", "--update", "-A", "--catenate", "--concatenate", "--delete"
    )
    if not archives and not creates and not parsed.has("-t", "-x", "--list", "--extract", "--get"):
        call.refuse("tar is used in a form that is not understood")
    call.files(archives, "write" if creates else "read")
    if parsed.has("-r", "--append", "-u", "--update", "-A", "--catenate", "--concatenate", "--delete"):
        call.files(archives, "read")
    _members(call, parsed.given, parsed.operands, creates=creates)


def _old_style(call: Call, words: list[Word]) -> list[Word]:
    """Return `tar xzf a.tgz` written with dashes: arguments follow in the order of their letters."""
    known = compile_options(_TAR).known
    rest = words[1:]
    written: list[Word] = []
    for letter in words[0].text:
        written.append(Word("-" + letter))
        option = known.get("-" + letter)
        if option is not None and option.takes == "word":
            if not rest:
                call.refuse(f"tar {letter} has no argument")
                break
            written.append(rest.pop(0))
    return [*written, *rest]


def _extracts(given: list[tuple[str, Word | None]]) -> bool:
    return any(name in ("-x", "--extract", "--get") for name, _ in given)


def _members(call: Call, given: list[tuple[str, Word | None]], operands: list[Word], *, creates: bool) -> None:
    """Take in the files that go in or come out, seen from the directories of -C."""
    directories = [value for name, value in given if name in ("-C", "--directory") and value is not None]
    extracts = _extracts(given) and not any(name in ("-O", "--to-stdout") for name, _ in given)
    if extracts:
        call.files(directories, "write_below", dash=False)
        if not directories:
            call.here("write_below")
    if not creates and not any(name in ("-d", "--diff", "--compare") for name, _ in given):
        return
    roles = ["read_below"]
    if any(name == "--remove-files" for name, _ in given):
        roles.append("write_below")
    if len(directories) > 1:
        # -C holds for what follows it, and a second one is seen from the first.
        for role in roles:
            call.files(directories, role, dash=False)
            call.files(operands, role, dash=False)
            call.unknown(role)
        return
    for role in roles:
        for word in operands:
            call.file(word, role, dash=False)
            for directory in directories:  # one at most; the words before it are not seen from there
                if word.kind == "literal" and not word.text.startswith("/") and directory.kind == "literal":
                    call.file(Word(f"{directory.text}/{word.text}"), role, dash=False)
                elif not word.text.startswith("/"):
                    call.file(directory, role, dash=False)
                    call.unknown(role)


def _zip(call: Call) -> None:
    call.expands = True
    parsed = parsed_call(
        call,
        "-0123456789DFjJklmoqrSuvXyfxi -b:write_below -n: -t: -P: --recurse-paths --quiet --junk-paths --verbose --move"
        " --freshen --update --symlinks --no-dir-entries --no-extra",
        runs=True,  # -T -TT, --unzip-command
    )
    # -x and -i take lists of patterns; they cannot be distinguished from files here, and would count as files.
    if not parsed.operands:
        return
    archive, *members = parsed.operands
    call.file(archive, "write")
    if archive.kind == "literal":
        if "." not in archive.text.rpartition("/")[2]:
            call.file(Word(archive.text + ".zip"), "write")
    else:
        call.unknown("write")
    call.files(members, "read_below" if parsed.has("-r", "--recurse-paths") else "read")
    if parsed.has("-m", "--move"):
        call.files(members, "write_below")
    if parsed.has("-r", "--recurse-paths") and not members:
        call.here("read_below")


def _unzip(call: Call) -> None:
    call.expands = True
    parsed = parsed_call(call, "-aACcfjKlLMnopqtTuUvVxXzZ12hms -d: -P:")
    archives = parsed.operands[:1]
    for archive in archives:
        call.file(archive, "read")
        if archive.kind == "literal":
            call.file(Word(archive.text + ".zip"), "read")
    if any(word.kind != "literal" for word in parsed.operands):
        call.unknown("read")
    if parsed.has("-l", "-p", "-c", "-t", "-v", "-z", "-Z"):
        return
    directories = parsed.values("-d")
    call.files(directories, "write_below", dash=False)
    if not directories:
        call.here("write_below")


def _squeeze(*endings: str, packs: bool) -> Describe:
    """Return a description of gzip and its like: a file is put in place of another whose name ends otherwise."""

    def describe(call: Call) -> None:
        options = _ZIPS
        if endings[0] == ".zst":
            options = (
                "-cdfhklqrtvVz123456789 -# -D:read -T[] -M[] -o:write --stdout --decompress --uncompress --force --keep"
                " --list --quiet --test --verbose --rm --fast[=] --ultra --long[=] --threads= --no-progress --adaptive"
                " --rsyncable --check --no-check --compress --sparse --no-sparse"
            )
        elif endings[0] == ".xz":
            options = (
                "-cdefhHklqQtvVz0123456789 -C: -F: -M: -S: -T: --stdout --to-stdout --decompress --uncompress --force"
                " --keep --list --quiet --test --verbose --suffix= --threads= --extreme --compress --memlimit="
                " --memory= --format= --check= --no-warn --robot --best --fast --no-sparse"
            )
        elif endings[0] == ".bz2":
            options = (
                "-cdfhkLqstvVz123456789 --stdout --decompress --compress --force --keep --quiet --test --verbose"
                " --small --fast --best"
            )
        parsed = parsed_call(call, options)
        if parsed.has("-c", "--stdout", "--to-stdout", "-l", "--list", "-t", "--test"):
            for word in parsed.operands:
                _readable(call, word, endings)
        else:
            _replaced(call, parsed.operands, parsed.has("-r", "--recursive"), endings)
        if parsed.has("-S", "--suffix"):
            call.refuse(f"{call.name} is used with an ending of its own")

    def listing(call: Call) -> None:
        parsed = parsed_call(call, _ZIPS)
        for word in parsed.operands:
            _readable(call, word, endings)

    return describe if packs else listing


def _readable(call: Call, word: Word, endings: tuple[str, ...]) -> None:
    call.file(word, "read")
    if word.kind == "literal" and word.text != "-":
        for ending in endings:
            call.file(Word(word.text + ending), "read")


def _replaced(call: Call, words: list[Word], recursive: bool, endings: tuple[str, ...]) -> None:
    for word in words:
        if word.kind == "literal" and word.text == "-":
            continue
        _readable(call, word, endings)
        call.file(word, "write_below" if recursive else "write")
        if recursive:
            call.file(word, "read_below")
        if word.kind != "literal":
            continue
        for ending in endings:
            call.file(Word(word.text + ending), "write")
            stem = word.text.removesuffix(ending)
            if stem != word.text:
                call.file(Word(stem), "write")
        if word.text.endswith((".tgz", ".tbz2", ".tbz", ".txz", ".taz", ".tzst", ".tlz")):
            call.file(Word(word.text.rpartition(".")[0] + ".tar"), "write")


def _ar(call: Call) -> None:
    words = call.words
    refuse_response_files(call)
    if len(words) < 2 or any(word.kind != "literal" for word in words[:2]):
        call.refuse("ar is used in a form that is not understood")
        return
    keys = words[0].text.removeprefix("-")
    if not keys or not set(keys) <= set("dmpqrtxcDfiNoPsSTuUv") or set(keys) & set("abN"):
        call.refuse(f"ar is used with {words[0].text}, which is not known here")
    call.file(words[1], "read")
    if set(keys) & set("dmqrs"):
        call.file(words[1], "write")
    if "x" in keys:
        call.here("write_below")
    adds = bool(set(keys) & set("qr"))
    for word in words[2:]:
        if adds:
            call.file(word, "read")
        if leads_with_dash(word) and word.kind != "literal":
            call.unknown("read")


def _cpio(call: Call) -> None:
    call.refuse("cpio takes the names of files from its input")


PROGRAMS: dict[str, Describe] = {
    "tar": _tar,
    "gtar": _tar,
    "bsdtar": lambda call: call.refuse("bsdtar is not known here; write tar"),
    "zip": _zip,
    "unzip": _unzip,
    "zipinfo": _unzip,
    **dict.fromkeys(("gzip", "gunzip"), _squeeze(".gz", ".z", ".Z", packs=True)),
    **dict.fromkeys(("bzip2", "bunzip2"), _squeeze(".bz2", packs=True)),
    **dict.fromkeys(("xz", "unxz", "lzma", "unlzma"), _squeeze(".xz", ".lzma", packs=True)),
    **dict.fromkeys(("zstd", "unzstd"), _squeeze(".zst", packs=True)),
    **dict.fromkeys(("zcat", "gzcat"), _squeeze(".gz", ".z", ".Z", packs=False)),
    "bzcat": _squeeze(".bz2", packs=False),
    "xzcat": _squeeze(".xz", ".lzma", packs=False),
    "zstdcat": _squeeze(".zst", packs=False),
    "ar": _ar,
    "cpio": _cpio,
    "pax": _cpio,
}
