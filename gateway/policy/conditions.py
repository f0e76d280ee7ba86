"""What a rule is about, beyond its tools: matched for sure, or maybe.

A part of a call is not always known whole: the shell expands a word, a search meets files that the call does not name.
So a condition has two answers. A rule that loosens (allow) counts where it matches for sure, one that tightens (deny,
ask) also where it might; an `unless` is the other way round. An ask rule that only might match asks about what other
rules allow, and allows nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from gateway.policy.argv import ArgvPrefix, compile_argv
from gateway.policy.decision import NO, PERHAPS, YES, Certainty, Effect, Facts, Layer, RuleLimit
from gateway.policy.document import Condition, Rule
from gateway.policy.expressions import Expression, ExpressionError, all_visible, compile_expression, context
from gateway.policy.fields import TimeWindow
from gateway.policy.globs import UNLIMITED, Budget, PathGlob, compile_glob, covers, may_meet
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.parts import Part
from gateway.policy.url_paths import compile_url_glob

NAMES = frozenset({"paths", "argv", "hosts"})
"""The conditions that the index of rules matches; all others are matched here, and a new one counts as such."""
REQUESTS = frozenset({"methods", "url_paths"})
"""The conditions that are about HTTP requests."""
T = TypeVar("T")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_PERIODS_S = {"minute": 60, "hour": 3600, "day": 86_400}


@dataclass
class Call:
    """The call that is judged, as conditions look at it."""

    tool: str
    arguments: Mapping[str, object]
    facts: Facts
    _own: dict[int, tuple[Part, dict[str, object]]] = field(default_factory=dict, init=False)
    _contexts: dict[tuple[int, bool], Any] = field(default_factory=dict, init=False)
    # Of the part that is looked at; what the shared context asks, which must not refer to this object.
    _current: dict[str, object] = field(default_factory=dict, init=False)

    @cached_property
    def now(self) -> datetime:
        """When it is judged: the same moment for all its parts."""
        return self.facts.at or datetime.now(UTC)

    def context(self, part: Part, names: frozenset[str]) -> Any:
        """Return what an expression that uses these names sees of a part, to be used before this is called again."""
        own = self._own.get(id(part))
        if own is None:  # the part is kept, so that no other one gets its id
            own = self._own[id(part)] = (part, all_visible(self._of_part(part)))
        if "argv" not in names:
            self._current.clear()
            self._current.update(own[1])
            return self._shared
        # A list is converted whenever the shared context asks for it: in a loop, for each item.
        key = id(part), "args" in names
        if key not in self._contexts:
            shared = {name: value for name, value in self._of_call.items() if name != "args" or "args" in names}
            self._contexts[key] = context(shared | own[1])
        return self._contexts[key]

    @cached_property
    def _shared(self) -> Any:
        """A context for all parts: arguments can be large and parts many, so arguments are converted once."""
        return context(self._of_call, self._current.get)

    @cached_property
    def _of_call(self) -> dict[str, object]:
        facts = self.facts
        variables: dict[str, object] = {
            "args": self.arguments,
            "tenant": facts.tenant,
            "thread": facts.thread,
            "run": facts.run_id,
            "agent": facts.agent,
            "now": self.now,
        }
        command = self.arguments.get("command")
        if isinstance(command, str):
            variables["command"] = command
        return all_visible(variables)

    def _of_part(self, part: Part) -> dict[str, object]:
        """Return what is a part's own, such as other `args` where it is judged as another tool."""
        # Below a directory no single path can be determined, and an expression that looks at it cannot be true.
        path = None if part.below or part.kind == "below" else part.path
        variables: dict[str, object] = {"tool": part.tool}
        if part.of_command and part.tool != "execute":
            variables["args"] = {} if path is None else {"path": path}
        if part.kind == "host":
            # The spellings that rules see: an expression about another one could be talked round.
            seen = {"host": part.host, "port": part.port, "method": part.method, "path": part.url_path}
            variables["args"] = {name: value for name, value in seen.items() if value is not None}
        if part.kind == "command" and all(word.literal is not None for word in part.words):
            variables["argv"] = [word.text for word in part.words]
        known = {"path": path, "host": part.host, "port": part.port, "size_bytes": part.size_bytes}
        return variables | {name: value for name, value in known.items() if value is not None}


Matches = Callable[[Part, Call], Certainty]
"""Whether one condition matches, as far as it is known."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of a rule or of its unless, compiled; `given` are their names."""

    given: frozenset[str]
    matches: tuple[Matches, ...]
    when: Expression | None

    def rest(self, part: Part, call: Call) -> Certainty:
        """Return whether all but the expression match."""
        found = YES
        for matches in self.matches:
            found = min(found, matches(part, call))
        return found

    def is_true(self, part: Part, call: Call) -> bool:
        """Return whether the expression is. Raises ExpressionError."""
        when = self.when
        return when is None or when.holds(lambda: call.context(part, when.variables))

    def whole(self, part: Part, call: Call) -> Certainty:
        """Return whether all of it matches. Raises ExpressionError."""
        found = self.rest(part, call)
        return found if found == NO or self.is_true(part, call) else NO


def compile_conditions(condition: Condition, without: frozenset[str] = frozenset()) -> Conditions:
    """Compile what is given, except the conditions `without` which it is to be."""
    given = condition.given() - without
    matches = tuple(make(getattr(condition, name)) for name, make in _MATCHES.items() if name in given)
    return Conditions(given, matches, compile_expression(str(condition.when)) if "when" in given else None)


def of_path(glob: PathGlob, part: Part, budget: Budget = UNLIMITED, *, loosens: bool = False) -> Certainty:
    """Return whether a glob matches the path of a part, and all that is below it where that is meant.

    What `loosens` has to be sure, so that PERHAPS is not looked for.
    """
    meant = part.meant
    if meant is not None:
        budget.spend(meant.shape != "tree")
        if loosens or may_meet(glob, meant, budget):
            return YES if covers(glob, meant) else NO if loosens else PERHAPS
        return NO
    if part.path is not None:
        return YES if glob.matches(part.path) else NO
    return YES if glob.text == "/**" else PERHAPS  # whatever file it is


def _of_host(pattern: HostPattern, part: Part) -> Certainty:
    return YES if pattern.matches(part.host or "", part.port or 0) else NO


def of_argv(prefix: ArgvPrefix, part: Part, *, loosens: bool = False) -> Certainty:
    """Return whether the command of a part starts with a prefix. What `loosens` has to be sure."""
    if part.kind != "command":
        return NO
    if prefix.surely(part.words, part.cwd):
        return YES
    return PERHAPS if not loosens and prefix.maybe(part.words, part.cwd) else NO


def _of_url_path(glob: PathGlob, part: Part) -> Certainty:
    return YES if glob.text == "/**" else _known(glob.matches, part.url_path)


def _known(holds: Callable[[T], bool], value: T | None) -> Certainty:
    return PERHAPS if value is None else YES if holds(value) else NO


def _one_of(of: Callable[[T, Part], Certainty], wanted: Iterable[T]) -> Matches:
    one_of = tuple(wanted)
    return lambda part, _: PERHAPS if part.kind == "line" else max(of(one, part) for one in one_of)


def in_window(window: TimeWindow, now: datetime) -> bool:
    """Return whether a moment is in a window; a window over midnight belongs to the day on which it begins."""
    local = now.astimezone(ZoneInfo(window.zone))
    day, clock = local.weekday(), f"{local.hour:02}:{local.minute:02}"
    since, until = window.since or "00:00", window.until or "24:00"
    if since < until:
        if not since <= clock < until:
            return False
    elif clock < until:
        day = (day - 1) % 7
    elif clock < since:
        return False
    return window.days is None or _DAYS[day] in window.days


_MATCHES: Mapping[str, Callable[[Any], Matches]] = {
    "time": lambda window: lambda _, call: YES if in_window(window, call.now) else NO,
    "paths": lambda globs: _one_of(of_path, map(compile_glob, globs)),
    "argv": lambda prefixes: _one_of(of_argv, compile_argv(prefixes)),
    "hosts": lambda hosts: _one_of(_of_host, map(compile_host, hosts)),
    "methods": lambda methods: lambda part, _: _known(methods.__contains__, part.method),
    "url_paths": lambda globs: _one_of(_of_url_path, map(compile_url_glob, globs)),
    "size_bytes": lambda size: lambda part, _: _known(size.holds, part.size_bytes),
}
"""How each condition but `when` is compiled; `when` may fail, and is asked when all others match."""


@dataclass(frozen=True)
class CompiledRule:
    """A rule ready to judge. `place` orders rules by layer and file; `more` is None where its names say it all."""

    place: int
    id: str
    effect: Effect
    reason: str
    layer: Layer = "tenant"
    shadow: bool = False
    limit: RuleLimit | None = None
    more: Conditions | None = None
    unless: Conditions | None = None

    @cached_property
    def hits(self) -> tuple[None, Hit | None, Hit]:
        """The hits of this rule by Certainty; an allow has to be sure."""
        return None, None if self.effect == "allow" else Hit(self, self.effect, surely=False), Hit(self, self.effect)

    @cached_property
    def by_names(self) -> bool:
        """Whether the names (paths, argv, hosts) say it all."""
        return self.more is None and self.unless is None

    @cached_property
    def tells_requests_apart(self) -> bool:
        """Whether it may match one HTTP request to a host, and not another."""
        conditions = [one for one in (self.more, self.unless) if one is not None]
        return any(one.given & REQUESTS or (one.when and "args" in one.when.variables) for one in conditions)


def compile_rule(rule: Rule, place: int, layer: Layer = "tenant") -> CompiledRule:
    """Compile all of a rule but its names (paths, argv, hosts), which the index holds."""
    name = f"operator/{rule.id}" if layer == "operator" else rule.id
    rate = rule.rate
    calls, per_s = (rate.calls, _PERIODS_S[rate.per]) if rate is not None else (None, None)
    limit = RuleLimit(name, calls, per_s, rule.at_once)
    return CompiledRule(
        place,
        name,
        rule.effect,
        rule.reason,
        layer,
        shadow=rule.mode == "shadow",
        limit=limit if rule.is_limited else None,
        more=compile_conditions(rule, without=NAMES) if rule.given() - NAMES else None,
        unless=compile_conditions(rule.unless) if rule.unless is not None else None,
    )


@dataclass(frozen=True)
class Hit:
    """A rule that matches a part. `problem` says why it could not be evaluated, and then it denies."""

    rule: CompiledRule
    effect: Effect
    surely: bool = True
    problem: str | None = None


def hit(rule: CompiledRule, named: Certainty, part: Part, call: Call) -> Hit | None:
    """Return the hit of a rule whose names match as said, None where its other conditions do not."""
    if rule.by_names:
        return rule.hits[named]
    found = named if rule.more is None else min(named, rule.more.rest(part, call))
    try:
        if rule.unless is not None and rule.hits[found] is not None:
            found = min(found, rule.unless.whole(part, call).opposite)
        if rule.more is not None and rule.hits[found] is not None and not rule.more.is_true(part, call):
            return None
    except ExpressionError as error:
        return Hit(rule, "deny", problem=str(error))
    return rule.hits[found]
