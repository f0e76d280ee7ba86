"""Builtins of the shell: where `cd` and the like lead, and which ones change nothing about what later words run."""

import re
from collections.abc import Iterable, Sequence

from gateway.policy.shell_line import Directories, joined
from gateway.policy.words import Word, may_assign

LIMIT_DIRECTORIES = 8

# eval and . are never understood, but where they lead is not known either.
_MOVES = frozenset({"cd", "chdir", "pushd", "popd", "eval", ".", "source", "exec"})
# What runs the command in its words, and runs it in this very shell.
_RUNS_IT_HERE = frozenset({"command", "builtin", "time"})

NEVER: tuple[str, ...] = ()
Places = tuple[Directories, Directories]
"""Where the shell may stand after success, and after failure. None is any directory, NEVER that it does not happen."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROXY = re.compile(r"(https?|ftp|all|no)_proxy", re.IGNORECASE)
_PLAIN_BUILTINS = frozenset({":", "[", "cd", "echo", "false", "printf", "pwd", "test", "true"})
_KEEPERS = frozenset({"break", "continue", "exit", "export", "set", "shift", "unset"})
# All arguments of `read` and of `set`, each behind a NUL.
_READ = re.compile(r"(?:\0-r|\0-d\0[^\0]?)*((?:\0[A-Za-z_][A-Za-z0-9_]*)+)", re.DOTALL)
_SET = re.compile(r"(\0[-+][eux]+|\0[-+][eux]*o\0(pipefail|errexit|nounset|xtrace))+")


def after(words: Sequence[Word], cwd: Directories) -> Places:
    """Return where a simple command leaves the shell."""
    name = words[0].literal
    if name == "exit":
        return NEVER, NEVER
    if not may_move(words):
        return cwd, cwd
    arguments = words[2:] if len(words) > 1 and words[1].literal == "--" else words[1:]
    target = arguments[0].literal if len(arguments) == 1 else None
    # Options, more arguments, nothing, -, and home directories lead to where only the shell knows. bash has pushd; in
    # other shells it fails and leads nowhere.
    if name not in {"cd", "chdir", "pushd"} or not target or target.startswith(("-", "+")):
        return None, None
    if cwd is None:
        return ((joined("/", target),) if target.startswith("/") else None), None
    return tuple(dict.fromkeys(joined(directory, target) for directory in cwd)), cwd


def may_move(words: Sequence[Word]) -> bool:
    """Return whether a simple command may move the shell that runs it."""
    name = words[0].literal
    if name in _RUNS_IT_HERE:
        asks = name == "command" and len(words) > 1 and words[1].literal in {"-v", "-V"}
        return not asks and any(word.literal in {None, *_MOVES} for word in words[1:])
    return name in _MOVES


def union(sets: Iterable[Directories]) -> Directories:
    """Return the directories of all sets, None where they are too many to follow."""
    together: dict[str, None] = {}
    for directories in sets:
        if directories is None:
            return None
        together.update(dict.fromkeys(directories))
    return tuple(together) if len(together) <= LIMIT_DIRECTORIES else None


def does_nothing(words: Sequence[Word]) -> bool:
    """Return whether a command is a builtin of every shell that uses no file and prints nothing but its own words."""
    name = words[0].literal
    is_harmless = name in _PLAIN_BUILTINS or (name in _KEEPERS and keeps_meaning(words))
    return is_harmless and all(word.one_word for word in words)


def behind_nuls(words: Sequence[Word]) -> str:
    """Return words as one text for a pattern, each behind a NUL; one that is not known is "(unknown)"."""
    return "".join(f"\0{word.literal if word.literal is not None else '(unknown)'}" for word in words)


def keeps_meaning(words: Sequence[Word]) -> bool:
    """Return whether a builtin of the shell leaves the rest of the line what it is.

    Such a one sets harmless variables only, ends a loop or the script, or makes the script stop at errors.
    """
    arguments = words[1:]
    match words[0].literal:
        case "break" | "continue" | "exit" | "shift":
            numbers = [word.one_word and (word.literal is None or word.literal.isdigit()) for word in arguments]
            return numbers in ([], [True])
        case "export":
            return bool(arguments) and all(_exports(word) for word in arguments)
        case "pushd" | "popd":
            return True
        case "unset":
            return bool(arguments) and all(_names(word) or _PROXY.fullmatch(word.literal or "") for word in arguments)
        case "read":
            found = _READ.fullmatch(behind_nuls(arguments))
            return found is not None and all(may_assign(name) for name in found.group(1).split("\0")[1:])
        case "set":
            return _SET.fullmatch(behind_nuls(arguments)) is not None
    return False


def _names(word: Word) -> bool:
    return bool(_NAME.fullmatch(word.literal or "")) and may_assign(word.text)


def _exports(word: Word) -> bool:
    if not word.one_word:
        return False  # some shells split the value into more names
    name, equals, value = word.begins.partition("=")
    if not equals or not _NAME.fullmatch(name):
        return _names(word)
    return may_assign(name, value if word.literal is not None else None)
