"""Rules made ready for judging: an index per tool, so that a decision looks at the few rules that could match.

Path rules are found by the leading directory of their globs, argv rules by their first word, host rules by the last
part of the name. What the index finds is then asked for all its conditions.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain

from gateway.policy.argv import ArgvPrefix, compile_argv
from gateway.policy.conditions import CompiledRule, compile_rule, of_argv, of_path
from gateway.policy.decision import NO, PERHAPS, YES, Certainty, Layer
from gateway.policy.document import Rule
from gateway.policy.fields import rules_of
from gateway.policy.globs import LIMIT_PATH_BYTES, UNLIMITED, Budget, PathGlob, ancestors, compile_glob
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.parts import Part
from gateway.support.hosts import address_of

# A path is compared with a glob in a fraction of what a comparison costs.
_PATHS_PER_COMPARISON = 16
_NETWORKS = "/"
"""Where patterns of networks are kept; no host is called so."""

Found = Iterable[tuple[CompiledRule, Certainty]]
"""Rules whose names (paths, argv, hosts) match a part, and how surely."""

_Named = tuple[frozenset[str] | None, ArgvPrefix, CompiledRule]
"""What the second word must be, looked at first: a policy can have hundreds of rules about git."""


@dataclass
class ToolRules:
    """The rules about one tool."""

    general: list[CompiledRule] = field(default_factory=list)
    by_root: dict[str, list[tuple[PathGlob, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    by_program: dict[str | None, list[_Named]] = field(default_factory=lambda: defaultdict(list))
    by_domain: dict[str, list[tuple[HostPattern, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    narrows: set[bool] = field(default_factory=set)
    """Whether a rule in force (False), or one in shadow (True), tightens for some paths, argv or hosts only."""

    def add(self, rule: Rule, compiled: CompiledRule) -> None:
        """Take in a rule of this tool; all of them before any is matched."""
        if rule.paths is None and rule.argv is None and rule.hosts is None:
            self.general.append(compiled)
        elif rule.effect != "allow":
            self.narrows.add(compiled.shadow)
        for glob in map(compile_glob, rule.paths or ()):
            self.by_root[glob.root].append((glob, compiled))
        for prefix in compile_argv(rule.argv or ()):
            for program in prefix.texts(0) or (None,):
                self.by_program[program].append((prefix.texts(1), prefix, compiled))
        for pattern in map(compile_host, rule.hosts or ()):
            domain = _NETWORKS if "/" in pattern.name else _domain(pattern.name)
            self.by_domain[domain].append((pattern, compiled))

    @cached_property
    def tightening(self) -> list[tuple[PathGlob, CompiledRule]]:
        """The globs that deny or ask, in the order of their directories, to find those below one."""
        pairs = (pair for root in sorted(self.by_root) for pair in self.by_root[root])
        return [pair for pair in pairs if pair[1].effect != "allow"]

    def matching(self, part: Part, budget: Budget = UNLIMITED) -> Found:
        """Yield the rules whose names hold for a part of this tool; a rule may come more than once.

        Raises TooComplex.
        """
        general = ((rule, YES) for rule in (self.looking if part.kind == "below" else self.general))
        if part.kind in ("path", "below"):
            return chain(general, self._by_path(part, budget))
        if part.kind == "command":
            return chain(general, self._by_argv(part, budget))
        return chain(general, self.by_host(part)) if part.kind == "host" else general

    @cached_property
    def looking(self) -> tuple[CompiledRule, ...]:
        """The general rules that tighten by an expression: it sees the path of a search, not what the search meets."""
        return tuple(rule for rule in self.general if rule.effect != "allow" and rule.more and rule.more.when)

    def _by_path(self, part: Part, budget: Budget) -> Found:
        """Yield what allows all that a part means, and what tightens any of it."""
        if part.path is None and part.glob is None:  # only rules about all files are surely about it
            yield from ((rule, YES) for glob, rule in self.by_root.get("", ()) if glob.text == "/**")
            return
        path = part.path if part.meant is None else None
        for glob, rule in chain.from_iterable(self._near(part, budget)):
            if path is not None:  # most often, and this costs the least
                if glob.needle in path and glob.matches(path):
                    yield rule, YES
            elif (named := of_path(glob, part, budget, loosens=rule.effect == "allow")) != NO:
                yield rule, named
        if part.meant is not None and part.meant.shape == "tree":
            # What is rooted inside is met, and never all that is met.
            yield from ((rule, PERHAPS) for _, rule in self._inside(part.meant.root))

    def _near(self, part: Part, budget: Budget) -> Iterator[list[tuple[PathGlob, CompiledRule]]]:
        """Yield the globs whose directory is above what a part means, and for a glob those inside that tighten."""
        meant = part.meant
        path = (part.path if meant is None else meant.root) or "/"
        for root in ancestors(path):
            found = self.by_root.get(root, [])
            budget.spend(len(found) // _PATHS_PER_COMPARISON)
            yield found
        if meant is not None and meant.shape != "tree":
            deepest = LIMIT_PATH_BYTES if "**" in meant.components else len(meant.components)
            yield [pair for pair in self._inside(path) if pair[0].depth <= deepest]

    def _inside(self, directory: str) -> list[tuple[PathGlob, CompiledRule]]:
        """Return the tightening globs whose root is below a directory."""
        inside, at = directory.rstrip("/"), partial(bisect_left, self.tightening, key=lambda pair: pair[0].root)
        return self.tightening[at(f"{inside}/") : at(f"{inside}0")]  # 0 comes after /

    def _by_argv(self, part: Part, budget: Budget) -> Found:
        words = part.words
        # Options may stand before the word that a prefix has next, so each is compared with it.
        options = next((place for place, word in enumerate(words[1:]) if word.text[:1] != "-"), len(words) - 1)
        program = words[0].text if words else ""
        named = self.by_program.get(program, ())
        bare = self.by_program.get(program.rpartition("/")[2], ()) if "/" in program else ()
        # The text that the second word must have, None when it has none that is known; options may stand before it.
        second = words[1].literal if len(words) > 1 and not words[1].text.startswith("-") else None
        for wanted, prefix, rule in chain(named, bare, self.by_program.get(None, ())):
            if wanted is not None and second is not None and second not in wanted:
                continue
            budget.spend(2 + options)
            if (found := of_argv(prefix, part, loosens=rule.effect == "allow")) != NO:
                yield rule, found
        for outer in part.within:
            around = len(outer.words) - len(words)
            for _, prefix, rule in chain(self.by_program.get(outer.words[0].text, ()), self.by_program.get(None, ())):
                # `uv run pytest` is allowed by these three words, and by `pytest`; not by `uv` alone.
                if rule.effect == "allow" and len(prefix.words) > around and prefix.surely(outer.words, outer.cwd):
                    yield rule, YES

    def by_host(self, part: Part) -> Found:
        """Yield the rules whose hosts name a part's."""
        host = part.host or ""
        keys = {_domain(host), host.rpartition(".")[2]}
        if address_of(host) is not None:
            keys.add(_NETWORKS)
        for pattern, rule in chain.from_iterable(self.by_domain.get(key, ()) for key in keys):
            if pattern.matches(host, part.port or 0):
                yield rule, YES


_NO_RULES = ToolRules()


@dataclass(frozen=True)
class RuleIndex:
    """The rules of one layer, by tool."""

    tools: dict[str, ToolRules]

    def of(self, tool: str) -> ToolRules:
        if "/" not in tool:
            return self.tools.get(tool, _NO_RULES)
        found = [self.tools[name] for name in rules_of(tool) if name in self.tools]
        if len(found) < 2:
            return found[0] if found else _NO_RULES
        return ToolRules([rule for rules in found for rule in rules.general])  # tools of servers have no other rules


def compile_rules(rules: Iterable[Rule], layer: Layer = "tenant", *, first: int = 0) -> RuleIndex:
    """Return the index of the rules of a layer, whose places count from `first`."""
    index: dict[str, ToolRules] = defaultdict(ToolRules)
    for place, rule in enumerate(rules, first):
        compiled = compile_rule(rule, place, layer)
        for tool in dict.fromkeys(rule.tools):
            index[tool].add(rule, compiled)
    return RuleIndex(dict(index))


def _domain(host: str) -> str:
    """Return the last two parts of a name, by which patterns are found; one part where it has no more."""
    return ".".join(host.rsplit(".", 2)[-2:])
