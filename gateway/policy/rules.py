"""Rules made ready for judging: an index per tool, so that a decision looks at the few rules that could match.

Path rules are found by the leading directory of their globs, argv rules by their first word, host rules by the last
part of the name. What the index finds is then asked for all its conditions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile

from gateway.policy.argv import ArgvPrefix, compile_argv
from gateway.policy.budget import UNLIMITED, Budget
from gateway.policy.conditions import PERHAPS, YES, CompiledRule, Held, compile_rule, host_held, path_held
from gateway.policy.decision import Layer
from gateway.policy.document import Rule
from gateway.policy.globs import LIMIT_PATH_BYTES, PathGlob, ancestors, compile_glob, read_glob
from gateway.policy.globs_cover import covers, may_meet
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.parts import Part

Found = Iterator[tuple[CompiledRule, Held]]
"""Rules whose names (paths, argv, hosts) hold for a part, and how surely."""

_Named = tuple[frozenset[str] | None, ArgvPrefix, CompiledRule]
"""What the second word must be, looked at first: a policy can have hundreds of rules about git."""


@dataclass
class ToolRules:
    """The rules about one tool."""

    general: list[CompiledRule] = field(default_factory=list)
    by_root: dict[str, list[tuple[PathGlob, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    covering: dict[str, list[tuple[PathGlob, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    """The globs that allow all below a directory, and those that tighten something below one: see `_below`."""
    tightening: dict[str, list[tuple[PathGlob, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    by_program: dict[str | None, list[_Named]] = field(default_factory=lambda: defaultdict(list))
    by_domain: dict[str, list[tuple[HostPattern, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    narrows: set[bool] = field(default_factory=set)
    """Whether a rule in force (False), or one in shadow (True), tightens for some paths, argv or hosts only."""
    by_place: list[tuple[PathGlob, CompiledRule]] = field(default_factory=list)
    """What is in `tightening` in the order of its directories, `roots`, to find those below one."""
    roots: list[str] = field(default_factory=list)

    def add(self, rule: Rule, compiled: CompiledRule) -> None:
        """Take in a rule of this tool."""
        if rule.paths is None and rule.argv is None and rule.hosts is None:
            self.general.append(compiled)
        elif rule.effect != "allow":
            self.narrows.add(compiled.shadow)
        for text in rule.paths or ():
            glob = compile_glob(text)
            self.by_root[glob.root].append((glob, compiled))
            if rule.effect != "allow":
                self.tightening[glob.root].append((glob, compiled))
            elif glob.components[-1:] == ("**",):
                self.covering[glob.root].append((glob, compiled))
        for prefix in compile_argv(rule.argv or ()):
            for program in prefix.programs or (None,):
                self.by_program[program].append((prefix.second, prefix, compiled))
        for text in rule.hosts or ():
            pattern = compile_host(text)
            self.by_domain[_domain(pattern.name)].append((pattern, compiled))

    def order(self) -> None:
        """Make what was added ready to be matched."""
        tightening = (pair for pairs in self.tightening.values() for pair in pairs)
        self.by_place = sorted(tightening, key=lambda pair: pair[0].root)
        self.roots = [glob.root for glob, _ in self.by_place]

    def concerns(self, part: Part) -> bool:
        """Return whether any rule could match a file or a host that a command names."""
        return bool(self.general) or bool(self.by_root if part.kind == "path" else self.by_domain)

    def matching(self, part: Part, budget: Budget = UNLIMITED) -> Found:
        """Yield the rules whose names hold for a part of this tool; a rule may come more than once.

        Raises TooComplex.
        """
        kind = part.kind
        if kind == "below":
            return chain(((rule, YES) for rule in self.looking), self._by_path(part, budget))
        general = ((rule, YES) for rule in self.general)
        if kind == "path":
            return chain(general, self._by_path(part, budget))
        if kind == "command":
            return chain(general, self._by_argv(part, budget))
        return chain(general, self._by_host(part)) if kind == "host" else general

    @cached_property
    def looking(self) -> tuple[CompiledRule, ...]:
        """The general rules that tighten by an expression: it sees the path of a search, not what the search meets."""
        return tuple(rule for rule in self.general if rule.effect != "allow" and rule.more and rule.more.when)

    def _by_path(self, part: Part, budget: Budget) -> Found:
        path = part.path
        if part.glob is not None:
            return self._by_glob(read_glob(f"{part.glob}/**" if part.below else part.glob), budget)
        if path is None:
            # Only "/**" allows whatever file it is, and its root is the root.
            unknown = chain(self.covering.get("", ()), self.by_place)
            return ((rule, YES if glob.text == "/**" else PERHAPS) for glob, rule in unknown)
        return self._below(path, part) if part.kind == "below" or part.below else self._at(path)

    def _at(self, path: str) -> Found:
        for root in ancestors(path):
            for glob, rule in self.by_root.get(root, ()):
                if glob.matches(path):
                    yield rule, YES

    def _below(self, path: str, part: Part) -> Found:
        """Yield what allows everything below a directory, and what tightens anything in it."""
        for root in ancestors(path):
            if part.needs_allow:
                yield from self._held(self.covering.get(root, ()), part)
            yield from self._held(self.tightening.get(root, ()), part)
        # What is rooted inside is met, and never all that is met.
        first, last = self._inside(path)
        for _, rule in self.by_place[first:last]:
            yield rule, PERHAPS

    def _by_glob(self, meant: PathGlob, budget: Budget) -> Found:
        """Yield what allows all that a glob matches, and what tightens any of it."""
        for root in ancestors(meant.root or "/"):
            for glob, rule in self.by_root.get(root, ()):
                if rule.effect == "allow":
                    budget.spend(1)
                    if covers(glob, meant):
                        yield rule, YES
                elif may_meet(glob, meant, budget):
                    yield rule, Held(covers(glob, meant), maybe=True)
        deepest = LIMIT_PATH_BYTES if "**" in meant.components else len(meant.components)
        first, last = self._inside(meant.root or "/")
        for glob, rule in self.by_place[first:last]:
            if glob.depth <= deepest and may_meet(glob, meant, budget):
                yield rule, Held(covers(glob, meant), maybe=True)

    def _inside(self, directory: str) -> tuple[int, int]:
        """Return where in `by_place` the globs begin and end whose root is below a directory."""
        inside = "/" if directory == "/" else directory + "/"
        return bisect_left(self.roots, inside), bisect_left(self.roots, inside[:-1] + "0")  # 0 comes after /

    @staticmethod
    def _held(globs: Iterable[tuple[PathGlob, CompiledRule]], part: Part) -> Found:
        for glob, rule in globs:
            held = path_held((glob,), part)
            if held.maybe:
                yield rule, held

    def _by_argv(self, part: Part, budget: Budget) -> Found:
        words = part.words
        # Options may stand before the word that a prefix has next, so each is compared with it.
        options = sum(1 for _ in takewhile(lambda word: word.text.startswith("-"), words[1:]))
        program = words[0].text if words else ""
        named = self.by_program.get(program, ())
        bare = self.by_program.get(program.rpartition("/")[2], ()) if "/" in program else ()
        # The text that the second word must have, None when it has none that is known; options may stand before it.
        second = words[1].literal if len(words) > 1 and not words[1].text.startswith("-") else None
        for wanted, prefix, rule in chain(named, bare, self.by_program.get(None, ())):
            if wanted is not None and second is not None and second not in wanted:
                continue
            budget.spend(2 + options)
            if rule.effect == "allow":
                if prefix.surely(words, part.cwd):
                    yield rule, YES
            elif prefix.maybe(words, part.cwd):
                yield rule, Held(surely=prefix.surely(words, part.cwd), maybe=True)
        for outer in part.within:
            around = len(outer.words) - len(words)
            for _, prefix, rule in chain(self.by_program.get(outer.words[0].text, ()), self.by_program.get(None, ())):
                # `uv run pytest` is allowed by these three words, and by `pytest`; not by `uv` alone.
                if rule.effect == "allow" and len(prefix.words) > around and prefix.surely(outer.words, outer.cwd):
                    yield rule, YES

    def _by_host(self, part: Part) -> Found:
        if part.host is None:
            patterns = chain.from_iterable(self.by_domain.values())
        else:
            domains = {_domain(part.host), part.host.rpartition(".")[2]}
            patterns = chain.from_iterable(self.by_domain.get(domain, ()) for domain in domains)
        for pattern, rule in patterns:
            held = host_held((pattern,), part)
            if held.maybe:
                yield rule, held


_NO_RULES = ToolRules()


@dataclass(frozen=True)
class RuleIndex:
    """The rules of one layer, by tool."""

    tools: dict[str, ToolRules]

    def of(self, tool: str) -> ToolRules:
        """Return the rules about a tool."""
        return self.tools.get(tool, _NO_RULES)


def compile_rules(rules: Iterable[Rule], layer: Layer = "tenant", *, first: int = 0) -> RuleIndex:
    """Return the index of the rules of a layer, whose places count from `first`."""
    index: dict[str, ToolRules] = defaultdict(ToolRules)
    for place, rule in enumerate(rules, first):
        compiled = compile_rule(rule, place, layer)
        for tool in dict.fromkeys(rule.tools):
            index[tool].add(rule, compiled)
    for tool_rules in index.values():
        tool_rules.order()
    return RuleIndex(dict(index))


def _domain(host: str) -> str:
    """Return the last two parts of a name, by which patterns are found; one part where it has no more."""
    return ".".join(host.rsplit(".", 2)[-2:])
