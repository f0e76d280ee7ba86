"""What subcommands of git do with files and hosts, as far as a few words can say it.

Most of them read, or write, whatever is in the repository. Only those that take nothing but paths are about these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from gateway.policy.programs.call import UNREAD_REASON, Call
from gateway.policy.programs.network import url_host
from gateway.policy.programs.options import Parsed, compile_options, read_options, take_values
from gateway.policy.programs.starts import refuse_options
from gateway.policy.words import Word

Subcommand = Callable[[Call, list[Word]], None]

_LOG = (
    "-n: -#qiszF --oneline --graph --all --decorate[=] --no-decorate --stat[=] --shortstat --numstat --name-only"
    " --name-status --author= --since= --until= --after= --before= --grep= --max-count= --skip= --reverse --merges"
    " --no-merges --first-parent --abbrev-commit --date= --format[=] --pretty[=] --follow --color[=] --no-color"
    " --branches[=] --tags[=] --remotes[=] --diff-filter= --no-patch --summary --quiet --no-ext-diff --no-textconv"
)
_DIFF = (
    f"{_LOG} -pubwRWra -U[] -S: -G: -L: -M[] -C[] --patch --cached --staged --unified[=] --word-diff[=] --minimal"
    " --ignore-all-space --ignore-space-change --check --exit-code --function-context --find-renames[=]"
)
_NAMES = (
    "-adfilmquvDMrsn# --abbrev[=] --abbrev-ref[=] --all --always --annotate --count --contains[=] --delete --dirty[=]"
    " --force --format= --git-dir --is-ancestor --is-inside-work-tree --list --long --merged[=] --no-merged[=]"
    " --message= --move --points-at= --prune --quiet --remotes --short[=] --show-current --show-toplevel --sort= --tags"
    " --track[=] --set-upstream-to= --verbose --verify --symbolic-full-name --auto --dry-run --no-color"
)
_CHANGE = (
    "-abcdfiklnqrstuvxB -m: --abort --continue --skip --quit --hard --soft --mixed --keep --ff --no-ff --ff-only"
    " --squash --no-commit --no-edit --onto= --message= --staged --worktree --cached --force --quiet --detach --create="
    " --include-untracked --keep-index --index --all --update --no-verify --autostash --rebase[=] --no-rebase --track"
    " --discard-changes --ours --theirs --dry-run --ignore-unmatch --tags --prune"
)
_COMMIT = (
    "-aqnsoi -m: -F:read --all --message= --file=read --amend --no-edit --allow-empty --allow-empty-message --quiet"
    " --signoff --no-verify --author= --date= --only --include --fixup= --trailer="
)
_REMOTE = (
    "-afnpqtuv -b: -d -o: -4 -6 --all --tags --no-tags --prune --depth= --force --force-with-lease[=] --set-upstream"
    " --delete --dry-run --quiet --verbose --branch= --single-branch --bare --mirror --origin= --no-checkout"
    " --heads --refs --follow-tags --no-verify --progress --recursive --recurse-submodules[=] --filter= --add"
)
# Options with which subcommands start another program, all of them or some.
_STARTS = (
    "--exec --ext-diff --textconv --upload-pack --receive-pack --gpg-sign --show-signature --verify-signatures"
    " --open-files-in-pager"
)
_MORE_STARTS = {
    "add": "-i --interactive",
    "am": "-S -i --interactive",
    "cat-file": "--filters",
    "cherry-pick": "-S --strategy",
    "clone": "-u -c --config --template",
    "commit": "-S --interactive --template",
    "grep": "-O",
    "init": "--template",
    "merge": "-S -s --strategy",
    "pull": "-S -s --strategy",
    "push": "--signed",
    "rebase": "-x -i -S -s --interactive --strategy",
    "revert": "-S --strategy",
    "tag": "-s -u --sign --local-user",
}
_FORMATS = ("--format", "--pretty", "--sort")
# Settings that name no program, file or host, whatever they are set to.
_HARMLESS_SETTINGS = re.compile(
    r"user\.(name|email)|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote)|fetch\.prune|color\.ui"
    r"|core\.(autocrlf|filemode|quotepath)|merge\.conflictstyle|rebase\.autostash|advice\.[a-z]+"
)
_READ_SETTINGS = {"--get", "--get-all", "--get-regexp", "--list", "-l"}
_CHANGE_SETTINGS = {"--set", "--add", "--replace-all", "--unset", "--unset-all"}
_SETTINGS = {"--global", "--local", "--show-origin", "--show-scope", "--name-only", "-z", "--null", "--bool", "--int"}
_REMOTES = ("clone", "fetch", "ls-remote", "pull", "push", "remote")
# Where the first word says what is done, what does not run other programs.
_VERBS = {
    "bisect": ("start", "good", "bad", "old", "new", "skip", "reset", "log", "next"),
    "bundle": ("create", "verify", "list-heads"),
    "notes": ("list", "show", "add", "append", "remove"),
    "submodule": ("status",),
    "worktree": ("add", "list", "remove", "move", "prune", "lock", "unlock"),
}


def refuse_git_starts(call: Call, name: str, words: Sequence[Word]) -> None:
    """Refuse a subcommand that is used in a way in which it may start another program."""
    if name == "config":
        _refuse_settings(call, words)
        return
    refuse_options(call, words, f"{_STARTS} {_MORE_STARTS.get(name, '')}")
    for word in words:
        if "%G" in word.text or "%(signature" in word.text or word.prefix.startswith(_FORMATS):
            call.refuse("the format of git may verify signatures, which runs a program")
    verb = next((word for word in words if not word.text.startswith("-")), None)
    if name in _VERBS and verb is not None and verb.literal not in _VERBS[name]:
        call.refuse(f"git {name} can run other programs")
    if name in ("checkout", "restore", "reset", "stash") and any(word.literal in ("-p", "--patch") for word in words):
        call.refuse(f"git {name} asks what to do, and may run a program for that")
    if name in _REMOTES and any("::" in word.text for word in words):
        call.refuse("the remote of git names a program")


def _refuse_settings(call: Call, words: Sequence[Word]) -> None:
    """Refuse changes of settings that may name programs. Options end at the first operand."""
    texts = [word.literal or "" for word in words]
    first = next((place for place, text in enumerate(texts) if not text.startswith("-")), len(texts))
    options, operands = set(texts[:first]), texts[first:]
    if operands and operands[0] in ("get", "list", "set"):
        options.add(f"--{operands.pop(0)}")
    reads = options & _READ_SETTINGS or ("--set" not in options and len(operands) == 1)
    changes = not reads or options & _CHANGE_SETTINGS
    harmless = _HARMLESS_SETTINGS.fullmatch(operands[0].lower() if operands else "") is not None
    if (changes and not harmless) or not options <= _READ_SETTINGS | _CHANGE_SETTINGS | _SETTINGS or not all(texts):
        call.refuse("git config changes a setting that may run programs")


def _parsed(call: Call, words: Sequence[Word], options: str) -> Parsed:
    compiled = compile_options(options)
    parsed = read_options(call, compiled, words, strict=True)
    take_values(call, compiled, parsed)
    return parsed


def _everything(call: Call, *roles: str) -> None:
    """Take in all that may be in the work tree, of which only a directory somewhere inside is known."""
    for role in roles:
        if call.directories is None:
            call.unknown(role)
        for directory in call.directories or ():
            call.file(Word("/" + directory.lstrip("/").partition("/")[0]), role)


def _names(call: Call, words: list[Word], *, options: str = _NAMES) -> None:
    """Take in a subcommand about names of revisions, messages and states."""
    _parsed(call, words, options)


def _settings(call: Call, words: list[Word]) -> None:
    """Take in git config: a list of all settings may have secrets, and those of the user are in some other file."""
    texts = {word.literal for word in words}
    if texts & {"-l", "--list", "list", "--get-regexp"}:
        _everything(call, "read_below")
    if "--global" in texts:
        call.lose("the settings of the user are in a file that the line does not name")


def _log(call: Call, words: list[Word]) -> None:
    known = compile_options(_LOG).known
    if any(name not in known for name, _ in _parsed(call, words, _DIFF).given):
        _everything(call, "read_below")


def _shows(call: Call, words: list[Word], *, options: str = _DIFF) -> None:
    # A file outside of the repository is shown as well.
    call.files(_parsed(call, words, options).operands, "read_below", dash=False)
    _everything(call, "read_below")


def _on_paths(call: Call, words: list[Word], *, options: str, role: str) -> None:
    """Take in a subcommand whose operands are nothing but patterns of paths; without any it is about all of them."""
    paths = _parsed(call, words, options).operands
    # A leading colon has a meaning of its own (:/ is the top, :! is all but), and a backslash makes a pattern.
    if not paths or any(word.kind == "literal" and (word.text[:1] in (":", "") or "\\" in word.text) for word in paths):
        _everything(call, role)
        return
    for word in paths:
        # git expands quoted patterns too.
        wild = word.kind == "literal" and any(mark in word.text for mark in "*?[")
        call.file(Word(word.text, "glob") if wild else word, role, dash=False)


def _commit(call: Call, words: list[Word]) -> None:
    parsed = _parsed(call, words, _COMMIT)
    if parsed.operands or parsed.has("-a", "--all", "-i", "-o", "--include", "--only"):
        _everything(call, "read_below")


def _checkout(call: Call, words: list[Word]) -> None:
    if words and words[0].literal == "--":
        _on_paths(call, words, options="", role="write_below")
    elif len(words) == 2 and words[0].literal in ("-b", "-c") and (words[1].literal or "-")[0] != "-":
        return  # a new branch here
    else:
        _changes(call, words)


def _changes(call: Call, words: list[Word]) -> None:
    _parsed(call, words, _CHANGE)
    _everything(call, "read_below", "write_below")


def _remotes(call: Call, words: list[Word], *, into: bool = False) -> None:
    """Take in the other repository, the first operand: a URL, or a name that the settings of this one explain.

    `into`: the second one, or what the first one is named after, is a new directory.
    """
    parsed = _parsed(call, words, _REMOTE)
    if not parsed.operands or parsed.has("--all", "--recurse-submodules", "--recursive"):
        call.host(None)
    for word in parsed.operands[:1]:
        _other(call, word)
    for word in (parsed.operands[1:2] or parsed.operands[:1]) if into else ():
        name = re.split(r"[/:]", word.text.rstrip("/"))[-1].removesuffix(".git") or "."
        call.file(word if parsed.operands[1:] else Word(name, word.kind), "write_below", dash=False)


def _other(call: Call, word: Word) -> None:
    host = url_host(word.text, git=True) if word.kind == "literal" else None
    if word.kind != "literal" or "::" in word.text:
        call.refuse("the remote of git is not a plain name or URL")
    elif host is not None:
        call.host(*host)
    elif word.text.startswith(("/", ".", "file:")) or "/" in word.text:
        call.lose("the other repository is a directory")
    else:
        call.host(None)
        for role in ("read_below", "write_below"):  # where no remote has the name it is a path
            call.file(word, role, dash=False, possible=True)


def _pull(call: Call, words: list[Word]) -> None:
    _remotes(call, words)
    _everything(call, "read_below", "write_below")


def _remote(call: Call, words: list[Word]) -> None:
    operands = _parsed(call, words, "-v -f -t: --verbose --prune --push --all").operands
    if not operands or operands[0].literal in ("get-url", "rename", "remove", "rm"):
        return
    if operands[0].literal in ("add", "set-url"):
        for word in operands[2:]:
            _other(call, word)
    else:
        call.host(None)


def _lists(call: Call, words: list[Word]) -> None:
    _parsed(call, words, "-cdmorstz --cached --deleted --modified --others --exclude-standard --name-only")
    _everything(call, "list_below")


SUBCOMMANDS: dict[str, Subcommand] = {
    **dict.fromkeys(
        ("branch", "tag", "rev-parse", "rev-list", "describe", "symbolic-ref", "for-each-ref", "show-ref", "merge-base",
         "name-rev", "count-objects", "fsck", "gc", "prune", "version", "cherry", "shortlog"),
        _names,
    ),
    "status": partial(
        _names, options="-sbuz --short --branch --porcelain[=] --untracked-files[=] --ignored[=] --show-stash"
    ),
    **dict.fromkeys(("log", "reflog"), _log),
    **dict.fromkeys(("diff", "show", "whatchanged", "diff-tree", "diff-index", "diff-files"), _shows),
    **dict.fromkeys(("blame", "annotate"), partial(_shows, options="-L: -wselMC --date=")),
    "grep": partial(
        _shows, options="-niIwvhHlLcEFGPqa# -e: -A: -B: -C: --cached --count --ignore-case --line-number --name-only"
    ),
    "add": partial(
        _on_paths, options="-AunvfNp --all --update --dry-run --force --intent-to-add", role="read_below"
    ),
    "stage": partial(_on_paths, options="-Au --all --update", role="read_below"),
    "rm": partial(_on_paths, options="-frnq --cached --force --dry-run --quiet", role="write_below"),
    "clean": partial(_on_paths, options="-fdxXnq --force --dry-run", role="write_below"),
    "restore": partial(_on_paths, options="-SWq --staged --worktree", role="write_below"),
    "init": partial(_on_paths, options="-q -b: --bare --initial-branch= --quiet", role="write_below"),
    "commit": _commit,
    **dict.fromkeys(("checkout", "switch"), _checkout),
    **dict.fromkeys(("merge", "rebase", "cherry-pick", "revert", "reset", "stash", "mv", "bisect"), _changes),
    **dict.fromkeys(("fetch", "push", "ls-remote"), _remotes),
    "clone": partial(_remotes, into=True),
    "pull": _pull,
    "remote": _remote,
    **dict.fromkeys(("ls-files", "ls-tree", "check-ignore"), _lists),
    "config": _settings,
    **dict.fromkeys(
        ("am", "apply", "archive", "bundle", "cat-file", "format-patch", "hash-object", "notes", "submodule",
         "worktree"),
        lambda call, _: call.lose(UNREAD_REASON),
    ),
}  # fmt: skip
