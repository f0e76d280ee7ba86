"""Whether one condition holds for every call that another one holds for: True only when that is sure.

A rule is taken apart into atoms: one tool with one glob, one argv prefix without alternatives, or one host. An atom is
covered when one other is as wide; a rule is covered when all its atoms are, be it by different rules.

Rules are compared only where the one can cover the other: by a tool they share, and by where the first path, program or
host of the covered one lies. That keeps a policy of a thousand rules at milliseconds; a policy that is made to be slow
all the same is compared up to a limit, and no further.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import Generic, TypeVar

from gateway.policy.argv import compile_argv
from gateway.policy.document import Condition, Rule
from gateway.policy.fields import ArgvWord, Placeholder, SizeRange
from gateway.policy.globs import ancestors, compile_glob
from gateway.policy.globs import covers as glob_covers
from gateway.policy.hosts import compile_host
from gateway.policy.words import Word

_LIMIT_CHOICES = 64
_ANY = ""
_NETWORKS = "network"
ArgvWords = Sequence[ArgvWord]
T = TypeVar("T")


@dataclass(frozen=True)
class Atom:
    """A piece of a rule: one tool, and a condition with at most one glob, one prefix and one host."""

    tool: str
    condition: Condition

    @property
    def shown(self) -> str:
        found = [*(self.condition.paths or ()), *map(shown_argv, self.condition.argv or ())]
        methods, urls = "|".join(self.condition.methods or ()), self.condition.url_paths or ()
        return " ".join([self.tool, *found, *filter(None, [methods]), *(self.condition.hosts or ()), *urls])


def atoms(rule: Rule) -> Iterator[Atom]:
    """Yield the pieces that a rule is made of."""
    given = Condition(**{name: getattr(rule, name) for name in Condition.model_fields})
    prefixes = tuple(one for prefix in rule.argv or () for one in _apart(prefix))
    tools = dict.fromkeys(rule.tools)
    for tool, path, prefix, host in product(tools, rule.paths or (None,), prefixes or (None,), rule.hosts or (None,)):
        update = {"paths": path and (path,), "argv": prefix and (prefix,), "hosts": host and (host,)}
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
        _each(_glob, a.paths, b.paths or ("/**",))  # globs that hold everything are as good as none
        and _each(_prefix, a.argv, b.argv)
        and _each(lambda wide, narrow: compile_host(wide).covers(compile_host(narrow)), a.hosts, b.hosts)
        and _each(str.__eq__, a.methods, b.methods)
        and _each(_glob, a.url_paths, b.url_paths)
        and _sizes(a.size_bytes, b.size_bytes)
        and a.time in (None, b.time)
        and a.when in (None, b.when)
    )


def shown_argv(prefix: ArgvWords) -> str:
    """Return an argv prefix for people: `git status|diff {path: ...}`."""
    return " ".join(shown_word(word) for word in prefix)


def shown_word(word: ArgvWord) -> str:
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


def alternatives(word: ArgvWord) -> Sequence[str]:
    """Return the texts that a word of an argv prefix may have; "*" of a placeholder."""
    if isinstance(word, str):
        return (word,)
    return word if isinstance(word, tuple) else ("*",)


class Covering(Generic[T]):
    """Items with conditions, in groups, to be found again by a condition that theirs cover."""

    def __init__(self, limit_comparisons: float = inf) -> None:
        self._kept: dict[tuple[Hashable, str], list[tuple[Condition, T]]] = defaultdict(list)
        self._left = limit_comparisons

    def keep(self, group: Hashable, condition: Condition, item: T) -> None:
        for key in dict.fromkeys(_kept_at(condition)):
            self._kept[group, key].append((condition, item))

    def over(self, group: Hashable, condition: Condition) -> Iterator[T]:
        """Yield the items of a group whose conditions cover this one, until the comparisons are used up."""
        for key in _looked_for_at(condition):
            for wide, item in self._kept.get((group, key), ()):
                self._left -= prod(len(one.paths or one.argv or one.hosts or "1") for one in (wide, condition))
                if self._left < 0:
                    return
                if covers(wide, condition):
                    yield item


def _kept_at(rule: Condition) -> Iterator[str]:
    """Yield where a rule, or a piece of one, is kept: by the directories, the programs or the hosts that it has."""
    if rule.paths is not None:
        yield from (f"path {compile_glob(glob).root}" for glob in rule.paths)
    elif rule.argv is not None:
        for name, *rest in rule.argv:
            # The second word too, where it is one: a policy can have hundreds of rules about git.
            second = f" {rest[0]}" if rest and isinstance(rest[0], str) and rest[0] != "*" else ""
            yield from (f"argv {program}{second}" for program in alternatives(name))
    elif rule.hosts is not None:
        patterns = map(compile_host, rule.hosts)
        yield from (_NETWORKS if "/" in pattern.name else f"host {pattern.name}" for pattern in patterns)
    else:
        yield _ANY


def _looked_for_at(rule: Condition) -> Iterator[str]:
    """Yield where a rule that covers this one is kept: it covers the first path, prefix or host, too."""
    yield _ANY
    if rule.paths is not None:
        glob = compile_glob(rule.paths[0])
        # A literal glob is its own directory here: `/a/**` holds /a as well.
        yield from (f"path {above}" for above in ancestors(glob.text if glob.shape == "path" else glob.root))
    elif rule.argv is not None:
        name, *rest = rule.argv[0]
        for program in dict.fromkeys((alternatives(name)[0], "*")):
            yield f"argv {program}"
            if rest:
                yield f"argv {program} {alternatives(rest[0])[0]}"
    elif rule.hosts is not None:
        pattern = compile_host(rule.hosts[0])
        if pattern.addresses is not None:
            yield _NETWORKS
        labels = pattern.name.split(".")
        yield from (f"host {'.'.join(labels[place:])}" for place in range(len(labels)))
    else:
        yield "path "  # /** is as wide as no paths at all


def _each(within: Callable[[T, T], bool], a: Sequence[T] | None, b: Sequence[T] | None) -> bool:
    """Return whether each of `b` is within one of `a`; None is everything."""
    return a is None or (b is not None and all(any(within(wide, narrow) for wide in a) for narrow in b))


def _glob(a: str, b: str) -> bool:
    return glob_covers(compile_glob(a), compile_glob(b))


def _prefix(a: ArgvWords, b: ArgvWords) -> bool:
    return len(a) <= len(b) and all(map(_word, a, b))


def _word(a: ArgvWord, b: ArgvWord) -> bool:
    if a == b:
        return True
    if isinstance(b, Placeholder):
        return _placeholder(a, b) if isinstance(a, Placeholder) else a == "*" and not b.end
    if isinstance(a, Placeholder):
        says = a.matches is not None or a.number is not None
        return says and all(word != "*" and compile_argv([(a,)])[0].surely([Word(word)]) for word in alternatives(b))
    return a == "*" or (b != "*" and set(alternatives(b)) <= set(alternatives(a)))


def _placeholder(a: Placeholder, b: Placeholder) -> bool:
    if a.path is not None and b.path is not None:
        return _each(_glob, a.path, b.path)
    if a.number is not None and b.number is not None:
        return a.number.least <= b.number.least and b.number.most <= a.number.most
    return False


def _sizes(a: SizeRange | None, b: SizeRange | None) -> bool:
    if a is None or b is None:
        return a is None
    starts = a.over is None or (b.over is not None and b.over >= a.over)
    return starts and (a.up_to is None or (b.up_to is not None and b.up_to <= a.up_to))
