"""Deny rules found by what they cover whole: another rule that one of them covers has no effect at all.

Rules are compared only where the one can cover the other: by a tool they share, and by where the first path, program or
host of the covered one lies. That keeps a policy of a thousand rules at milliseconds; a policy that is made to be slow
all the same is compared up to a limit, and no further.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gateway.policy.cover import covers
from gateway.policy.document import Condition, Placeholder, Rule
from gateway.policy.globs import ancestors, compile_glob
from gateway.policy.hosts import compile_host
from gateway.policy.scoped_rule import ScopedRule

LIMIT_COMPARISONS = 20_000
_ANY = ""


class Denials:
    """Deny rules that have no conditions but paths, argv and hosts, and no unless."""

    def __init__(self, rules: Iterable[ScopedRule], limit: int = LIMIT_COMPARISONS) -> None:
        """At most `limit` pieces of rules, one path, prefix or host with another, are compared."""
        self._found: dict[tuple[str, str], list[ScopedRule]] = defaultdict(list)
        self._left = limit
        for placed in rules:
            rule = placed.rule
            if rule.unless is None and rule.given() <= {"paths", "argv", "hosts"}:
                keys = dict.fromkeys(kept_at(rule))
                for tool in dict.fromkeys(rule.tools):
                    for key in keys:
                        self._found[tool, key].append(placed)

    def over(self, rule: Rule) -> ScopedRule | None:
        """Return a rule that denies every call that `rule` is about; None where none surely does."""
        for key in looked_for_at(rule):
            for placed in self._found.get((rule.tools[0], key), ()):
                if not set(rule.tools) <= set(placed.rule.tools):
                    continue
                self._left -= _pieces(placed.rule) * _pieces(rule)
                if self._left < 0:
                    return None
                if covers(placed.rule, rule):
                    return placed
        return None


def _pieces(condition: Condition) -> int:
    return len(condition.paths or condition.argv or condition.hosts or ("",))


def kept_at(rule: Condition) -> Iterator[str]:
    """Yield where a rule, or a piece of one, is kept: by the directories, the programs or the hosts that it has."""
    if rule.paths is not None:
        yield from (f"path {compile_glob(glob).root}" for glob in rule.paths)
    elif rule.argv is not None:
        for name, *rest in rule.argv:
            # The second word too, where it is one: a policy can have hundreds of rules about git.
            second = f" {rest[0]}" if rest and isinstance(rest[0], str) and rest[0] != "*" else ""
            yield from (f"argv {program}{second}" for program in _alternatives(name))
    elif rule.hosts is not None:
        yield from (f"host {compile_host(host).name}" for host in rule.hosts)
    else:
        yield _ANY


def looked_for_at(rule: Condition) -> Iterator[str]:
    """Yield where a rule that covers this one is kept: it covers the first path, prefix or host, too."""
    yield _ANY
    if rule.paths is not None:
        glob = compile_glob(rule.paths[0])
        # A literal glob is its own directory here: `/a/**` holds /a as well.
        yield from (f"path {above}" for above in ancestors(glob.text if glob.shape == "path" else glob.root))
    elif rule.argv is not None:
        name, *rest = rule.argv[0]
        for program in dict.fromkeys((_alternatives(name)[0], "*")):
            yield f"argv {program}"
            if rest:
                yield f"argv {program} {_alternatives(rest[0])[0]}"
    elif rule.hosts is not None:
        labels = compile_host(rule.hosts[0]).name.split(".")
        yield from (f"host {'.'.join(labels[place:])}" for place in range(len(labels)))
    else:
        yield "path "  # /** is as wide as no paths at all


def _alternatives(word: str | tuple[str, ...] | Placeholder) -> Sequence[str]:
    if isinstance(word, str):
        return (word,)
    return word if isinstance(word, tuple) else ("*",)
