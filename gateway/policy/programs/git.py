"""git: which files of the work tree a subcommand reads and writes, and which hosts it speaks to.

The repository itself (.git) is not named in the line and is no effect. Where the top of the work tree is cannot be
told either, so what concerns all of it concerns the whole file system that the command runs in: /workspace, /tmp.
Settings, hooks and aliases of a repository can run programs; that too is nothing a line says, so aliases are opaque.
"""

from __future__ import annotations

import re

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.paths import absolute, leads_with_dash
from gateway.policy.programs.urls import url_host
from gateway.policy.words import Word

# Options that open a file, leave the repository or run something. git takes abbreviations, so what one of these
# begins with is refused too.
_DANGEROUS = (
    "--output", "--ext-diff", "--textconv", "--open-files-in-pager", "--exec", "--upload-pack", "--receive-pack",
    "--config", "--template", "--reference", "--separate-git-dir", "--edit", "--tool", "--extcmd", "--gui",
    "--git-dir", "--work-tree", "--pathspec-from-file", "--contents", "--ignore-revs-file", "--file", "--from-file",
    "--remote", "--index-output", "--exclude-from", "--cmd", "--interactive", "--strategy", "--gpg-sign",
    "--add-file", "--reference-if-able",
    "--git-dir", "--bundle-uri", "--show-signature", "--no-index",
    "--directory", "--output-directory",
)  # fmt: skip
_HARMLESS = frozenset(
    {"--edit", "--interactive", "--show-signature", "--gpg-sign", "--textconv", "--index", "--exclude", "--add"}
)
_SHORT_RISKS = {
    "log": "O", "diff": "O", "show": "O", "grep": "Of", "blame": "S", "commit": "tF", "tag": "F", "rebase": "x",
    "clone": "cu", "fetch": "u", "ls-remote": "u", "archive": "", "config": "f", "ls-files": "X", "merge": "F",
    "notes": "F", "pull": "", "push": "", "apply": "", "am": "",
}  # fmt: skip
_READS = frozenset({"log", "diff", "show", "blame", "grep", "annotate", "whatchanged", "shortlog", "cat-file",
                    "diff-tree", "diff-index", "diff-files", "format-patch", "archive", "range-diff", "cherry",
                    "show-branch", "reflog", "commit", "add", "stage", "hash-object", "ls-tree", "bundle",
                    "check-ignore", "check-attr"})  # fmt: skip
_LISTS = frozenset({"ls-files"})
# With these alone git log shows no content of files.
_LOG_WITHOUT_CONTENT = re.compile(
    r"--(oneline|graph|decorate|all|format|pretty|author|since|until|after|before|grep|stat|shortstat|numstat|name-only"
    r"|name-status|merges|no-merges|reverse|first-parent|abbrev-commit|date|follow|branches|tags|max-count|no-decorate"
    r"|skip|topo-order|date-order|left-right|cherry-pick|no-color|color|summary|dirstat|committer|relative)(=.*)?"
    r"|-[0-9]+|-n[0-9]*|-[iEF]|--",
    re.DOTALL,
)
_NOTHING = frozenset({"branch", "tag", "rev-parse", "rev-list", "describe", "config", "remote", "symbolic-ref",
                      "for-each-ref", "show-ref", "merge-base", "name-rev", "count-objects", "fsck", "gc", "prune",
                      "repack", "version", "help", "var", "update-ref", "notes", "pack-refs", "update-index",
                      "write-tree", "commit-tree", "verify-commit", "verify-tag", "maintenance", "interpret-trailers",
                      "stripspace", "rerere", "init"})  # fmt: skip
_WRITES_TREE = frozenset({"merge", "rebase", "pull", "stash", "cherry-pick", "revert", "am", "switch", "reset",
                          "checkout", "apply", "read-tree", "checkout-index", "sparse-checkout", "clean"})  # fmt: skip
_WRITES_PATHS = frozenset({"rm", "mv", "restore"})
_REMOTE = frozenset({"clone", "fetch", "push", "pull", "ls-remote"})
_RUNS = {
    "bisect": ("run",), "submodule": ("foreach",), "filter-branch": (), "difftool": (),
    "mergetool": (), "gui": (), "citool": (), "send-email": (), "daemon": (), "instaweb": (), "web--browse": (),
    "svn": (), "p4": (), "cvsserver": (), "fast-import": (), "credential": (), "remote-ext": (), "shell": (),
    "upload-pack": (), "receive-pack": (), "upload-archive": (), "for-each-repo": (), "hook": (), "lfs": (),
}  # fmt: skip
_VALUES = {
    "commit": "-m -F -C -c --message --author --date --fixup --squash",
    "tag": "-m -F -u --message",
    "log": "-n --author --grep --since --until --after --before -S -G -L --skip --max-count",
    "diff": "-S -G -l --diff-filter",
    "show": "-S -G",
    "clone": "-b -o -j --branch --depth --origin --jobs --filter --shallow-since",
    "fetch": "-j --depth --shallow-since --refmap",
    "pull": "-s -X --depth",
    "push": "-o --repo --push-option",
    "merge": "-m -s -X --message",
    "rebase": "-s -X --onto",
    "checkout": "-b -B --orphan --conflict",
    "switch": "-c -C --create --orphan",
    "restore": "-s --source",
    "stash": "-m --message",
    "branch": "-u --set-upstream-to --contains --merged --no-merged --sort --format",
    "grep": "-e -A -B -C -m --max-depth --threads --max-count",
    "blame": "-L --since --date",
    "archive": "--format --prefix",
    "apply": "-p -C --exclude --include --whitespace",
    "cherry-pick": "-m -X",
    "revert": "-m -X",
    "config": "--type --default",
    "clean": "-e --exclude",
    "worktree": "-b -B --reason",
    "describe": "--match --exclude",
    "format-patch": "-v",
    "rev-list": "-n --max-count --since --author",
    "shortlog": "--since --until --group",
    "init": "-b --initial-branch --object-format",
    "ls-files": "-x -X --exclude",
    "rm": "",
    "remote": "-t -m",
    "am": "-C -p",
    "cat-file": "",
    "for-each-ref": "--sort --format --count",
}
_REVISION_AND_PATH = re.compile(r"[A-Za-z0-9_@^~./{}-]*:(.*)", re.DOTALL)


def _git(call: Call) -> None:
    position = 0
    while position < len(call.words):
        word = call.words[position]
        if word.kind != "literal":
            call.refuse("the subcommand of git is not literal")
            return
        if not word.text.startswith("-"):
            break
        if word.text == "-C" and position + 1 < len(call.words):
            _move(call, call.words[position + 1])
            position += 1
        elif word.text not in {
            "--no-pager", "-P", "--version", "-v", "--help", "-h", "--no-optional-locks", "--literal-pathspecs",
            "--no-replace-objects", "--glob-pathspecs", "--icase-pathspecs", "--bare", "-p", "--paginate",
        }:  # fmt: skip
            call.refuse(f"git is used with {word.text}, which can change what it does")
        position += 1
    if position == len(call.words):
        return
    subcommand = call.words[position].text
    _subcommand(call, subcommand, list(call.words[position + 1 :]))


def _move(call: Call, word: Word) -> None:
    """Take in -C: everything after it is seen from there."""
    if word.kind != "literal":
        call.directories = None
        return
    paths = absolute(word.text, call.directories)
    known = tuple(path for path in paths if path is not None)
    call.directories = known if len(known) == len(paths) else None


def _subcommand(call: Call, name: str, words: list[Word]) -> None:
    risks = _RUNS.get(name)
    first = words[0].text if words else ""
    if risks is not None and (not risks or first in risks or (words and words[0].kind != "literal")):
        call.refuse(f"git {name} can run other programs")
    if name == "submodule" and first in ("update", "add"):
        call.host(None)
        _everything(call, "write_below")
    if name == "worktree":
        _worktree(call, words)
        return
    known = name == "status" or name in _READS | _LISTS | _NOTHING | _WRITES_TREE | _WRITES_PATHS | _REMOTE
    if not known and risks is None:
        call.refuse(f"git {name[:40]} is not known here; it may be an alias")
    operands, paths = _take_options(call, name, words)
    if name in _REMOTE:
        _remote(call, name, operands)
    if name == "remote" and first in ("update", "show", "prune"):
        call.host(None)
    if name == "config":
        _config(call, operands)
    if name == "init":
        call.files(operands[:1] or [Word(".")], "write_below", dash=False)
    _tree(call, name, operands, paths)


def _take_options(call: Call, name: str, words: list[Word]) -> tuple[list[Word], list[Word] | None]:
    """Return the operands before `--`, and those after it, None when there is no `--`."""
    values = frozenset(_VALUES.get(name, "").split())
    operands: list[Word] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.kind != "literal":
            if leads_with_dash(word):
                call.refuse(f"{word.text} could become an option of git; write -- or ./ before it")
            operands.append(word)
        elif word.text == "--":
            return operands, words[position:]
        elif word.text.startswith("--"):
            _long(call, name, word.text)
            if word.text in values and position < len(words):
                position += _skipped(call, words[position])
        elif word.text.startswith("-") and word.text != "-":
            position = _short(call, name, words, position, values)
        else:
            operands.append(word)
    return operands, None


def _skipped(call: Call, value: Word) -> int:
    if not value.one_word:
        call.refuse("an option of git has an argument that is not one word")
    return 1


def _long(call: Call, name: str, text: str) -> None:
    option, equals, value = text.partition("=")
    if option in ("--output", "--output-directory") and equals:
        call.file(Word(value), "write_below" if option == "--output-directory" else "write", dash=False)
        return
    if name == "diff" and option == "--no-index":
        return
    if name == "apply" and option == "--directory":
        return
    if option in _HARMLESS or (name in ("add", "commit") and option in ("--edit", "--interactive")):
        return
    if name == "config" and option in ("--file", "--blob"):
        call.refuse(f"git config is used with {option}")
    for dangerous in _DANGEROUS:
        if len(option) > 2 and dangerous.startswith(option):
            call.refuse(f"git {name} is used with {option}, which may open a file or run a program")
            if equals:
                call.file(Word(value), "read", dash=False)
                call.file(Word(value), "write", dash=False)
            return


def _short(call: Call, name: str, words: list[Word], position: int, values: frozenset[str]) -> int:
    text = words[position - 1].text
    risks = _SHORT_RISKS.get(name, "")
    for place, letter in enumerate(text[1:], 1):
        option = "-" + letter
        attached = text[place + 1 :]
        if name in ("archive", "format-patch") and letter == "o":
            if attached:
                target = Word(attached)
            elif position < len(words):
                target = words[position]
                position += 1
            else:
                return position
            call.file(target, "write" if name == "archive" else "write_below", dash=False)
            return position
        if letter in risks:
            if (
                name in ("commit", "tag", "merge", "notes", "grep")
                and letter in "Ff"
                and (attached or position < len(words))
            ):
                call.file(Word(attached) if attached else words[position], "read")
                return position if attached else position + 1
            call.refuse(f"git {name} is used with {option}, which may open a file or run a program")
            return position
        if option in values:
            if attached or position == len(words):
                return position
            return position + _skipped(call, words[position])
    return position


def _remote(call: Call, name: str, operands: list[Word]) -> None:
    """Take in the host of a URL; what a name of a remote stands for is in the repository's settings."""
    if not operands:
        call.host(None)
        return
    target = operands[0]
    if target.kind != "literal" or "::" in target.text:
        call.refuse("the remote of git is not a plain name or URL")
        call.host(None)
        return
    host = url_host(target.text, git=True)
    if host is not None:
        call.host(*host)
    elif target.text.startswith(("/", ".", "file://")) or name == "clone":
        call.file(Word(target.text.removeprefix("file://")), "write_below" if name == "push" else "read_below")
    else:
        call.host(None)
    if name == "clone":
        into = operands[1:2] or [Word(_clone_directory(target.text))]
        call.files(into, "write_below", dash=False)


def _clone_directory(url: str) -> str:
    return re.split(r"[/:]", url.rstrip("/").removesuffix("/.git"))[-1].removesuffix(".git") or "."


def _config(call: Call, operands: list[Word]) -> None:
    """Refuse the settings that name programs: all but those of the user's own name and a few plain ones."""
    if not operands or operands[0].kind != "literal":
        return
    verbs = {"set", "get", "list", "unset", "edit"}
    rest = operands[1:] if operands[0].text in verbs else operands
    key = rest[0].text.lower() if rest else ""
    setting = len(rest) > 1 or operands[0].text == "edit"
    plain = {"user.name", "user.email", "init.defaultbranch", "pull.rebase", "pull.ff", "push.default", "color.ui",
             "core.autocrlf", "core.filemode", "core.quotepath", "advice.detachedhead", "commit.gpgsign",
             "push.autosetupremote", "merge.conflictstyle", "fetch.prune", "rebase.autostash"}  # fmt: skip
    if setting and key not in plain and not key.startswith(("advice.", "safe.")):
        call.refuse(f"git config sets {key[:60]}, which can run programs")


def _worktree(call: Call, words: list[Word]) -> None:
    operands, _ = _take_options(call, "worktree", words)
    if operands and operands[0].text in ("add", "remove", "move"):
        call.files(operands[1:], "write_below", dash=False)


def _tree(call: Call, name: str, operands: list[Word], paths: list[Word] | None) -> None:
    """Take in the files of the work tree, or of its past, that a subcommand reads and writes."""
    if name == "status" or (name == "log" and _is_brief(call.words)):
        return  # names and messages
    if name == "commit" and not (operands or paths) and not _takes_all(call.words):
        return  # what is in the index
    if name in _READS:
        role = "list_below" if name in ("ls-tree", "check-ignore", "check-attr") else "read_below"
        _pathspecs(call, name, role, operands, paths)
    elif name in _LISTS:
        _pathspecs(call, name, "list_below", operands, paths)
    elif name in _WRITES_PATHS:
        spoken = paths if paths is not None else []
        call.files([*operands, *spoken], "write_below", dash=False)
        if name == "mv":
            call.files([*operands, *spoken], "read_below", dash=False)
    elif name in _WRITES_TREE:
        if paths and name in ("checkout", "reset", "clean", "stash"):
            call.files(paths, "write_below", dash=False)
        elif name == "stash" and operands and operands[0].literal in ("list", "show", "drop", "clear"):
            _everything(call, "list" if operands[0].literal in ("drop", "clear") else "read_below")
        elif not _keeps_tree(name, call.words, operands):
            _everything(call, "write_below")
        if name in ("apply", "am"):
            call.files([*operands, *(paths or [])], "read")


def _is_brief(words: tuple[Word, ...]) -> bool:
    """Return whether no option of git log asks for the content of files; its operands do not."""
    after = words[[word.text for word in words].index("log") + 1 :]
    return all(
        word.kind == "literal" and (not word.text.startswith("-") or _LOG_WITHOUT_CONTENT.fullmatch(word.text))
        for word in after
    )


def _takes_all(words: tuple[Word, ...]) -> bool:
    """Return whether git commit takes changed files in by itself, or shows them."""
    return any(re.match(r"-[a-z]*[avip]|--(all|inc|onl|pat|verb|int)", word.text) is not None for word in words)


def _keeps_tree(name: str, words: tuple[Word, ...], operands: list[Word]) -> bool:
    """Return whether a subcommand only moves the branch or the index: a new branch here, a reset that is not hard."""
    if any(word.kind != "literal" for word in words):
        return False
    if name == "reset":
        return not any(word.text.startswith(("--h", "--m", "--k", "-p", "--p")) for word in words)
    return name in ("checkout", "switch") and not operands and any(word.text in ("-b", "-c") for word in words)


def _pathspecs(call: Call, name: str, role: str, operands: list[Word], paths: list[Word] | None) -> None:
    """Take in what limits a subcommand to some files; without any it is about all of them."""
    if name == "diff" and any(word.literal == "--no-index" for word in call.words):
        call.files([*operands, *(paths or [])], role)
        return
    limits = list(paths or [])
    if name in ("add", "stage", "blame", "annotate", "hash-object", "check-ignore", "ls-files", "commit"):
        limits += operands
    else:
        for word in operands:
            match = _REVISION_AND_PATH.fullmatch(word.text) if word.kind == "literal" else None
            if match is not None and match.group(1):
                _shown(call, match.group(1))
            # It may be a revision or a path: as a path it is read.
            call.file(word, role, dash=False)
        only_shown = name in ("show", "cat-file") and operands and all(":" in word.text for word in operands)
        if only_shown and not limits:
            return
    plain = limits and all(word.kind != "literal" or not word.text.startswith(":") for word in limits)
    if plain:
        for word in limits:
            # git expands quoted patterns too.
            wild = word.kind == "literal" and any(mark in word.text for mark in "*?[")
            call.file(Word(word.text, "glob") if wild else word, role, dash=False)
    else:
        _everything(call, role)


def _shown(call: Call, path: str) -> None:
    """Take in REVISION:PATH, which is seen from the top of the work tree."""
    call.file(Word(path), "read", dash=False)
    if call.directories is None:
        call.unknown("read")
        return
    for top in _tops(call.directories):
        call.file(Word(f"{top}/{path}"), "read", dash=False)


def _everything(call: Call, role: str) -> None:
    if call.directories is None:
        call.unknown(role)
        return
    for top in _tops(call.directories):
        call.file(Word(top), role)


def _tops(directories: tuple[str, ...]) -> list[str]:
    return ["/" + directory.lstrip("/").partition("/")[0] for directory in directories]


PROGRAMS: dict[str, Describe] = {"git": _git}
