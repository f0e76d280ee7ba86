"""What a rule is about, beyond its tools: matched for sure, or maybe.

A part of a call is not always known whole: the shell expands a word, a search meets files that the call does not name.
So a condition has two answers. A rule that loosens (allow) counts where it matches for sure, one that tightens (deny,
ask) also where it might; an `unless` is the other way round. An ask rule that only might match asks about what other
rules allow, and allows nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from gateway.policy.argv import ArgvPrefix, compile_argv
from gateway.policy.decision import NO, PERHAPS, YES, Certainty, Effect, Facts, Layer, RuleLimit
from gateway.policy.document import Condition, Rule
from gateway.policy.expressions import Expression, ExpressionError, compile_expression, context
from gateway.policy.fields import SizeRange, TimeWindow
from gateway.policy.globs import PathGlob, compile_glob
from gateway.policy.globs_cover import UNLIMITED, Budget, covers, may_meet
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.parts import Part
from gateway.policy.url_paths import compile_url_glob

NAMES = frozenset({"paths", "argv", "hosts"})
"""The conditions that the index of rules matches; all others are matched here, and a new one counts as such."""
T = TypeVar("T")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_PERIODS_S = {"minute": 60, "hour": 3600, "day": 86_400}


@dataclass
class Call:
    """The call that is judged, as conditions look at it."""

    tool: str
    arguments: Mapping[str, object]
    facts: Facts
    _contexts: dict[int, tuple[Part, Any]] = field(default_factory=dict)

    @cached_property
    def now(self) -> datetime:
        """When it is judged: the same moment for all its parts."""
        return self.facts.now

    def context(self, part: Part) -> Any:
        """Return what expressions see of a part, made once for all rules."""
        made = self._contexts.get(id(part))
        if made is None:  # the part is kept, so that no other one gets its id
            made = self._contexts[id(part)] = (part, context(self._variables(part)))
        return made[1]

    def _variables(self, part: Part) -> dict[str, object]:
        facts = self.facts
        as_another_tool = part.of_command and part.tool != "execute"
        # Below a directory no single path can be determined, and an expression that looks at it cannot be true.
        path = None if part.below or part.kind == "below" else part.path
        variables: dict[str, object] = {
            "tool": part.tool,
            "args": ({} if path is None else {"path": path}) if as_another_tool else self.arguments,
            "tenant": facts.tenant,
            "thread": facts.thread,
            "run": facts.run_id,
            "agent": facts.agent,
            "now": self.now,
        }
        if part.kind == "host":
            # The spellings that rules see: an expression about another one could be talked round.
            seen = {"host": part.host, "port": part.port, "method": part.method, "path": part.url_path}
            variables["args"] = {name: value for name, value in seen.items() if value is not None}
        command = self.arguments.get("command")
        if isinstance(command, str):
            variables["command"] = command
        if part.kind == "command" and all(word.literal is not None for word in part.words):
            variables["argv"] = [word.text for word in part.words]
        known = {"path": path, "host": part.host, "port": part.port, "size_bytes": part.size_bytes}
        return variables | {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Conditions:
    """The conditions of a rule or of its unless, compiled; None is one that is not given."""

    paths: tuple[PathGlob, ...] | None
    argv: tuple[ArgvPrefix, ...] | None
    hosts: tuple[HostPattern, ...] | None
    methods: frozenset[str] | None
    url_paths: tuple[PathGlob, ...] | None
    size_bytes: SizeRange | None
    time: TimeWindow | None
    when: Expression | None

    def rest(self, part: Part, call: Call) -> Certainty:
        """Return whether size, time, and the method and path of a request match, as far as they are known."""
        if self.time is not None and not in_window(self.time, call.now):
            return NO
        return min(
            YES if self.size_bytes is None else _known(self.size_bytes.holds, part.size_bytes),
            YES if self.methods is None else _known(self.methods.__contains__, part.method),
            YES if self.url_paths is None else max(_of_url_path(glob, part.url_path) for glob in self.url_paths),
        )

    @property
    def tells_requests_apart(self) -> bool:
        """Whether it may hold for one HTTP request to a host, and not for another."""
        if self.methods is not None or self.url_paths is not None:
            return True
        return self.when is not None and "args" in self.when.variables

    def is_true(self, part: Part, call: Call) -> bool:
        """Return whether the expression is. Raises ExpressionError."""
        return self.when is None or self.when.holds(lambda: call.context(part))

    def whole(self, part: Part, call: Call) -> Certainty:
        """Return whether all of it matches. Raises ExpressionError."""
        found = min(
            YES if self.paths is None else max(of_path(glob, part) for glob in self.paths),
            YES if self.argv is None else max(of_argv(prefix, part) for prefix in self.argv),
            YES if self.hosts is None else max(of_host(pattern, part) for pattern in self.hosts),
            self.rest(part, call),
        )
        return found if found == NO or self.is_true(part, call) else NO


def compile_conditions(condition: Condition) -> Conditions:
    """Compile what is given."""
    return Conditions(
        tuple(compile_glob(text) for text in condition.paths) if condition.paths is not None else None,
        compile_argv(condition.argv) if condition.argv is not None else None,
        tuple(compile_host(text) for text in condition.hosts) if condition.hosts is not None else None,
        frozenset(condition.methods) if condition.methods is not None else None,
        tuple(map(compile_url_glob, condition.url_paths)) if condition.url_paths is not None else None,
        condition.size_bytes,
        condition.time,
        compile_expression(condition.when) if condition.when is not None else None,
    )


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
    if part.kind == "path" and glob.text == "/**":
        return YES  # whatever file it is
    return PERHAPS if part.kind in ("path", "line") else NO


def of_host(pattern: HostPattern, part: Part) -> Certainty:
    """Return whether a pattern matches the host and the port of a part."""
    if part.host is None or part.port is None:
        return PERHAPS if part.kind == "line" else NO
    return YES if pattern.matches(part.host, part.port) else NO


def of_argv(prefix: ArgvPrefix, part: Part, *, loosens: bool = False) -> Certainty:
    """Return whether the command of a part starts with a prefix. What `loosens` has to be sure."""
    if part.kind != "command":
        return PERHAPS if part.kind == "line" else NO
    if prefix.surely(part.words, part.cwd):
        return YES
    return PERHAPS if not loosens and prefix.maybe(part.words, part.cwd) else NO


def _of_url_path(glob: PathGlob, path: str | None) -> Certainty:
    return YES if glob.text == "/**" else _known(glob.matches, path)


def _known(holds: Callable[[T], bool], value: T | None) -> Certainty:
    return PERHAPS if value is None else YES if holds(value) else NO


def in_window(window: TimeWindow, now: datetime) -> bool:
    """Return whether a moment is in a window; a window over midnight belongs to the day on which it begins."""
    local = now.astimezone(ZoneInfo(window.zone))
    day = local.weekday()
    if window.since is not None and window.until is not None:
        clock = f"{local.hour:02}:{local.minute:02}"
        if window.since < window.until:
            if not window.since <= clock < window.until:
                return False
        elif clock < window.until:
            day = (day - 1) % 7
        elif clock < window.since:
            return False
    return window.days is None or _DAYS[day] in window.days


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
        return any(one is not None and one.tells_requests_apart for one in (self.more, self.unless))


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
        limit=limit if rate is not None or rule.at_once is not None else None,
        more=compile_conditions(rule) if rule.given() - NAMES else None,
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
