"""Rules made ready for judging: an index per tool, so that a decision looks at the few rules that could match.

Path rules are found by the leading directory of their globs, argv rules by their first word. A deny rule errs on the
side of matching: it also looks at the bare name of a program written with its path, and a word that the shell expands
might be any word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from gateway.policy.decision import Effect
from gateway.policy.document import Rule
from gateway.policy.globs import PathGlob, compile_glob
from gateway.policy.words import Word

ANY_WORD = "*"


@dataclass(frozen=True)
class CompiledRule:
    """A rule and its place in the file, from 0."""

    place: int
    id: str
    effect: Effect
    reason: str


@dataclass(frozen=True)
class ArgvPrefix:
    """The first words of a command; None is one word of any text."""

    words: tuple[frozenset[str] | None, ...]

    @property
    def second(self) -> frozenset[str] | None:
        """What the second word must be, None when it may be anything or be missing."""
        return self.words[1] if len(self.words) > 1 else None

    def allows(self, words: Sequence[Word]) -> bool:
        """Return whether a command surely starts with this prefix."""
        if len(words) < len(self.words):
            return False
        return all(
            word.kind == "literal" and (wanted is None or word.text in wanted)
            for wanted, word in zip(self.words, words, strict=False)
        )

    def denies(self, words: Sequence[Word]) -> bool:
        """Return whether a command starts with this prefix or might, once the shell has expanded it."""
        for place, wanted in enumerate(self.words):
            if place >= len(words):
                return False
            if words[place].kind == "glob":
                return True
            if wanted is None or words[place].text in wanted:
                continue
            if place > 0 or words[place].text.rpartition("/")[2] not in wanted:
                return False
        return True


_Named = tuple[frozenset[str] | None, ArgvPrefix, CompiledRule]
"""What the second word must be, looked at first: a policy can have hundreds of rules about git."""


@dataclass
class ToolRules:
    """The rules about one tool."""

    general: list[CompiledRule] = field(default_factory=list)
    by_root: dict[str, list[tuple[PathGlob, CompiledRule]]] = field(default_factory=lambda: defaultdict(list))
    by_program: dict[str | None, list[_Named]] = field(default_factory=lambda: defaultdict(list))
    denied_globs: list[tuple[PathGlob, CompiledRule]] = field(default_factory=list)
    denies_argv: bool = False

    def add(self, rule: Rule, compiled: CompiledRule) -> None:
        """Take in a rule of this tool."""
        if rule.paths is None and rule.argv is None:
            self.general.append(compiled)
        for text in rule.paths or ():
            glob = compile_glob(text)
            self.by_root[glob.root].append((glob, compiled))
            if rule.effect == "deny":
                self.denied_globs.append((glob, compiled))
        for argv in rule.argv or ():
            prefix = ArgvPrefix(tuple(_alternatives(word) for word in argv))
            for program in prefix.words[0] or (None,):
                self.by_program[program].append((prefix.second, prefix, compiled))
            self.denies_argv = self.denies_argv or rule.effect == "deny"

    def matching_path(self, path: str) -> Iterator[CompiledRule]:
        """Yield the rules that match an absolute normalised path."""
        yield from self.general
        root = path
        while True:
            for glob, rule in self.by_root.get(root, ()):
                if glob.needle in path and glob.matches(path):
                    yield rule
            if not root:
                return
            root = root.rpartition("/")[0]

    def denying_below(self, directory: str) -> Iterator[CompiledRule]:
        """Yield the deny rules that match something that a search of the directory could meet."""
        for glob, rule in self.denied_globs:
            if glob.may_match_below(directory):
                yield rule

    def matching_argv(self, words: Sequence[Word], *, wrapper: bool = False) -> Iterator[CompiledRule]:
        """Yield the rules that match a simple command; of a wrapper only the deny rules."""
        program = words[0].text
        yield from self.general
        named = self.by_program.get(program, ())
        bare = self.by_program.get(program.rpartition("/")[2], ()) if "/" in program else ()
        # The text that the second word must have, None when it has none that is known.
        second = words[1].text if len(words) > 1 and words[1].kind == "literal" else None
        for wanted, prefix, rule in chain(named, bare, self.by_program.get(None, ())):
            if wanted is not None and second is not None and second not in wanted:
                continue
            if rule.effect == "deny":
                if prefix.denies(words):
                    yield rule
            elif not wrapper and prefix.allows(words):
                yield rule


def _alternatives(word: str | tuple[str, ...]) -> frozenset[str] | None:
    if word == ANY_WORD:
        return None
    return frozenset((word,) if isinstance(word, str) else word)


def compile_rules(rules: Sequence[Rule]) -> dict[str, ToolRules]:
    """Return the index of each tool that a rule names."""
    index: dict[str, ToolRules] = defaultdict(ToolRules)
    for place, rule in enumerate(rules):
        compiled = CompiledRule(place, rule.id, rule.effect, rule.reason)
        for tool in dict.fromkeys(rule.tools):
            index[tool].add(rule, compiled)
    return dict(index)
