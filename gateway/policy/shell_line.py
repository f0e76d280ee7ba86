"""What the shell reader hands to the other rooms: the simple commands of a line, and the files the shell opens."""

import posixpath
from dataclasses import dataclass

from agent.tools.paths import WORKSPACE
from gateway.policy.words import Word

Directories = tuple[str, ...] | None
"""The directories, absolute and normalised, in which something may run. None: it cannot be determined from the line."""

START: Directories = (WORKSPACE,)

Span = tuple[int, int]
"""From and up to which byte of the line."""
Unit = tuple[str, tuple[Span, ...]]
"""A command with its words, or a redirect with its operator and its target: what two readings must have in common."""


def joined(directory: str, path: str) -> str:
    """Return the absolute path that a path has from a directory; links are not followed for its "..", as in shells."""
    return "/" + posixpath.normpath(posixpath.join(directory, path)).lstrip("/")


@dataclass(frozen=True)
class SimpleCommand:
    """A program and its words; the first one is literal in a line that is not opaque."""

    words: tuple[Word, ...]
    cwd: Directories = START


@dataclass(frozen=True)
class Redirect:
    """A file that the shell opens: `target` as it is written, relative to `cwd` or absolute.

    A target of None is a file whose name is not known before the line runs (`> "$out"`).
    """

    target: str | None
    writes: bool
    cwd: Directories = START


@dataclass(frozen=True)
class ShellLine:
    """What a command line runs and opens, in order. `opaque` is None when that is all it does."""

    commands: tuple[SimpleCommand, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    opaque: str | None = None
