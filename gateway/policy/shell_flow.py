"""Where the commands of a line run: the directories that each `cd` before them may have led to.

Every construct takes the set of directories it may start in and gives two sets back: where the shell may stand after it
if it succeeds, and if it fails. What cannot be followed is None, any directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from gateway.policy.shell_line import Directories, Redirect, SimpleCommand
from gateway.policy.shell_tree import (
    Branch,
    Chain,
    Choice,
    Compound,
    Loop,
    Node,
    Pipeline,
    Sequence,
    Simple,
    Subshell,
)
from gateway.policy.words import Word

LIMIT_DIRECTORIES = 8

# eval and . are never understood, but where they lead is not known either.
_MOVES = frozenset({"cd", "chdir", "pushd", "popd", "eval", ".", "source", "exec"})
# What runs the command in its words, and runs it in this very shell.
_RUNS_IT_HERE = frozenset({"command", "builtin", "time"})
_NOWHERE: tuple[str, ...] = ()

_Places = tuple[Directories, Directories]
"""After success, after failure; () is never."""


class Flow:
    """Collects the commands and the redirects of a tree, in the order in which they stand in the line."""

    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.redirects: list[Redirect] = []

    def walk(self, node: Node, cwd: Directories) -> _Places:
        """Collect what is in a node that starts in `cwd`, and return where it ends."""
        match node:
            case Simple():
                return self._simple(node, cwd)
            case Sequence(items):
                places: _Places = (cwd, _NOWHERE)
                for item in items:
                    places = self.walk(item, _either(places))
                return places
            case Chain(first, rest):
                return self._chain(first, rest, cwd)
            case Pipeline(parts, negated):
                return self._pipeline(parts, cwd, negated=negated)
            case Subshell(body):
                self.walk(body, cwd)
                return cwd, cwd
            case Branch(test, then, otherwise):
                tested = self.walk(test, cwd)
                ends = [self.walk(then, tested[0])]
                ends.append(self.walk(otherwise, tested[1]) if otherwise else (tested[1], _NOWHERE))
                return _union(end[0] for end in ends), _union(end[1] for end in ends)
            case Loop(parts):
                return self._loop(parts, cwd)
            case Choice(branches):
                ends = [self.walk(branch, cwd) for branch in branches]
                return _union([cwd, *(end[0] for end in ends)]), _union(end[1] for end in ends)
            case Compound(opening, body):
                self._simple(opening, cwd)
                ends_at = self.walk(body, cwd)
                # A redirect that fails keeps the body from running.
                return ends_at if not opening.redirects else (ends_at[0], _union([ends_at[1], cwd]))

    def _simple(self, command: Simple, cwd: Directories) -> _Places:
        for inner in command.inner:
            self.walk(inner, cwd)
        for opened in command.redirects:
            self.redirects.append(Redirect(opened.target.literal, opened.writes, cwd or None))
        if not command.words:
            return cwd, cwd
        # What is never reached gets no promise about where it runs.
        self.commands.append(SimpleCommand(tuple(command.words), cwd or None))
        return _after(command.words, cwd)

    def _chain(self, first: Node, rest: Iterable[tuple[str, Node]], cwd: Directories) -> _Places:
        succeeded, failed = self.walk(first, cwd)
        for operator, node in rest:
            if operator == "&&":
                succeeded, then_failed = self.walk(node, succeeded)
                failed = _union([failed, then_failed])
            else:
                then_succeeded, failed = self.walk(node, failed)
                succeeded = _union([succeeded, then_succeeded])
        return succeeded, failed

    def _pipeline(self, parts: tuple[Node, ...], cwd: Directories, *, negated: bool) -> _Places:
        if len(parts) == 1:
            succeeded, failed = self.walk(parts[0], cwd)
            return (failed, succeeded) if negated else (succeeded, failed)
        for part in parts[:-1]:
            self.walk(part, cwd)
        after = _union([cwd, *self.walk(parts[-1], cwd)])  # some shells run the last part themselves
        return after, after

    def _loop(self, parts: tuple[Node, ...], cwd: Directories) -> _Places:
        start = None if any(_moves(part) for part in parts) else cwd
        for part in parts:
            self.walk(part, start)
        return start, start


def _after(words: list[Word], cwd: Directories) -> _Places:
    """Return where a simple command leaves the shell."""
    name = words[0].literal
    if name == "exit":
        return _NOWHERE, _NOWHERE
    if not _may_move(words):
        return cwd, cwd
    arguments = words[2:] if len(words) > 1 and words[1].literal == "--" else words[1:]
    target = arguments[0].literal if len(arguments) == 1 else None
    # Options, more arguments, nothing, -, and home directories lead to where only the shell knows. bash has pushd; in
    # other shells it fails and leads nowhere.
    if name not in {"cd", "chdir", "pushd"} or not target or target.startswith(("-", "+")):
        return None, None
    if cwd is None:
        return ((_joined("/", target),) if target.startswith("/") else None), None
    return tuple(dict.fromkeys(_joined(directory, target) for directory in cwd)), cwd


def _may_move(words: list[Word]) -> bool:
    name = words[0].literal
    if name in _RUNS_IT_HERE:
        asks = name == "command" and len(words) > 1 and words[1].literal in {"-v", "-V"}
        return not asks and any(word.literal in {None, *_MOVES} for word in words[1:])
    return name in _MOVES


def _joined(directory: str, target: str) -> str:
    # The shell takes ".." off the name, as this does, and does not follow links for it.
    return "/" + posixpath.normpath(posixpath.join(directory, target)).lstrip("/")


def _either(places: _Places) -> Directories:
    return _union(places)


def _union(sets: Iterable[Directories]) -> Directories:
    together: dict[str, None] = {}
    for directories in sets:
        if directories is None:
            return None
        together.update(dict.fromkeys(directories))
    return tuple(together) if len(together) <= LIMIT_DIRECTORIES else None


def _moves(root: Node) -> bool:
    """Return whether a command in a loop may move the shell that runs the loop."""
    return any(_may_move(command.words) for command in _own(root))


def _own(node: Node) -> Iterator[Simple]:
    """Yield the simple commands that are not in a subshell."""
    pending = [node]
    while pending:
        match pending.pop():
            case Simple() as command:
                if command.words:
                    yield command
            case Sequence(items) | Choice(items) | Loop(items):
                pending.extend(items)
            case Pipeline(parts):
                pending.extend(parts)
            case Chain(first, rest):
                pending.extend([first, *(inner for _, inner in rest)])
            case Branch(test, then, otherwise):
                pending.extend([test, then, *([otherwise] if otherwise else [])])
            case Compound(_, body):
                pending.append(body)
            case Subshell():
                pass
