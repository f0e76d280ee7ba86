"""Subcommands of git about its settings, its names for revisions, and other repositories."""

from __future__ import annotations

import re
from functools import partial

from gateway.policy.programs.call import Call
from gateway.policy.programs.git import options
from gateway.policy.programs.git.changes import refuse_strategies
from gateway.policy.programs.git.history import Subcommand, refuse_signatures
from gateway.policy.programs.git.repository import Given, everything, read_given, revision
from gateway.policy.programs.urls import url_host
from gateway.policy.words import Word

# Settings that name no program, file or host, whatever they are set to.
_HARMLESS_SETTINGS = re.compile(
    r"user\.(name|email)|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote)|fetch\.prune|color\.ui"
    r"|core\.(autocrlf|filemode|quotepath)|merge\.conflictstyle|rebase\.autostash|advice\.[a-z]+"
)
_PATTERN = re.compile(r"[A-Za-z0-9_./-]*\*[A-Za-z0-9_./-]*")
_CHANGING = ("--add", "--replace-all", "--unset", "--unset-all")


def _config(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.CONFIG)
    verbs = ("get", "set", "unset", "list")
    verb = given.operands[0].literal if given.operands and given.operands[0].literal in verbs else None
    operands = given.all[1:] if verb else given.all
    lists = verb == "list" or (verb is None and given.has("-l", "--list", "--get-regexp"))
    if lists and not given.has(*_CHANGING):
        everything(call, "read_below")  # all settings, of which some may be secret
        return
    key = operands[0].literal if operands else None
    if key is None:
        call.refuse("git config names a setting that is not known from the line")
        return
    reads = verb == "get" or (verb is None and (given.has("--get", "--get-all") or len(operands) == 1))
    changes = given.has(*_CHANGING) or not reads
    if changes and _HARMLESS_SETTINGS.fullmatch(key.lower()) is None:
        call.refuse(f"git config changes {key[:60]}, which may run programs")


def _refs_only(call: Call, words: list[Word], *, table: str) -> None:
    refuse_signatures(call, read_given(call, words, table))


def _tag(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.TAG)
    refuse_signatures(call, given)
    if not given.has("-l", "--list", "-d", "--delete"):
        for word in given.all[1:2]:
            revision(call, word)  # a tag of a directory or a file is another name for it


def _notes(call: Call, words: list[Word]) -> None:
    verb = words[0].literal if words else "list"
    if verb not in ("list", "show", "add", "append", "remove"):
        call.refuse("git notes is used in a way that is not known here")
    read_given(call, words[1:], options.NOTES)


def _submodule(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, f"{options.QUIET} --cached --recursive")
    if given.all and given.all[0].literal != "status":
        call.refuse("git submodule can run other programs")


def _fetch(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.PULL_OR_FETCH)
    _from(call, given)


def _pull(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.PULL)
    refuse_strategies(call, given)
    _from(call, given)
    everything(call, "write_below")


def _from(call: Call, given: Given) -> None:
    if given.has("--multiple", "--all", "--recurse-submodules") or not given.all:
        call.host(None)
    _other(call, given.all[:1], "read_below")
    _refspecs(call, given.all[1:])


def _push(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.PUSH)
    if given.has("--recurse-submodules") or not given.all:
        call.host(None)
    _other(call, given.all[:1], "write_below")
    _refspecs(call, given.all[1:])


def _refspecs(call: Call, words: list[Word]) -> None:
    """Take in [+]REVISION[:NAME], which may give a directory or a file of the repository a name."""
    for word in words:
        source, colon, _ = word.text.removeprefix("+").rpartition(":")
        text = source if colon else word.text.removeprefix("+")
        if word.kind != "literal" or (text and text != "tag" and _PATTERN.fullmatch(text) is None):
            revision(call, Word(text) if word.kind == "literal" else word)


def _clone(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.CLONE)
    if given.has("--recurse-submodules", "--recursive"):
        call.host(None)
    _other(call, given.all[:1], "read_below", path=True)
    into = given.all[1:2] or [Word(_clone_directory(word.text), word.kind) for word in given.all[:1]]
    call.files(into, "write_below", dash=False)


def _clone_directory(url: str) -> str:
    return re.split(r"[/:]", url.rstrip("/").removesuffix("/.git"))[-1].removesuffix(".git") or "."


def _ls_remote(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.LS_REMOTE)
    if not given.all:
        call.host(None)
    _other(call, given.all[:1], "read_below")


def _other(call: Call, words: list[Word], role: str, *, path: bool = False) -> None:
    """Take in another repository: a URL, a path, or a name that the settings of this one explain."""
    for word in words:
        if word.kind != "literal" or "::" in word.text:
            call.refuse("the remote of git is not a plain name or URL")
            call.host(None)
            continue
        host = url_host(word.text, git=True)
        if host is not None:
            call.host(*host)
        elif path or word.text.startswith(("/", ".", "file://")):
            _local(call, word.text.removeprefix("file://"), role)
        else:
            call.host(None)
            call.file(word, role, dash=False, possible=True)  # where no remote has the name it is a path


def _local(call: Call, path: str, role: str) -> None:
    call.file(Word(path), role, dash=False)
    # What is in .git is all of the directory that it is in.
    above, dot_git, _ = f"{path}/".partition("/.git/")
    if dot_git or path.startswith(".git"):
        call.file(Word((above or "/") if dot_git else "."), role, dash=False)


def _remote(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.REMOTE)
    verb = given.operands[0].literal if given.operands else "show"
    if verb in ("add", "set-url"):
        for word in given.all[2:]:
            host = url_host(word.text, git=True) if word.kind == "literal" else None
            if word.kind != "literal" or "::" in word.text:
                call.refuse("the remote of git is not a plain name or URL")
            elif host is None and (verb == "add" or not given.has("--delete")):
                _local(call, word.text.removeprefix("file://"), "read_below")
                _local(call, word.text.removeprefix("file://"), "write_below")
    elif verb not in ("show", "rename", "remove", "rm", "get-url", "prune", "update", "set-head"):
        call.refuse("git remote is used in a way that is not known here")
    if given.has("-f", "--fetch", "-a", "--auto") or (given.operands and verb in ("show", "prune", "update")):
        call.host(None)


SUBCOMMANDS: dict[str, Subcommand] = {
    "config": _config,
    "tag": _tag,
    "notes": _notes,
    "submodule": _submodule,
    "fetch": _fetch,
    "pull": _pull,
    "push": _push,
    "clone": _clone,
    "ls-remote": _ls_remote,
    "remote": _remote,
    **{name: partial(_refs_only, table=table) for name, table in options.REFS_ONLY.items()},
}
