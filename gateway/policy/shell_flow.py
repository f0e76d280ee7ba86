"""Where `cd` and the like lead: the directories in which what comes after a command may run."""

from collections.abc import Iterable, Sequence

from gateway.policy.shell_line import Directories, joined
from gateway.policy.words import Word

LIMIT_DIRECTORIES = 8

# eval and . are never understood, but where they lead is not known either.
_MOVES = frozenset({"cd", "chdir", "pushd", "popd", "eval", ".", "source", "exec"})
# What runs the command in its words, and runs it in this very shell.
_RUNS_IT_HERE = frozenset({"command", "builtin", "time"})

NEVER: tuple[str, ...] = ()
Places = tuple[Directories, Directories]
"""Where the shell may stand after success, and after failure. None is any directory, NEVER that it does not happen."""


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
