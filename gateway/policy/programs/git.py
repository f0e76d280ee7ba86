"""git: which files of the work tree a subcommand reads and writes.

The repository itself (.git) is not named in the line and is no effect. The top of the work tree cannot be
determined either, so what concerns all of it concerns the whole file system that the command runs in: /workspace, /tmp.
Subcommands read, or write, whatever is in the repository.
Settings, hooks and aliases of a repository can run programs; that too is nothing a line says, so aliases are opaque,
and so is a line that changes other settings than a few harmless ones.
"""

import re
from collections.abc import Callable

from gateway.policy.programs.call import UNREAD_REASON, Access, Call, Describe, absolute
from gateway.policy.programs.files import unread
from gateway.policy.programs.options import read_options
from gateway.policy.programs.starts import refuse_options
from gateway.policy.shell_builtins import behind_nuls
from gateway.policy.words import Word, names

Subcommand = Callable[[Call], None]

_ALONE = frozenset({"--version", "-v", "--help", "-h"})
_GLOBAL_FLAGS = names("""--no-pager -P --no-optional-locks --no-replace-objects --literal-pathspecs --glob-pathspecs
    --noglob-pathspecs""")
# Settings that name no program, file or host, whatever they are set to; for one command also those that turn one off.
_HARMLESS = (
    r"user\.(name|email)|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote)|fetch\.prune|color\.ui"
    r"|core\.(autocrlf|filemode|quotepath)|merge\.conflictstyle|rebase\.autostash|advice\.[a-z]+"
)
_HARMLESS_FOR_ONCE = re.compile(
    rf"({_HARMLESS}|color\.[a-z.]+)(=.*)?|core\.pager=(cat)?|core\.fsmonitor=false|core\.hookspath=/dev/null"
    r"|(commit|tag)\.gpgsign=false",
    re.IGNORECASE | re.DOTALL,
)
# What follows `git config`, each word behind a NUL: settings are read, or a harmless one is changed.
_CONFIG_FLAGS = r"(\0(-z|--(global|local|show-origin|show-scope|name-only|null|bool|int)))*"
_HARMLESS_CONFIG = re.compile(
    rf"{_CONFIG_FLAGS}(\0(-l|list|--list){_CONFIG_FLAGS}"
    rf"|\0(get|--get(-all|-regexp)?){_CONFIG_FLAGS}\0(?!(get|list|set)(\0|\Z))[^-(\0].*"
    r"|\0(?!(set|edit)\Z)[^-(\0][^\0]*"
    rf"|(\0(set|--set|--add|--replace-all|--unset(-all)?){_CONFIG_FLAGS})?\0(?i:{_HARMLESS})(\0.*)?)",
    re.DOTALL,
)

# Options that name no file: letters of subcommands that look, that change and that speak to others, and names of them.
_LOOKS = "-#abcdghilmpqrstuvwzDEHIMPRW -n: -e: -A: -B: -C[] -G: -L: -S: -U[]"
_CHANGES = "-abcdfiklnoqrsuvxAB -m:"
_SPEAKS = "-afnpqtuv46 -d -o:"
_NAMES = """--abbrev-commit --abbrev-ref[=] --abbrev[=] --abort --all --allow-empty --amend --author= --branch[=]
    --cached --check --color[=] --contains[=] --continue --count --create= --date= --decorate[=] --delete --exit-code
    --ff --ff-only --first-parent --follow --force --force-with-lease[=] --format[=] --graph --grep= --hard
    --is-inside-work-tree --list --long --max-count= --merged[=] --merges --message= --mixed --name-only --name-status
    --no-color --no-commit --no-edit --no-ff --no-merges --no-patch --no-rebase --no-tags --no-verify --numstat
    --oneline --onto= --ours --patch --porcelain[=] --pretty[=] --prune --quiet --rebase[=] --remotes[=] --reverse
    --set-upstream --set-upstream-to= --shortstat --short[=] --show-current --show-toplevel --since= --soft --sort=
    --staged --stat[=] --tags[=] --theirs --track[=] --unified[=] --until= --update --verbose --verify --word-diff[=]"""
_SHOWS_CONTENT = "-c -m -p -u -v -G -L -S -U -W --check --function-context --patch --unified --verbose --word-diff"
# Options with which subcommands start another program, all of them or some.
_STARTS = """--exec --ext-diff --textconv --upload-pack --receive-pack --gpg-sign --show-signature --verify-signatures
    --open-files-in-pager --edit --edit-description --edit-todo --interactive --signed"""
_MORE_STARTS = {
    **dict.fromkeys(("add", "commit", "stage"), "-e -i -p -S --patch --template"),
    **dict.fromkeys(("checkout", "reset", "restore", "stash"), "-p --patch"),
    **dict.fromkeys(("cherry-pick", "merge", "pull", "revert"), "-e -S -s --strategy"),
    **dict.fromkeys(("am", "commit-tree", "rebase"), "-i -x -S -s --strategy"),
    "cat-file": "--filters",
    "clone": "-u -c --config --template",
    "grep": "-O",
    "init": "--template",
    "replace": "-e",
    "tag": "-e -s -u --sign --local-user",
}
_LIMIT_GLOBAL_WORDS = 64
# With any value but these, git pull may rebase as `git rebase -i` does.
_REBASES = re.compile(r"--reb[a-z]*=(?!(?:true|false|merges|m)\Z)|-[a-zA-Z46]*r.")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|([A-Za-z0-9._-]+@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?!//)")
_FORMATS = ("--format", "--pretty", "--sort")
_REMOTES = ("clone", "fetch", "ls-remote", "pull", "push", "remote", "submodule")
# Where the first word says what is done, what does not run other programs.
_VERBS = {
    "bisect": "start good bad old new skip reset log next",
    "bundle": "create verify list-heads unbundle",
    "notes": "list show add append copy remove prune get-ref",
    "submodule": "absorbgitdirs add deinit init set-branch set-url status summary sync update",
    "worktree": "add list remove move prune lock unlock repair",
}


def _after_global_options(call: Call) -> tuple[Word, ...]:
    """Return the words from the subcommand on, and go where the options before it lead.

    `git -C lib --no-pager diff` is a `git diff` in lib. They are all words if some option is not one that changes
    little.
    """
    words, place = call.words, 0
    while place + 1 < min(len(words), _LIMIT_GLOBAL_WORDS) and words[place].text.startswith("-"):
        option, value = words[place].literal, words[place + 1]
        if option in _GLOBAL_FLAGS:
            place += 1
            continue
        # A value that may become several words brings a subcommand with it.
        if not value.one_word or not (
            option == "-C" or (option == "-c" and _HARMLESS_FOR_ONCE.fullmatch(value.begins))
        ):
            return words
        if option == "-C":
            call.file(value, "read", below=True, dash=False)
            paths = absolute(value.text, call.directories) if value.literal is not None else (None,)
            call.directories = tuple(filter(None, paths)) if None not in paths else None
        place += 2
    return words[place:] if place < len(words) and not words[place].text.startswith("-") else words


def _git(call: Call) -> None:
    if not call.words or (len(call.words) == 1 and call.words[0].literal in _ALONE):
        return
    words = _after_global_options(call)
    name = words[0].literal
    if words != call.words:
        call.replaces = True
        call.run((call.program, *words))
    elif name is None:
        call.refuse("the subcommand of git is not literal")
    elif name.startswith("-"):  # what changes little was taken away before
        call.refuse(f"git is used with {name}, which can change what it does")
    elif name not in SUBCOMMANDS:
        call.refuse(f"git {name[:40]} is not known here; it may be an alias or run other programs")
    else:
        call.name, call.words = f"git {name}", call.words[1:]
        if name != "config":
            _refuse_starts(call, name)
        SUBCOMMANDS[name](call)


def _refuse_starts(call: Call, name: str) -> None:
    """Refuse a subcommand that is used in a way in which it may start another program."""
    refuse_options(call, call.words, f"{_STARTS} {_MORE_STARTS.get(name, '')}")
    for word in call.words:
        if "%G" in word.text or "%(signature" in word.text or word.prefix.startswith(_FORMATS):
            call.refuse("the format of git may verify signatures, which runs a program")
        if name == "pull" and _REBASES.match(word.text):
            call.refuse("git pull may rebase interactively, which runs an editor")
        if name in _REMOTES and "::" in word.text:
            call.refuse("the remote of git names a program")
    verb = next((word for word in call.words if not word.text.startswith("-")), None)
    if name in _VERBS and verb is not None and verb.literal not in _VERBS[name].split():
        call.refuse(f"git {name} can run other programs")


def _everything(call: Call, *kinds: Access) -> None:
    """Take in all that may be in the work tree, of which only a directory somewhere inside is known."""
    for kind in kinds:
        for directory in call.directories or ():
            call.file(Word("/" + directory.lstrip("/").partition("/")[0]), kind, below=True)
        if call.directories is None:
            call.lose("git runs in a directory that is not known", kind)


def _about_all(*kinds: Access, options: str = _LOOKS, only_with: str = "") -> Subcommand:
    """Return a description of a subcommand that does this to all of the work tree, whatever its operands are.

    With `only_with` it does so with one of these options alone, and what changes anything also with paths.
    """

    def describe(call: Call) -> None:
        parsed = read_options(call, f"{_NAMES} {options}")
        if call.name == "git init":  # elsewhere, too
            call.files(parsed.operands, "write", below=True, dash=False)
        if not only_with or parsed.has(*only_with.split()) or (options == _CHANGES and parsed.operands):
            _everything(call, *kinds)

    return describe


def _config(call: Call) -> None:
    if not _HARMLESS_CONFIG.fullmatch(behind_nuls(call.words)):
        call.refuse("git config changes a setting that may run programs")
    texts = {word.literal for word in call.words}
    if texts & {"-l", "--list", "list", "--get-regexp"}:
        _everything(call, "read")  # a list of all settings may have secrets
    if "--global" in texts:
        call.lose("the settings of the user are in a file that the line does not name")


def _shows(call: Call) -> None:
    # A file outside of the repository is shown as well.
    call.files(read_options(call, f"{_NAMES} {_LOOKS}").operands, "read", below=True, dash=False)
    _everything(call, "read")


def _remotes(call: Call) -> None:
    """Take in the other repository, the first operand: a URL, or a name that the settings of this one explain."""
    operands = read_options(call, f"{_NAMES} {_SPEAKS}").operands
    if call.name == "git remote":
        operands = operands[2:] if operands and operands[0].literal in ("add", "set-url") else []
    if call.name in ("git clone", "git pull"):
        _everything(call, "read", "write")
    for word in operands[:1]:
        if word.kind != "literal" or "::" in word.text:
            call.refuse("the remote of git is not a plain name or URL")
        elif word.text.lower().startswith((".", "file:")) or ("/" in word.text and not _URL.match(word.text)):
            call.lose("the other repository is a directory")
        elif not _URL.match(word.text):
            for kind in ("read", "write"):  # where no remote has the name it is a path
                call.file(word, kind, below=True, dash=False, possible=True)
    if call.name == "git clone":
        call.lose(UNREAD_REASON)


_DESCRIBED: dict[str, Subcommand] = {
    "branch tag rev-parse rev-list describe symbolic-ref for-each-ref show-ref merge-base name-rev count-objects fsck"
    " gc prune version cherry shortlog": _about_all(),
    "log reflog status": _about_all("read", only_with=_SHOWS_CONTENT),
    "diff show whatchanged diff-tree diff-index diff-files blame annotate grep": _shows,
    "add stage": _about_all("read", options=_CHANGES),
    "commit": _about_all("read", options=_CHANGES, only_with="-a --all -i -o --include --only"),
    "checkout switch merge rebase cherry-pick revert reset stash mv bisect rm clean restore init": _about_all(
        "read", "write", options=_CHANGES
    ),
    "fetch push ls-remote pull remote clone": _remotes,
    "ls-files ls-tree check-ignore": _about_all("list"),
    "config": _config,
    # They start no program, and what else they do with files is not read. Not here: send-pack, which is a push.
    "am apply archive bundle cat-file check-attr check-mailmap check-ref-format checkout-index column commit-graph"
    " commit-tree fast-export format-patch hash-object index-pack merge-file merge-tree mktag mktree notes"
    " pack-objects pack-refs patch-id range-diff read-tree repack replace rerere show-branch sparse-checkout stripspace"
    " submodule update-index update-ref var verify-pack worktree write-tree": unread,
}
SUBCOMMANDS = {name: describe for names, describe in _DESCRIBED.items() for name in names.split()}

PROGRAMS: dict[str, Describe] = {"git": _git}
