"""Rules that change nothing: dead ones, which a stricter rule overrules, and shadowed ones, which say it again."""

from collections.abc import Iterable, Iterator

from gateway.policy.cover import Atom, Covering, atoms, covers
from gateway.policy.layers import ScopedRule
from gateway.policy.lint.findings import Finding, Linted

_Piece = tuple[ScopedRule, Atom]


def effectless(linted: Linted) -> Iterator[Finding]:
    """Yield the rules, or the pieces of rules, that never decide anything."""
    order = {id(placed): place for place, placed in enumerate(linted.rules)}
    pieces: Covering[_Piece] = Covering()
    for placed in linted.rules:
        # With an exception a rule is narrower than its pieces; it is never taken to cover anything.
        for atom in atoms(placed.rule) if placed.rule.unless is None else ():
            pieces.keep((placed.rule.effect, atom.tool), atom.condition, (placed, atom))
    for placed in linted.own:
        own = list(atoms(placed.rule))
        if placed.rule.unless is not None and all(covers(placed.rule.unless, atom.condition) for atom in own):
            what = "its `unless` holds for all that the rule is about, so it never matches"
            yield linted.finding("dead-rule", placed, what, "narrow the unless, or remove the rule")
            continue
        over = [_stricter(pieces, placed, atom) for atom in own]
        if all(over):
            yield _dead(linted, placed, [rule for rule in over if rule is not None])
            continue
        for atom, by in zip(own, over, strict=True):
            if by is not None:
                what = f"`{atom.shown}` never has an effect: {by.name} ({by.rule.effect}) covers it"
                yield linted.finding("dead-part", placed, what, "leave it out of the rule")
        again = [by or _same(pieces, placed, atom, order) for atom, by in zip(own, over, strict=True)]
        if all(again):
            what = f"says nothing new: {_names(rule for rule in again if rule is not None)} covers all of it"
            yield linted.finding("shadowed-rule", placed, what, "remove it, or narrow the other")


def _dead(linted: Linted, placed: ScopedRule, over: list[ScopedRule]) -> Finding:
    effects = {rule.rule.effect for rule in over}
    what = {
        "allow": "never allows anything" if effects == {"deny"} else "never allows anything by itself",
        "ask": "no approver is ever asked",
        "deny": "never denies anything",
    }[placed.rule.effect]
    said = f"{what}: {_names(over)} ({'/'.join(sorted(effects))}) covers all of it"
    return linted.finding("dead-rule", placed, said, "narrow the stricter rule (unless), or remove this one")


def _names(rules: Iterable[ScopedRule]) -> str:
    return ", ".join(dict.fromkeys(rule.name for rule in rules))


def _stricter(pieces: Covering[_Piece], placed: ScopedRule, atom: Atom) -> ScopedRule | None:
    """Return a stricter rule that covers an atom of another; the strictest that there is."""
    stricter = {"allow": ("deny", "ask"), "ask": ("deny",), "deny": ()}[placed.rule.effect]
    over = (rule for effect in stricter for rule, _ in pieces.over((effect, atom.tool), atom.condition))
    return next(over, None)


def _same(pieces: Covering[_Piece], placed: ScopedRule, atom: Atom, order: dict[int, int]) -> ScopedRule | None:
    """Return another rule of the same effect that covers an atom; of two equal ones the first stays."""
    over = pieces.over((placed.rule.effect, atom.tool), atom.condition)
    for rule, other in over if not placed.rule.is_limited else ():
        equal = placed.rule.unless is None and covers(atom.condition, other.condition)
        if rule is not placed and not rule.rule.is_limited and (not equal or order[id(rule)] < order[id(placed)]):
            return rule
    return None
