"""What the rules say of one call: the hits of each part, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from gateway.policy.conditions import CompiledRule, Hit
from gateway.policy.decision import DEFAULT_DENY, OPAQUE, Decision, Effect, Match, RuleLimit
from gateway.policy.parts import Part, shown

WHOLE_LINE = "the whole line"
_SHOWN_ALLOWED = 10


@dataclass(frozen=True)
class Judged:
    """A part and the rules that hit it.

    `granted` is the rule of a grant that answers what is asked about it. `narrowed`: whether a rule in force (False),
    or in shadow (True), tightens for some files, where it cannot be determined which one is meant.
    """

    part: Part
    hits: tuple[Hit, ...]
    granted: CompiledRule | None = None
    narrowed: frozenset[bool] = frozenset()

    def counting(self, *, shadow: bool) -> list[Hit]:
        return [hit for hit in self.hits if shadow or not hit.rule.shadow]


@dataclass
class Ruling:
    """What was found about one call, and how a line that is opaque is to be taken.

    `line` is the whole line and the rules without argv, where it is opaque; `allowed` gives what rules allow of a tool,
    as they are written; `narrows` is whether rules in force (False), or in shadow (True), tighten some lines only.
    """

    tool: str
    judged: list[Judged] = field(default_factory=list)
    opaque: str | None = None
    opaque_effect: Effect = "deny"
    line: Judged | None = None
    allowed: Callable[[str], tuple[str, ...]] = lambda _: ()
    narrows: frozenset[bool] = frozenset()

    def trace(self) -> tuple[Match, ...]:
        matches: list[Match] = []
        for judged in self._all():
            part, granted = judged.part.shown, judged.granted
            matches += (Match(part, hit.rule.id, hit.effect, hit.rule.shadow, hit.rule.layer) for hit in judged.hits)
            matches += [Match(part, granted.id, "allow")] if granted is not None else []
        return tuple(matches)

    def conclude(self, *, shadow: bool = False) -> Decision:
        """Return what the rules in force say, or with `shadow` what they and the ones in shadow would say."""
        outcome = _Outcome()
        for judged in self.judged:
            outcome.take(judged, judged.counting(shadow=shadow))
        opaque = self._opaque(shadow=shadow)
        # A command that nothing allows stays denied, also where a file that another one opens cannot be determined.
        if opaque is not None and (self.opaque is not None or not outcome.unmatched):
            return self._conclude_opaque(shown(opaque), outcome, shadow=shadow)
        if outcome.denying:
            return self._denied(outcome.denying)
        if outcome.unmatched or not (outcome.asking or outcome.passing or outcome.passing_effects):
            return Decision("deny", DEFAULT_DENY, self._unmatched(outcome))
        return outcome.passed()

    def _unmatched(self, outcome: _Outcome) -> str:
        if self.judged and self.judged[0].part.kind == "tool":
            return f"no rule of the policy allows the tool {shown(self.tool)!r}"
        part = outcome.unmatched[0] if outcome.unmatched else None
        said = f"no rule of the policy allows {self.tool}: {'this' if part is None else part.shown}"
        allowed = self.allowed(self.tool if part is None or part.kind == "command" else part.tool)
        more = ", ..." if len(allowed) > _SHOWN_ALLOWED else ""
        return f"{said}. It allows {', '.join(map(shown, allowed[:_SHOWN_ALLOWED]))}{more}" if allowed else said

    def _denied(self, denying: list[Hit]) -> Decision:
        """Return the decision of rules that deny; of several parts it names the one that the first rule is about."""
        verdict = _by_rule("deny", denying)
        if len(self.judged) < 2:
            return verdict
        about = (judged.part.shown for judged in self._all() if any(hit.rule.id == verdict.rule for hit in judged.hits))
        part = next(about, WHOLE_LINE)
        return verdict if part == WHOLE_LINE else replace(verdict, reason=f"{verdict.reason} ({part})")

    def _opaque(self, *, shadow: bool) -> str | None:
        """Return why the line is opaque: as it is read, or because a rule would have to know which file is meant."""
        if self.opaque is not None:
            return self.opaque
        for judged in self.judged:
            if judged.part.is_known:
                continue
            passes = any(hit.surely and hit.effect != "deny" for hit in judged.counting(shadow=shadow))
            if not passes or False in judged.narrowed or (shadow and True in judged.narrowed):
                return f"{judged.part.shown}, and rules treat some of them differently"
        return None

    def _conclude_opaque(self, opaque: str, outcome: _Outcome, *, shadow: bool) -> Decision:
        line = self.line.counting(shadow=shadow) if self.line is not None else []
        if denying := [*outcome.denying, *(hit for hit in line if hit.effect == "deny")]:
            return self._denied(denying)
        for hit in line:
            if hit.effect == "ask":
                outcome.ask(WHOLE_LINE, hit)
        outcome.limit(line)
        narrowed = False in self.narrows or (shadow and True in self.narrows)
        if any(hit.surely for hit in line) and not narrowed:
            outcome.passing.extend(hit for hit in line if hit.effect == "allow")
            return outcome.passed()
        if self.opaque_effect == "deny":
            said = f"the command line is opaque: {opaque}. Write plain commands with literal words, or one per call."
            return Decision("deny", OPAQUE, said)
        if self.opaque_effect == "ask":
            asked = tuple({**outcome.asked, WHOLE_LINE: None})
            said = f"the policy asks about opaque command lines; {opaque}"
            return Decision("ask", OPAQUE, said, asked=asked, limits=outcome.taken())
        if outcome.asking:
            return outcome.passed()
        return Decision("allow", OPAQUE, f"the policy allows opaque command lines; {opaque}", limits=outcome.taken())

    def _all(self) -> Iterator[Judged]:
        yield from self.judged
        if self.line is not None and self._opaque(shadow=True) is not None:
            yield self.line


@dataclass
class _Outcome:
    denying: list[Hit] = field(default_factory=list)
    asking: list[Hit] = field(default_factory=list)
    passing: list[Hit] = field(default_factory=list)
    passing_effects: list[Hit] = field(default_factory=list)
    """What lets the files of a command line pass; the rules about its commands are named before these."""
    asked: dict[str, None] = field(default_factory=dict)
    unmatched: list[Part] = field(default_factory=list)
    limits: dict[int, RuleLimit] = field(default_factory=dict)
    """By the places of the rules."""

    def take(self, judged: Judged, hits: list[Hit]) -> None:
        part = judged.part
        self.limit(hits)
        denying, asking, allowing = ([hit for hit in hits if hit.effect == one] for one in ("deny", "ask", "allow"))
        if denying:
            self.denying.extend(denying)
        elif part.needs_allow and part.is_known and not allowing and not any(hit.surely for hit in asking):
            self.unmatched.append(part)
        elif not asking:
            (self.passing_effects if part.of_command else self.passing).extend(allowing)
        elif judged.granted is not None:
            self.passing.append(Hit(judged.granted, "allow"))
        else:
            for hit in asking:
                self.ask(part.shown if hit.rule.tells_requests_apart else part.endpoint, hit)

    def ask(self, part: str, hit: Hit) -> None:
        self.asking.append(hit)
        self.asked[part] = None

    def limit(self, hits: Iterable[Hit]) -> None:
        for hit in hits:
            if hit.rule.limit is not None and hit.effect != "deny":
                self.limits[hit.rule.place] = hit.rule.limit

    def taken(self) -> tuple[RuleLimit, ...]:
        """Return the limits, in the order of the file."""
        return tuple(self.limits[place] for place in sorted(self.limits))

    def passed(self) -> Decision:
        """Return ask where something is asked, else allow."""
        if self.asking:
            return _by_rule("ask", self.asking, tuple(self.asked), self.taken())
        return _by_rule("allow", self.passing or self.passing_effects, limits=self.taken())


def _by_rule(
    effect: Effect, hits: Iterable[Hit], asked: tuple[str, ...] = (), limits: tuple[RuleLimit, ...] = ()
) -> Decision:
    """Return the decision of hits with the same effect, in the name of the first rule in the file."""
    first = min(hits, key=lambda hit: (hit.rule.place, hit.problem is None))
    reason = first.rule.reason
    if first.problem is not None:
        reason = f"the rule could not be evaluated, so it denies the call: {shown(first.problem)}"
    return Decision(effect, first.rule.id, reason, asked=asked, limits=limits)
