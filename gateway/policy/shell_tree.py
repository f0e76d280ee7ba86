"""What the shell grammar makes of a line: commands, and how they hang together. Positions are offsets of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gateway.policy.words import Word

Span = tuple[int, int]
Unit = tuple[str, tuple[Span, ...]]
"""A command with its words, or a redirect with its operator and its target: what two readings must have in common."""


@dataclass(frozen=True)
class Opened:
    """A redirect to or from a file."""

    target: Word
    writes: bool


@dataclass
class Simple:
    """A simple command. `inner` are the commands whose output is in its words, its redirects or its assignments."""

    words: list[Word] = field(default_factory=list)
    redirects: list[Opened] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Sequence:
    """Lists: each item after the one before, whatever that returned."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Chain:
    """`first` and what && and || hang on it."""

    first: Node
    rest: tuple[tuple[Literal["&&", "||"], Node], ...]


@dataclass(frozen=True)
class Pipeline:
    """One or more commands, each reading what the one before writes."""

    parts: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True)
class Subshell:
    """( ), `&` and command substitution: what moves in it moves nothing outside."""

    body: Node


@dataclass(frozen=True)
class Branch:
    """if: what is tested, then either of two. `otherwise` is None without else."""

    test: Node
    then: Node
    otherwise: Node | None


@dataclass(frozen=True)
class Loop:
    """for, while and until: the parts run any number of times, in order."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """case: at most one of the branches."""

    branches: tuple[Node, ...]


@dataclass(frozen=True)
class Compound:
    """A compound command. `opening` has its redirects, and the commands in its own words, which come first."""

    opening: Simple
    body: Node


Node: TypeAlias = Simple | Sequence | Chain | Pipeline | Subshell | Branch | Loop | Choice | Compound


@dataclass(frozen=True)
class Reading:
    """A whole line: its tree, its units, and the spans of here-documents, which no unit touches."""

    root: Node
    units: tuple[Unit, ...]
    documents: tuple[Span, ...]
