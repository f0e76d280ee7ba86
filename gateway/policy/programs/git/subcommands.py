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

# Options of all subcommands that look, that change, and that speak to others; none of them names a file but -F.
_LOOKS = (
    "-#abcdghilmpqrstuvwzDEHIMPRW -n: -e: -A: -B: -C[] -G: -L: -S: -U[] --abbrev-commit --abbrev[=] --abbrev-ref[=]"
    " --after= --all --always --annotate --author= --auto --before= --branch --branches[=] --cached --check --color[=]"
    " --contains[=] --count --date= --decorate[=] --delete --diff-filter= --dirty[=] --exclude-standard --exit-code"
    " --find-renames[=] --first-parent --follow --force --format[=] --function-context --git-dir --graph --grep="
    " --ignore-all-space --ignore-case --ignore-space-change --ignored[=] --is-ancestor --is-inside-work-tree"
    " --line-number --list --long --max-count= --merged[=] --merges --message= --minimal --modified --move --name-only"
    " --name-status --no-color --no-decorate --no-ext-diff --no-merged[=] --no-merges --no-patch --no-textconv"
    " --numstat --oneline --others --patch --points-at= --porcelain[=] --pretty[=] --prune --quiet --remotes[=]"
    " --reverse --set-upstream-to= --short[=] --shortstat --show-current --show-stash --show-toplevel --since= --skip="
    " --sort= --staged --stat[=] --summary --symbolic-full-name --tags[=] --track[=] --unified[=] --until="
    " --untracked-files[=] --verbose --verify --word-diff[=]"
)
_SHOWS_CONTENT = "-c -m -p -u -v -G -L -S -U -W --check --function-context --patch --unified --verbose --word-diff"
_CHANGES = (
    "-abcdfiklnoqrsuvxB -m: -F:read --abort --all --allow-empty --amend --author= --autostash --cached --continue"
    " --create= --date= --detach --discard-changes --dry-run --ff --ff-only --file=read --fixup= --force --hard"
    " --ignore-unmatch --include --include-untracked --index --keep --keep-index --message= --mixed --no-commit"
    " --no-edit --no-ff --no-rebase --no-verify --only --onto= --ours --prune --quiet --quit --rebase[=] --signoff"
    " --skip --soft --squash --staged --tags --theirs --track --trailer= --update --worktree"
)
_PATHS = (
    "-adfnpqruvxANSWX --all --cached --dry-run --force --intent-to-add --quiet --recursive --staged --update --worktree"
)
_SPEAKS = (
    "-afnpqtuv46 -b: -d -o: --add --all --bare --branch= --delete --depth= --dry-run --filter= --follow-tags --force"
    " --force-with-lease[=] --heads --mirror --no-checkout --no-tags --no-verify --origin= --progress --prune --push"
    " --quiet --recurse-submodules[=] --recursive --refs --set-upstream --single-branch --tags --verbose"
)
# Options with which subcommands start another program, all of them or some.
_STARTS = (
    "--exec --ext-diff --textconv --upload-pack --receive-pack --gpg-sign --show-signature --verify-signatures"
    " --open-files-in-pager --edit --edit-description --edit-todo"
)
_MORE_STARTS = {
    "add": "-e -i --interactive",
    "am": "-S -i --interactive",
    "cat-file": "--filters",
    "cherry-pick": "-e -S --strategy",
    "clone": "-u -c --config --template",
    "commit": "-e -S --interactive --template",
    "commit-tree": "-S",
    "grep": "-O",
    "init": "--template",
    "merge": "-e -S -s --strategy",
    "pull": "-e -S -s --strategy",
    "push": "--signed",
    "replace": "-e",
    "rebase": "-x -i -S -s --interactive --strategy",
    "revert": "-e -S --strategy",
    "tag": "-e -s -u --sign --local-user",
}
_PLAIN_PATH = re.compile(r"[^:*?\[\\][^*?\[\\]*")
_FORMATS = ("--format", "--pretty", "--sort")
# Settings that name no program, file or host, whatever they are set to.
_HARMLESS_SETTINGS = re.compile(
    r"user\.(name|email)|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote)|fetch\.prune|color\.ui"
    r"|core\.(autocrlf|filemode|quotepath)|merge\.conflictstyle|rebase\.autostash|advice\.[a-z]+"
)
_READ_SETTINGS = {"--get", "--get-all", "--get-regexp", "--list", "-l"}
_CHANGE_SETTINGS = {"--set", "--add", "--replace-all", "--unset", "--unset-all"}
_SETTINGS = {"--global", "--local", "--show-origin", "--show-scope", "--name-only", "-z", "--null", "--bool", "--int"}
_REMOTES = ("clone", "fetch", "ls-remote", "pull", "push", "remote", "submodule")
# Where the first word says what is done, what does not run other programs.
_VERBS = {
    "bisect": ("start", "good", "bad", "old", "new", "skip", "reset", "log", "next"),
    "bundle": ("create", "verify", "list-heads", "unbundle"),
    "notes": ("list", "show", "add", "append", "copy", "remove", "prune", "get-ref"),
    "submodule": (
        "absorbgitdirs",
        "add",
        "deinit",
        "init",
        "set-branch",
        "set-url",
        "status",
        "summary",
        "sync",
        "update",
    ),
    "worktree": ("add", "list", "remove", "move", "prune", "lock", "unlock", "repair"),
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
    key = len(texts) - len(operands)
    harmless = _HARMLESS_SETTINGS.fullmatch(operands[0].lower() if operands else "") is not None
    if (
        (changes and not harmless)
        or not options <= _READ_SETTINGS | _CHANGE_SETTINGS | _SETTINGS
        or not all(texts[: key + 1])
    ):
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


def _names(call: Call, words: list[Word]) -> None:
    """Take in a subcommand about names of revisions, messages and states."""
    _parsed(call, words, _LOOKS)


def _settings(call: Call, words: list[Word]) -> None:
    """Take in git config: a list of all settings may have secrets, and those of the user are in some other file."""
    texts = {word.literal for word in words}
    if texts & {"-l", "--list", "list", "--get-regexp"}:
        _everything(call, "read_below")
    if "--global" in texts:
        call.lose("the settings of the user are in a file that the line does not name")


def _log(call: Call, words: list[Word]) -> None:
    if _parsed(call, words, _LOOKS).has(*_SHOWS_CONTENT.split()):
        _everything(call, "read_below")


def _lists(call: Call, words: list[Word]) -> None:
    _parsed(call, words, _LOOKS)
    _everything(call, "list_below")


def _shows(call: Call, words: list[Word]) -> None:
    # A file outside of the repository is shown as well.
    call.files(_parsed(call, words, _LOOKS).operands, "read_below", dash=False)
    _everything(call, "read_below")


def _on_paths(call: Call, words: list[Word], *, role: str, options: str = _PATHS) -> None:
    """Take in a subcommand whose operands are nothing but patterns of paths; without any it is about all of them."""
    paths = _parsed(call, words, options).operands
    # git expands quoted patterns too, and a leading colon has a meaning of its own (:/ is the top, :! is all but).
    if not paths or not all(_PLAIN_PATH.fullmatch(word.text) for word in paths):
        _everything(call, role)
    else:
        call.files(paths, role, dash=False)


def _commit(call: Call, words: list[Word]) -> None:
    parsed = _parsed(call, words, _CHANGES)
    if parsed.operands or parsed.has("-a", "--all", "-i", "-o", "--include", "--only"):
        _everything(call, "read_below")


def _checkout(call: Call, words: list[Word]) -> None:
    if words and words[0].literal == "--":
        _on_paths(call, words, role="write_below")
    elif len(words) == 2 and words[0].literal in ("-b", "-c") and (words[1].literal or "-")[0] != "-":
        return  # a new branch here
    else:
        _changes(call, words)


def _changes(call: Call, words: list[Word]) -> None:
    _parsed(call, words, _CHANGES)
    _everything(call, "read_below", "write_below")


def _remotes(call: Call, words: list[Word], *, into: bool = False) -> None:
    """Take in the other repository, the first operand: a URL, or a name that the settings of this one explain.

    `into`: the second one, or what the first one is named after, is a new directory.
    """
    parsed = _parsed(call, words, _SPEAKS)
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
    operands = _parsed(call, words, _SPEAKS).operands
    if not operands or operands[0].literal in ("get-url", "rename", "remove", "rm"):
        return
    if operands[0].literal in ("add", "set-url"):
        for word in operands[2:]:
            _other(call, word)
    else:
        call.host(None)


SUBCOMMANDS: dict[str, Subcommand] = {
    **dict.fromkeys(
        ("branch", "tag", "rev-parse", "rev-list", "describe", "symbolic-ref", "for-each-ref", "show-ref", "merge-base",
         "name-rev", "count-objects", "fsck", "gc", "prune", "version", "cherry", "shortlog"),
        _names,
    ),
    **dict.fromkeys(("log", "reflog", "status"), _log),
    **dict.fromkeys(("diff", "show", "whatchanged", "diff-tree", "diff-index", "diff-files"), _shows),
    **dict.fromkeys(("blame", "annotate", "grep"), _shows),
    **dict.fromkeys(("add", "stage"), partial(_on_paths, role="read_below")),
    **dict.fromkeys(("rm", "clean", "restore"), partial(_on_paths, role="write_below")),
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
        # They start no program, and what else they do with files is not read. Not here: send-pack, which is a push.
        """am apply archive bundle cat-file check-attr check-mailmap check-ref-format checkout-index column commit-graph
        commit-tree diff-pairs fast-export fast-import fmt-merge-msg format-patch get-tar-commit-id hash-object
        index-pack mailinfo mailsplit merge-file merge-tree mktag mktree multi-pack-index notes pack-objects
        pack-redundant pack-refs patch-id prune-packed range-diff read-tree repack replace rerere show-branch show-index
        sparse-checkout stripspace submodule unpack-file unpack-objects update-index update-ref update-server-info var
        verify-pack worktree write-tree""".split(),  # noqa: SIM905 - a list to read
        lambda call, _: call.lose(UNREAD_REASON),
    ),
}  # fmt: skip
