"""Programs that read text: the filters of coreutils and their like."""

from __future__ import annotations

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.plain import after_text, parsed_call, plain, refuse_response_files
from gateway.policy.words import Word

_HELP = " --help --version"
_SUMS = "-bctwz -l: --binary --check --length= --quiet --status --strict --tag --text --warn --ignore-missing --zero"
_LIMIT_COMPARED = 4  # more than the two that diff takes, should some turn out to be nothing
_ENCODES = "-di -w: --decode --ignore-garbage --wrap="


def _uniq(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-cdDizu -# -f: -s: -w: --count --repeated --all-repeated[=] --skip-fields= --group[=] --ignore-case"
        " --skip-chars= --unique --zero-terminated --check-chars=",
    )
    _input_and_output(call, parsed.operands)


def _xxd(call: Call) -> None:
    # Its long options have one dash: what starts like a cluster and is none of these is refused.
    parsed = parsed_call(call, "-abCdEehipruv -c: -g: -l: -n: -o: -s: -R:")
    _input_and_output(call, parsed.operands)


def _input_and_output(call: Call, operands: list[Word]) -> None:
    """Take in the operands of `program [INPUT [OUTPUT]]`."""
    for place, word in enumerate(operands):
        call.file(word, "read")
        if place or not word.one_word:
            call.file(word, "write")


def _sums(call: Call) -> None:
    parsed = parsed_call(call, _SUMS)
    call.files(parsed.operands, "read")
    if parsed.has("-c", "--check"):
        call.unknown("read")  # the files that the list names


def _wc(call: Call) -> None:
    parsed = parsed_call(call, "-clLmw --bytes --chars --lines --max-line-length --words --total= --files0-from=read")
    call.files(parsed.operands, "read")
    if parsed.has("--files0-from"):
        call.unknown("read")


def _sort(call: Call) -> None:
    options = (
        "-bcCdfghiMmnRrsuVz -k: -o:write -S: -t: -T:write --ignore-leading-blanks --dictionary-order --ignore-case"
        " --general-numeric-sort --ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort"
        " --random-source=read --reverse --sort= --version-sort --batch-size= --check[=] --debug --key= --merge"
        " --output=write --stable --buffer-size= --field-separator= --temporary-directory=write --parallel= --unique"
        " --zero-terminated --files0-from=read"
    )
    parsed = parsed_call(call, options, runs=True)  # --compress-program
    call.files(parsed.operands, "read")
    if parsed.has("--files0-from"):
        call.unknown("read")


def _grep(call: Call) -> None:
    options = (
        "-abcEFGHhiIlLnoPqrRsTUvVwxyzZ -# -A: -B: -C: -D: -d: -e: -f:read -m: --after-context= --before-context="
        " --context[=] --extended-regexp --fixed-strings --basic-regexp --perl-regexp --regexp= --file=read"
        " --ignore-case --no-ignore-case --invert-match --word-regexp --line-regexp --count --color[=] --colour[=]"
        " --files-without-match --files-with-matches --max-count= --only-matching --quiet --silent --no-messages"
        " --byte-offset --with-filename --no-filename --label= --line-number --initial-tab --null --text"
        " --binary-files= --devices= --directories= --exclude= --exclude-from=read --exclude-dir= --include="
        " --recursive --dereference-recursive --line-buffered --binary --null-data --unix-byte-offsets"
    )
    parsed = parsed_call(call, options + _HELP)
    patterned = parsed.has("-e", "-f", "--regexp", "--file")
    files = parsed.operands if patterned else after_text(parsed.operands)
    recursive = call.name == "rgrep" or parsed.has("-r", "-R", "--recursive", "--dereference-recursive")
    recursive = recursive or any(value.text == "recurse" for value in parsed.values("-d", "--directories"))
    _search(call, files, recursive=recursive)


def _ripgrep(call: Call) -> None:
    options = (
        "-aceFHhiIlLnNoPpqsSuUvVwxz0. -A: -B: -C: -d: -E: -e: -f:read -g: -j: -m: -M: -r: -t: -T: --after-context="
        " --before-context= --context= --regexp= --file=read --glob= --iglob= --type= --type-not= --max-count="
        " --max-depth= --replace= --color= --colors= --count --count-matches --files --files-with-matches"
        " --files-without-match --fixed-strings --follow --hidden --no-hidden --ignore-case --smart-case"
        " --case-sensitive --invert-match --json --line-number --no-line-number --multiline --multiline-dotall"
        " --no-heading --heading --no-ignore --no-ignore-vcs --no-filename --with-filename --null --only-matching"
        " --pcre2 --pretty --quiet --sort= --sortr= --stats --text --trim --type-list --unrestricted --vimgrep"
        " --word-regexp --line-regexp --passthru --column --no-messages --ignore-file=read --max-filesize="
        " --max-columns= --threads= --encoding= --no-config --crlf --one-file-system --byte-offset"
    )
    parsed = parsed_call(call, options + _HELP, runs=True)  # --pre, --hostname-bin
    if parsed.has("-e", "-f", "--regexp", "--file", "--files", "--type-list"):
        files = parsed.operands
    else:
        files = after_text(parsed.operands)
    _search(call, files, recursive=True)


def _search(call: Call, files: list[Word], *, recursive: bool) -> None:
    call.files(files, "read_below" if recursive else "read")
    if recursive and not files:
        call.here("read_below")


def _jq(call: Call) -> None:
    words: list[Word] = []
    position = 0
    while position < len(call.words):
        name = call.words[position].literal
        if name in ("--arg", "--argjson", "--slurpfile", "--rawfile"):
            values = call.words[position + 1 : position + 3]
            if len(values) < 2 or not all(value.one_word for value in values):
                call.refuse(f"jq {name} is used in a form that is not understood")
            elif name in ("--slurpfile", "--rawfile"):
                call.file(values[1], "read", dash=False)
            position += 2
        else:
            words.append(call.words[position])
        position += 1
    call.words = tuple(words)
    parsed = parsed_call(
        call,
        "-acCeMnrRsSjV --raw-output --compact-output --null-input --raw-input --slurp --sort-keys --color-output"
        " --monochrome-output --tab --indent= --exit-status --join-output --ascii-output --seq --stream --unbuffered"
        " --args --jsonargs --raw-output0" + _HELP,
    )
    call.files(after_text(parsed.operands), "" if parsed.has("--args", "--jsonargs") else "read")
    if any(
        "import" in word.text or "include" in word.text or "input_filename" in word.text for word in parsed.operands
    ):
        call.unknown("read")


def _strings(call: Call) -> None:
    refuse_response_files(call)
    parsed = parsed_call(
        call, "-adfow -# -n: -t: -e: -T: -s: --all --data --print-file-name --bytes= --radix= --encoding="
    )
    call.files(parsed.operands, "read")


def _split(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-deux -# -a: -b: -C: -l: -n: -t: --suffix-length= --additional-suffix= --bytes= --line-bytes="
        " --numeric-suffixes[=] --hex-suffixes[=] --elide-empty-files --lines= --number= --separator= --unbuffered"
        " --verbose",
        runs=True,  # --filter
    )
    call.files(parsed.operands[:1], "read")
    _prefixed(call, parsed.operands[1:] or [Word("x")])
    if any(not word.one_word for word in parsed.operands):
        call.unknown("write")


def _csplit(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-kqsz -b: -f: -n: --suffix-format= --prefix= --keep-files --suppress-matched --digits= --quiet --silent"
        " --elide-empty-files",
    )
    call.files(parsed.operands[:1], "read")
    for suffix in parsed.values("-b", "--suffix-format"):
        if suffix.kind != "literal" or ".." in suffix.text:
            call.refuse("csplit writes files whose names are not known")
    _prefixed(call, parsed.values("-f", "--prefix") or [Word("xx")])


def _prefixed(call: Call, prefixes: list[Word]) -> None:
    """Take in files of which the beginning of the name is known."""
    for prefix in prefixes:
        known = prefix.kind == "literal"
        call.file(Word(prefix.text + "**", "glob", prefix=prefix.text) if known else prefix, "write")


def _patch(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-beEflnNRstuc -p: -F: -i:read -d: -o:write -r:write -z: -B: -Y: -V: -D: -g: --batch --force --forward"
        " --strip= --fuzz= --input=read --output=write --reject-file=write --reverse --dry-run --backup --silent"
        " --quiet --ignore-whitespace --unified --context --normal --remove-empty-files --verbose --binary"
        " --no-backup-if-mismatch --suffix= --merge[=]",
        runs=True,  # --ed, --directory
    )
    if parsed.has("-d", "-B", "-e"):
        call.refuse("patch is used with -d, -B or -e; change the directory instead")
    if parsed.has("-z", "-Y", "-V", "--suffix"):
        call.refuse("patch keeps old files under a name that is not known")
    call.files(parsed.operands[:1], "read")
    call.files(parsed.operands[:1], "write")
    for word in parsed.operands[:1]:
        for ending in (".orig", ".rej"):
            if word.kind == "literal":
                call.file(Word(word.text + ending), "write")
    call.files(parsed.operands[1:], "read")
    if not parsed.has("--dry-run"):
        call.here("write_below")  # what the patch names


def _iconv(call: Call) -> None:
    parsed = parsed_call(call, "-cls -f: -t: -o:write --from-code= --to-code= --output=write --list --silent --verbose")
    call.files(parsed.operands, "read")


def _shuf(call: Call) -> None:
    parsed = parsed_call(
        call,
        "-erz -i: -n: -o:write --echo --input-range= --head-count= --output=write --random-source=read --repeat"
        " --zero-terminated",
    )
    call.files(parsed.operands, "" if parsed.has("-e", "--echo") else "read")


def _diff(call: Call) -> None:
    options = (
        "-abBcdefilnNpqrstTuvwyZ -# -C: -D: -F: -I: -L: -S: -U: -W: -x: -X:read --normal --brief --context[=]"
        " --unified[=] --ed --rcs --side-by-side --width= --left-column --suppress-common-lines --show-c-function"
        " --show-function-line= --label= --expand-tabs --initial-tab --tabsize= --recursive --no-dereference"
        " --new-file --unidirectional-new-file --ignore-file-name-case --exclude= --exclude-from=read"
        " --starting-file= --ignore-case --ignore-tab-expansion --ignore-trailing-space --ignore-space-change"
        " --ignore-all-space --ignore-blank-lines --ignore-matching-lines= --text --strip-trailing-cr --ifdef="
        " --minimal --horizon-lines= --speed-large-files --color[=] --palette= --report-identical-files"
        " --from-file=read_below --to-file=read_below"
    )
    # Of a directory and a file the file of that name in the directory is read.
    parsed = parsed_call(call, options, runs=True)  # -l runs pr
    if parsed.has("-r", "--recursive", "--from-file", "--to-file"):
        call.files(parsed.operands, "read_below")
        return
    call.files(parsed.operands, "read")
    if len(parsed.operands) > _LIMIT_COMPARED:
        call.refuse("diff compares two files")
        return
    for directory in parsed.operands:
        for other in parsed.operands:
            if other is not directory:
                call.inside(directory, other, "read", possible=True)


PROGRAMS: dict[str, Describe] = {
    "cat": plain(
        "-AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting"
        + _HELP,
        "read",
    ),
    "tac": plain("-br -s: --before --regex --separator=", "read"),
    "head": plain("-qvz -# -c: -n: --bytes= --lines= --quiet --silent --verbose --zero-terminated", "read"),
    "tail": plain(
        "-fFqvzr -# -c: -n: -s: --bytes= --lines= --follow[=] --pid= --quiet --silent --retry --sleep-interval="
        " --verbose --zero-terminated --max-unchanged-stats=",
        "read",
    ),
    "nl": plain(
        "-p -b: -d: -f: -h: -i: -l: -n: -s: -v: -w: --body-numbering= --section-delimiter= --footer-numbering="
        " --header-numbering= --line-increment= --join-blank-lines= --number-format= --no-renumber"
        " --number-separator= --starting-line-number= --number-width=",
        "read",
    ),
    "od": plain(
        "-abcdDefFhHiIlLoOsvxX -A: -j: -N: -S: -t: -w[] --address-radix= --skip-bytes= --read-bytes= --strings[=]"
        " --format= --output-duplicates --width[=] --traditional --endian=",
        "read",
    ),
    "hexdump": plain("-bcCdovxX -e: -f:read -n: -s: -L[] --canonical --length= --skip= --no-squeezing", "read"),
    "hd": plain("-bcCdovxX -e: -f:read -n: -s: -L[]", "read"),
    "strings": _strings,
    "cut": plain(
        "-nsz -b: -c: -d: -f: --bytes= --characters= --delimiter= --fields= --complement --only-delimited"
        " --output-delimiter= --zero-terminated",
        "read",
    ),
    "paste": plain("-sz -d: --delimiters= --serial --zero-terminated", "read"),
    "tr": plain("-cCdst --complement --delete --squeeze-repeats --truncate-set1"),
    "join": plain(
        "-iz -a: -e: -j: -o: -t: -v: -1: -2: --ignore-case --check-order --nocheck-order --header --zero-terminated",
        "read",
    ),
    "comm": plain(
        "-123z --check-order --nocheck-order --output-delimiter= --total --zero-terminated",
        "read",
    ),
    "fold": plain("-bs -# -w: --bytes --spaces --width=", "read"),
    "fmt": plain(
        "-cstu -# -p: -w: -g: --crown-margin --prefix= --split-only --tagged-paragraph --uniform-spacing"
        " --width= --goal=",
        "read",
    ),
    "expand": plain("-i -# -t: --initial --tabs=", "read"),
    "unexpand": plain("-a -# -t: --all --first-only --tabs=", "read"),
    "column": plain("-deJLrtx -c: -E: -H: -l: -N: -o: -O: -R: -s: -T: -W: --table --separator= --json", "read"),
    "rev": plain("", "read"),
    "tsort": plain("", "read"),
    "pr": plain("-acdDfFJmrtTv -# -h: -l: -o: -w: -W: -N: --columns= --length= --header= --width=", "read"),
    "cmp": plain(
        "-bls -i: -n: --print-bytes --ignore-initial= --verbose --bytes= --quiet --silent",
        "read",
    ),
    "diff": _diff,
    "tee": plain("-aip --append --ignore-interrupts --output-error[=]", "write"),
    "base64": plain(_ENCODES, "read"),
    "base32": plain(_ENCODES, "read"),
    "basenc": plain(_ENCODES + " --base64 --base64url --base32 --base32hex --base16 --z85", "read"),
    "cksum": plain("-a: --algorithm= --tag --untagged --raw --base64 -z --zero --length= -l:", "read"),
    "sum": plain("-rs --sysv", "read"),
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum"), _sums),
    **dict.fromkeys(("grep", "egrep", "fgrep", "rgrep"), _grep),
    "rg": _ripgrep,
    "csplit": _csplit,
    "iconv": _iconv,
    "jq": _jq,
    "patch": _patch,
    "shuf": _shuf,
    "sort": _sort,
    "split": _split,
    "uniq": _uniq,
    "wc": _wc,
    "xxd": _xxd,
}
