"""Subcommands of git that show what is in its history, its index or the work tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gateway.policy.programs.call import Call
from gateway.policy.programs.git import options
from gateway.policy.programs.git.repository import Given, everything, limits, read_given, revision
from gateway.policy.programs.options import compile_options
from gateway.policy.words import Word

Subcommand = Callable[[Call, list[Word]], None]

# These show files that the paths do not name: whole commits, lines of a file, a file under its former names.
_PAST_LIMITS = ("--full-diff", "-L", "--follow")


def content(call: Call, given: Given, *, revisions: Sequence[Word] | None = None) -> None:
    """Take in what a subcommand shows: all that the paths after `--` name, in the revisions before it."""
    named = given.operands if revisions is None else revisions
    if given.paths is None:
        for word in named:  # each may be a revision or a path
            revision(call, word)
            call.file(word, "read_below", dash=False)
        everything(call, "read_below")
        return
    for word in named:
        revision(call, word)
    limits(call, given.paths, "read_below")


def _log(call: Call, words: list[Word], *, patches: bool = False) -> None:
    given = read_given(call, words, options.LOG)
    refuse_signatures(call, given)
    brief = compile_options(options.BRIEF_LOG).known
    if not patches and all(name in brief for name, _ in given.parsed.given):
        return
    if given.has(*_PAST_LIMITS):
        everything(call, "read_below")
    content(call, given)


def refuse_signatures(call: Call, given: Given) -> None:
    """Refuse a format that has signatures verified, which runs gpg."""
    for value in given.parsed.values("--format", "--pretty"):
        if value.kind != "literal" or "%G" in value.text or "%(signature" in value.text:
            call.refuse("the format of git may verify signatures, which runs a program")


def _reflog(call: Call, words: list[Word]) -> None:
    if words and words[0].literal in ("expire", "delete", "exists"):
        call.refuse(f"git reflog {words[0].text} is not known here")
    _log(call, words[1:] if words and words[0].literal == "show" else words)


def _show(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.LOG)
    refuse_signatures(call, given)
    _objects(call, given, given.operands)


def _objects(call: Call, given: Given, objects: list[Word]) -> None:
    """Take in objects that are shown by themselves."""
    past_limits = given.has(*_PAST_LIMITS)
    if past_limits:
        everything(call, "read_below")
    if given.paths is not None or not objects or past_limits:
        content(call, given, revisions=objects)
        return
    by_path = True
    for word in objects:
        by_path &= revision(call, word, "read" if word.kind == "literal" and ":" in word.text else "read_below")
        call.file(word, "read_below", dash=False)
    if not by_path:
        everything(call, "read_below")


def _cat_file(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.CAT_FILE)
    if given.has("-t", "-s", "-e"):
        return
    if given.has("--batch-check"):
        everything(call, "list_below")
    if given.has("--batch"):
        everything(call, "read_below")
    types = given.operands[:1] if not given.has("-p") and len(given.operands) > 1 else []
    if types and types[0].literal not in ("commit", "tree", "blob", "tag"):
        call.refuse("git cat-file is used with a type that is not known here")
    if not given.has("--batch", "--batch-check"):
        _objects(call, given, given.operands[len(types) :])


def _diff(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.DIFF)
    if given.has("--no-index"):
        call.files(given.all, "read_below")
    else:
        content(call, given)


def _plumbing(call: Call, words: list[Word], *, table: str) -> None:
    content(call, read_given(call, words, table))


def _status(call: Call, words: list[Word]) -> None:
    if read_given(call, words, options.STATUS).has("-v", "--verbose"):
        everything(call, "read_below")  # it shows the changes


def _blame(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.BLAME)
    call.files(given.all, "read_below", dash=False)
    if not given.all:
        everything(call, "read_below")


def _grep(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.GREP)
    # The pattern is among the operands, unless it is given with an option.
    first = 0 if given.has("-e", "-f") else 1
    if first and not given.operands:
        call.files(given.all[1:], "read_below", dash=False)
        given = Given(given.parsed, [], [])
    if given.has("--no-index") and given.paths is None:
        call.files(given.operands[first:] or [Word(".")], "read_below", dash=False)
    content(call, given, revisions=given.operands[first:])


def _shortlog(call: Call, words: list[Word]) -> None:
    refuse_signatures(call, read_given(call, words, options.SHORTLOG))


def _archive(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.ARCHIVE)
    if any(value.literal not in ("tar", "zip", "tgz", "tar.gz") for value in given.parsed.values("--format")):
        call.refuse("git archive makes a format that is not known here, which may run a program")
    for word in given.operands[:1]:
        revision(call, word)
    paths = [*given.operands[1:], *(given.paths or [])]
    by_path = not paths and given.operands and ":" in given.operands[0].text and revision(call, given.operands[0])
    if not by_path:
        limits(call, paths, "read_below")


def _bundle(call: Call, words: list[Word]) -> None:
    verb = words[0].literal if words else None
    given = read_given(call, words[1:], options.BUNDLE)
    if verb == "create":
        call.files(given.all[:1], "write")
        everything(call, "read_below")
    elif verb in ("verify", "list-heads"):
        call.files(given.all[:1], "read")
    else:
        call.refuse("git bundle is used in a way that is not known here")


def _format_patch(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.FORMAT_PATCH)
    if not given.has("--stdout", "-o", "--output-directory", "--output"):
        call.here("write_below")
    content(call, given)


def _ls_tree(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.LS_TREE)
    everything(call, "list_below")
    call.files(given.all[1:], "list_below", dash=False)


def _ls_files(call: Call, words: list[Word]) -> None:
    limits(call, read_given(call, words, options.LS_FILES).all, "list_below")


def _check_ignore(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, options.CHECK_IGNORE)
    call.files(given.all, "list_below", dash=False)
    if given.has("-v", "--verbose"):
        everything(call, "read_below")  # it shows lines of .gitignore, which may be anywhere


def _hash_object(call: Call, words: list[Word]) -> None:
    given = read_given(call, words, "-w -t: --stdin --no-filters")
    call.files(given.all, "read", dash=False)


SUBCOMMANDS: dict[str, Subcommand] = {
    "log": _log,
    "whatchanged": partial(_log, patches=True),
    "reflog": _reflog,
    "show": _show,
    "cat-file": _cat_file,
    "diff": _diff,
    **dict.fromkeys(("diff-tree", "diff-index", "diff-files"), partial(_plumbing, table=options.DIFF_PLUMBING)),
    "status": _status,
    "blame": _blame,
    "annotate": _blame,
    "grep": _grep,
    "shortlog": _shortlog,
    "archive": _archive,
    "bundle": _bundle,
    "format-patch": _format_patch,
    "ls-tree": _ls_tree,
    "ls-files": _ls_files,
    "check-ignore": _check_ignore,
    "hash-object": _hash_object,
}
