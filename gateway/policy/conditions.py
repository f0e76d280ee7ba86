"""What a rule is about, beyond its tools: matched for sure, or maybe.

A part of a call is not always known whole: the shell expands a word, a search meets files that the call does not name.
So a condition has two answers. A rule that loosens (allow) counts where it matches for sure, one that tightens (deny,
ask) also where it might; an `unless` is the other way round. An ask rule that only might match asks about what other
rules allow, and allows nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from gateway.policy.argv import ArgvPrefix, compile_argv
from gateway.policy.decision import Effect, Facts, Layer, RuleLimit
from gateway.policy.document import Condition, Rule, SizeRange, TimeWindow
from gateway.policy.expressions import Expression, ExpressionError, compile_expression, context
from gateway.policy.globs import PathGlob, compile_glob, read_glob
from gateway.policy.globs_cover import covers, may_meet
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.parts import Part

NAMES = frozenset({"paths", "argv", "hosts"})
"""The conditions that the index of rules matches; all others are matched here, and a new one counts as such."""
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_PERIODS_S = {"minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True)
class Held:
    """Whether a condition holds: for sure, and at all."""

    surely: bool
    maybe: bool

    def __and__(self, other: Held) -> Held:
        if self.surely:
            return other
        return Held(surely=False, maybe=self.maybe and other.maybe)


YES, NO, PERHAPS = Held(surely=True, maybe=True), Held(surely=False, maybe=False), Held(surely=False, maybe=True)


def _held(holds: bool) -> Held:
    return YES if holds else NO


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
    size: SizeRange | None
    time: TimeWindow | None
    when: Expression | None

    def names(self, part: Part) -> Held:
        """Return whether paths, argv and hosts hold."""
        held = YES
        if self.paths is not None:
            held = held & path_held(self.paths, part)
        if self.argv is not None:
            held = held & _argv_held(self.argv, part)
        if self.hosts is not None:
            held = held & host_held(self.hosts, part)
        return held

    def rest(self, part: Part, call: Call) -> Held:
        """Return whether size and time hold."""
        held = YES
        if self.size is not None:
            held = _size_held(self.size, part.size_bytes)
        if self.time is not None and held.maybe:
            held = held & _held(in_window(self.time, call.now))
        return held

    def whole(self, part: Part, call: Call) -> Held:
        """Return whether all of it holds. Raises ExpressionError."""
        held = self.names(part) & self.rest(part, call)
        if self.when is not None and held.maybe:
            held = held & _held(self.when.holds(lambda: call.context(part)))
        return held


def compile_conditions(condition: Condition) -> Conditions:
    """Compile what is given."""
    return Conditions(
        tuple(compile_glob(text) for text in condition.paths) if condition.paths is not None else None,
        compile_argv(condition.argv) if condition.argv is not None else None,
        tuple(compile_host(text) for text in condition.hosts) if condition.hosts is not None else None,
        condition.size_bytes,
        condition.time,
        compile_expression(condition.when) if condition.when is not None else None,
    )


def path_held(globs: tuple[PathGlob, ...], part: Part) -> Held:
    """Return whether one of the globs matches the path of a part, and all that is below it where that is meant."""
    if part.kind not in ("path", "below"):
        return PERHAPS if part.kind == "line" else NO
    path = part.path
    if part.glob is not None:
        meant = read_glob(f"{part.glob}/**" if part.below else part.glob)
        surely = any(covers(glob, meant) for glob in globs)
        return Held(surely, surely or any(may_meet(glob, meant) for glob in globs))
    if path is None:
        return YES if any(glob.text == "/**" for glob in globs) else PERHAPS  # whatever file it is
    if part.kind == "below" or part.below:
        surely = any(glob.covers_below(path) for glob in globs)
        return Held(surely, surely or any(glob.may_match_below(path) for glob in globs))
    return _held(any(glob.matches(path) for glob in globs))


def host_held(patterns: tuple[HostPattern, ...], part: Part) -> Held:
    """Return whether one of the patterns matches the host and the port of a part."""
    if part.kind != "host":
        return PERHAPS if part.kind == "line" else NO
    host = part.host
    if host is None:
        return PERHAPS
    surely = any(pattern.surely(host, part.port) for pattern in patterns)
    return Held(surely, surely or any(pattern.maybe(host, part.port) for pattern in patterns))


def _argv_held(prefixes: tuple[ArgvPrefix, ...], part: Part) -> Held:
    if part.kind != "command":
        return PERHAPS if part.kind == "line" else NO
    surely = any(prefix.surely(part.words, part.cwd) for prefix in prefixes)
    return Held(surely, surely or any(prefix.maybe(part.words, part.cwd) for prefix in prefixes))


def _size_held(size: SizeRange, written: int | None) -> Held:
    if written is None:
        return PERHAPS
    return _held((size.over is None or written > size.over) and (size.up_to is None or written <= size.up_to))


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
    def hits(self) -> tuple[Hit | None, Hit]:
        """The hits of this rule where it only might match, and where it does."""
        return None if self.effect == "allow" else Hit(self, self.effect, surely=False), Hit(self, self.effect)

    @cached_property
    def by_names(self) -> tuple[Hit | None, Hit] | None:
        """`hits` of a rule whose names say it all, None of one with more conditions."""
        return self.hits if self.more is None and self.unless is None else None


def compile_rule(rule: Rule, place: int, layer: Layer = "tenant") -> CompiledRule:
    """Compile all of a rule but its names (paths, argv, hosts), which the index holds."""
    name = f"operator/{rule.id}" if layer == "operator" else rule.id
    return CompiledRule(
        place,
        name,
        rule.effect,
        rule.reason,
        layer,
        shadow=rule.mode == "shadow",
        limit=_limit(rule, name),
        more=compile_conditions(rule) if rule.given() - NAMES else None,
        unless=compile_conditions(rule.unless) if rule.unless is not None else None,
    )


def _limit(rule: Rule, name: str) -> RuleLimit | None:
    if rule.rate is None and rule.at_once is None:
        return None
    per_s = _PERIODS_S[rule.rate.per] if rule.rate is not None else None
    return RuleLimit(name, rule.rate.calls if rule.rate is not None else None, per_s, rule.at_once)


@dataclass(frozen=True)
class Hit:
    """A rule that matches a part. `problem` says why it could not be evaluated, and then it denies."""

    rule: CompiledRule
    effect: Effect
    surely: bool = True
    problem: str | None = None


def hit(rule: CompiledRule, named: Held, part: Part, call: Call) -> Hit | None:
    """Return the hit of a rule whose names hold as said, None where its other conditions do not hold."""
    by_names = rule.by_names
    if by_names is not None:
        return by_names[named.surely] if named.maybe else None
    held = named
    try:
        if rule.more is not None:
            held = held & rule.more.rest(part, call)
        if rule.unless is not None and counts(rule.effect, held):
            excepted = rule.unless.whole(part, call)
            held = held & Held(surely=not excepted.maybe, maybe=not excepted.surely)
        if rule.more is not None and rule.more.when is not None and counts(rule.effect, held):
            held = held & _held(rule.more.when.holds(lambda: call.context(part)))
    except ExpressionError as error:
        return Hit(rule, "deny", problem=str(error))
    return _hit(rule, held)


def counts(effect: Effect, held: Held) -> bool:
    """Return whether what matched is enough for a rule: an allow has to be sure."""
    return held.surely if effect == "allow" else held.maybe


def _hit(rule: CompiledRule, held: Held) -> Hit | None:
    return rule.hits[held.surely] if held.maybe else None
