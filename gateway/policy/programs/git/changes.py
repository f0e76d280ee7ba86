"""Subcommands of git that change the work tree or the index."""

from __future__ import annotations

from functools import partial

from gateway.policy.programs.call import Call
from gateway.policy.programs.git import options
from gateway.policy.programs.git.history import Subcommand
from gateway.policy.programs.git.repository import Given, everything, limits, read_given, revision
from gateway.policy.words import Word

_STRATEGIES = ("ort", "recursive", "resolve", "octopus", "ours", "subtree")


def refuse_strategies(call: Call, given: Given) -> None:
    """Refuse a merge strategy that is not git's own: it is a program."""
    for value in given.parsed.values("-s", "--strategy"):
        if value.literal not in _STRATEGIES:
            call.refuse("git is used with a merge strategy that is not its own, which is a program")


def _everywhere(call: Call, words: list[Word], *, table: str) -> None:
    given = read_given(call, words, table)
    refuse_strategies(call, given)
    everything(call, "write_below")


def _add(call: Call, words: list[Word]) -> None:
    limits(call, read_given(call, words, options.ADD).all, "read_below")


def _commit(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.COMMIT)
    shows = given.has("-v", "--verbose", "-p", "--patch", "--dry-run")
    if given.all and not shows:
        limits(call, given.all, "read_below")
    elif shows or given.has("-a", "--all", "-i", "--include", "-o", "--only"):
        everything(call, "read_below")


def _remove(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.REMOVE)
    if given.all:
        limits(call, given.all, "write_below")


def _move(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.MOVE)
    call.files(given.all, "write_below", dash=False)
    call.files(given.all, "read_below", dash=False)


def _checkout(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.CHECKOUT)
    if given.paths:
        for word in given.operands:
            revision(call, word)
        limits(call, given.paths, "write_below")
        return
    new = given.parsed.values("-b")
    if new and not given.operands and not given.has("-f", "--force", "-B", "-m", "--merge"):
        return  # a new branch here
    _tree_of(call, given.operands)
    everything(call, "write_below")


def _tree_of(call: Call, operands: list[Word]) -> None:
    """Take in what may be the tree that files come from, and is followed by paths."""
    if len(operands) > 1:
        revision(call, operands[0])


def _switch(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.SWITCH)
    new = given.parsed.values("-c", "--create")
    if not (new and not given.all and not given.has("-f", "--force", "--discard-changes", "-m", "--merge")):
        everything(call, "write_below")


def _restore(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.RESTORE)
    for word in given.parsed.values("-s", "--source"):
        revision(call, word)
    limits(call, given.all, "write_below")


def _reset(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.RESET)
    if given.has("--hard", "--merge", "--keep"):
        everything(call, "write_below")
    elif not given.has("--soft"):
        for word in given.operands[:1]:
            revision(call, word)  # with the tree of a directory the index gets its files in other places


def _stash(call: Call, words: list[Word]) -> None:
    verb = words[0].literal if words else "push"
    if verb in ("list", "show"):
        read_given(call, words[1:], options.LOG + " -u --include-untracked --only-untracked")
        everything(call, "read_below")
        return
    if verb is not None and verb.startswith("-"):
        verb, words = "push", [Word("push"), *words]
    given = read_given(call, words[1:], options.STASH)
    if verb == "push" and given.all:
        limits(call, given.all, "write_below")
    elif verb in ("push", "save", "pop", "apply", "branch"):
        everything(call, "write_below")
    elif verb not in ("drop", "clear"):
        call.refuse("git stash is used in a way that is not known here")


def _clean(call: Call, words: list[Word]) -> None:
    limits(call, read_given(call, words, options.CLEAN).all, "write_below")


def _patch(call: Call, words: list[Word], *, table: str) -> None:
    given = read_given(call, words, table)
    call.files(given.all, "read" if table == options.APPLY else "read_below")
    everything(call, "write_below")
    everything(call, "read_below")  # a patch may copy files


def _bisect(call: Call, words: list[Word]) -> None:
    verb = words[0].literal if words else None
    if verb not in ("start", "good", "bad", "old", "new", "skip", "reset", "log", "next"):
        call.refuse("git bisect can run other programs")
    read_given(call, words[1:], "")
    everything(call, "write_below")


def _worktree(call: Call, words: list[Word]) -> None:
    verb = words[0].literal if words else None
    given = read_given(call, words[1:], options.WORKTREE)
    if verb == "add":
        call.files(given.all[:1], "write_below", dash=False)
        everything(call, "read_below")  # all of it is there then
    elif verb in ("remove", "move"):
        call.files(given.all, "write_below", dash=False)
        call.files(given.all if verb == "move" else [], "read_below", dash=False)
    elif verb not in ("list", "prune", "lock", "unlock"):
        call.refuse("git worktree is used in a way that is not known here")


def _init(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.INIT)
    call.files(given.all[:1] or [Word(".")], "write_below", dash=False)


SUBCOMMANDS: dict[str, Subcommand] = {
    "add": _add,
    "stage": _add,
    "commit": _commit,
    "rm": _remove,
    "mv": _move,
    "checkout": _checkout,
    "switch": _switch,
    "restore": _restore,
    "reset": _reset,
    "stash": _stash,
    "clean": _clean,
    "apply": partial(_patch, table=options.APPLY),
    "am": partial(_patch, table=options.AM),
    "merge": partial(_everywhere, table=options.MERGE),
    "rebase": partial(_everywhere, table=options.REBASE),
    "cherry-pick": partial(_everywhere, table=options.PICK),
    "revert": partial(_everywhere, table=options.PICK),
    "bisect": _bisect,
    "worktree": _worktree,
    "init": _init,
}
