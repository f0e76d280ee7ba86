"""Whether one condition holds for every call that another one holds for: True only when that is sure.

A rule is taken apart into atoms: one tool with one glob, one argv prefix without alternatives, or one host. An atom is
covered when one other is as wide; a rule is covered when all its atoms are, be it by different rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from gateway.policy.argv import compile_argv
from gateway.policy.document import Condition, Placeholder, Rule, SizeRange
from gateway.policy.globs import compile_glob
from gateway.policy.globs_cover import covers as glob_covers
from gateway.policy.hosts import compile_host
from gateway.policy.words import Word

_LIMIT_CHOICES = 64
ArgvWords = Sequence[str | tuple[str, ...] | Placeholder]


@dataclass(frozen=True)
class Atom:
    """A piece of a rule: one tool, and a condition with at most one glob, one prefix and one host."""

    tool: str
    condition: Condition

    @property
    def shown(self) -> str:
        """Return the piece for people."""
        found = [*(self.condition.paths or ()), *map(shown_argv, self.condition.argv or ())]
        return " ".join([self.tool, *found, *(self.condition.hosts or ())])


def atoms(rule: Rule) -> Iterator[Atom]:
    """Yield the pieces that a rule is made of."""
    given = Condition(**{name: getattr(rule, name) for name in Condition.model_fields})
    prefixes = [one for prefix in rule.argv or () for one in _apart(prefix)]
    for tool in dict.fromkeys(rule.tools):
        for path in rule.paths or (None,):
            for prefix in prefixes or (None,):
                for host in rule.hosts or (None,):
                    update = {
                        "paths": None if path is None else (path,),
                        "argv": None if prefix is None else (prefix,),
                        "hosts": None if host is None else (host,),
                    }
                    yield Atom(tool, given.model_copy(update=update))


def _apart(prefix: ArgvWords) -> Iterator[ArgvWords]:
    """Yield a prefix once for each choice of its alternatives; whole where those are very many."""
    choices = [word if isinstance(word, tuple) and "*" not in word else (word,) for word in prefix]
    if prod(map(len, choices)) > _LIMIT_CHOICES:
        yield prefix
    else:
        yield from product(*choices)


def covers(a: Condition, b: Condition) -> bool:
    """Return whether `a` surely holds for every call that `b` holds for."""
    return (
        _paths(a.paths, b.paths)
        and _argv(a.argv, b.argv)
        and _hosts(a.hosts, b.hosts)
        and _sizes(a.size_bytes, b.size_bytes)
        and a.time in (None, b.time)
        and a.when in (None, b.when)
    )


def shown_argv(prefix: ArgvWords) -> str:
    """Return an argv prefix for people: `git status|diff {path: ...}`."""
    return " ".join(shown_word(word) for word in prefix)


def shown_word(word: str | tuple[str, ...] | Placeholder) -> str:
    """Return one word of an argv prefix for people."""
    if isinstance(word, str):
        return word
    if not isinstance(word, Placeholder):
        return "|".join(word)
    if word.path is not None:
        return f"{{path: {', '.join(word.path)}}}"
    if word.number is not None:
        return f"{{number: {word.number.least} to {word.number.most}}}"
    return "{end}" if word.end else f"{{matches: {word.matches}}}"


def _paths(a: Sequence[str] | None, b: Sequence[str] | None) -> bool:
    if a is None:
        return True
    if b is None:
        # Globs that hold everything are as good as none.
        return any(glob_covers(compile_glob(glob), compile_glob("/**")) for glob in a)
    return all(any(glob_covers(compile_glob(wide), compile_glob(narrow)) for wide in a) for narrow in b)


def _argv(a: Sequence[ArgvWords] | None, b: Sequence[ArgvWords] | None) -> bool:
    if a is None:
        return True
    return b is not None and all(any(_prefix(wide, narrow) for wide in a) for narrow in b)


def _prefix(a: ArgvWords, b: ArgvWords) -> bool:
    return len(a) <= len(b) and all(_word(wide, narrow) for wide, narrow in zip(a, b, strict=False))


def _word(a: str | tuple[str, ...] | Placeholder, b: str | tuple[str, ...] | Placeholder) -> bool:
    if a == b:
        return True
    if isinstance(b, Placeholder):
        if isinstance(a, Placeholder):
            return _placeholder(a, b)
        return a == "*" and not b.end
    words = (b,) if isinstance(b, str) else b
    if isinstance(a, Placeholder):
        return all(word != "*" and _is(a, word) for word in words) if isinstance(b, tuple) else b != "*" and _is(a, b)
    if a == "*":
        return True
    alternatives = (a,) if isinstance(a, str) else a
    return b != "*" and set(words) <= set(alternatives)


def _placeholder(a: Placeholder, b: Placeholder) -> bool:
    if a.path is not None and b.path is not None:
        return _paths(a.path, b.path)
    if a.number is not None and b.number is not None:
        return a.number.least <= b.number.least and b.number.most <= a.number.most
    return False


def _is(a: Placeholder, word: str) -> bool:
    """Return whether a literal word surely is what a placeholder stands for."""
    return (a.matches is not None or a.number is not None) and compile_argv([(a,)])[0].surely([Word(word)])


def _hosts(a: Sequence[str] | None, b: Sequence[str] | None) -> bool:
    if a is None:
        return True
    return b is not None and all(any(_host(wide, narrow) for wide in a) for narrow in b)


def _host(a: str, b: str) -> bool:
    wide, narrow = compile_host(a), compile_host(b)
    within = wide.names(narrow.name) or (wide.below and narrow.below and wide.name == narrow.name)
    return wide.port in (None, narrow.port) and within and (wide.below or not narrow.below)


def _sizes(a: SizeRange | None, b: SizeRange | None) -> bool:
    if a is None:
        return True
    if b is None:
        return False
    starts = a.over is None or (b.over is not None and b.over >= a.over)
    return starts and (a.up_to is None or (b.up_to is not None and b.up_to <= a.up_to))
