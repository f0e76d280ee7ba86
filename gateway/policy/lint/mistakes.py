"""Slips of the pen: globs that no path matches, denials that a bare name escapes, connections to anywhere.

And rules that change nothing: dead ones, which a stricter rule overrules, and shadowed ones, which say it again.
"""

import re
from collections.abc import Iterable, Iterator

from gateway.policy.checks import private_hosts
from gateway.policy.cover import Atom, Covering, alternatives, atoms, covers
from gateway.policy.fields import CONNECT, Placeholder
from gateway.policy.globs import compile_glob, sample_path
from gateway.policy.layers import ScopedRule
from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.regexes import compile_regex
from gateway.policy.yaml_lines import Path

_NAME_BYTES = 255
_BRACES = re.compile(r"\{[^/]*,[^/]*\}")


def mistakes(linted: Linted) -> Iterator[Finding]:
    """Yield what was probably meant otherwise."""
    for placed in linted.own:
        yield from _globs(linted, placed)
        yield from _denied_by_path(linted, placed)
        yield from _empty_words(linted, placed)
    yield from _sections(linted)


def _globs(linted: Linted, placed: ScopedRule) -> Iterator[Finding]:
    for where, condition in (("", placed.rule), ("unless.", placed.rule.unless)):
        if condition is None:
            continue
        words = (word for prefix in condition.argv or () for word in prefix if isinstance(word, Placeholder))
        paths = (*(condition.paths or ()), *(path for word in words for path in word.path or ()))
        for glob, name, problem_of in (
            *((glob, "paths", _glob_problem) for glob in paths),
            *((glob, "url_paths", _text_problem) for glob in condition.url_paths or ()),
        ):
            if (problem := problem_of(glob)) is not None:
                what, fix = problem
                yield linted.finding("impossible-glob", placed, f"{where}{name}: {glob} {what}", fix)


def _glob_problem(glob: str) -> tuple[str, str] | None:
    first = glob.split("/")[1]
    if first.startswith(("~", "$")):
        return f"starts with {first}, which nothing expands", "write the directory itself"
    if any(len(part.encode()) > _NAME_BYTES and not set("*?[") & set(part) for part in glob.split("/")):
        return f"has a name of more than {_NAME_BYTES} bytes, and no file has", "shorten it, or write * in it"
    return _text_problem(glob)


def _text_problem(glob: str) -> tuple[str, str] | None:
    if _BRACES.search(glob):
        return "has braces, which match only themselves: globs have no alternatives", "write one glob for each"
    if sample_path(compile_glob(glob)) is None:
        return "seems to match no path", "look at its [...]"
    return None


def _denied_by_path(linted: Linted, placed: ScopedRule) -> Iterator[Finding]:
    """Yield programs denied by their full path, which are run by their bare name as well."""
    if placed.rule.effect == "allow":
        return
    for prefix in placed.rule.argv or ():
        names = alternatives(prefix[0])
        for name in names:
            bare = name.rpartition("/")[2]
            if bare != "" and bare not in names and linted.runs(bare) is not None:
                what = f"the rule names {name}, but `{bare}` without the directory passes"
                yield linted.finding("denied-by-path", placed, what, f"write {bare}, which also covers {name}")


def _empty_words(linted: Linted, placed: ScopedRule) -> Iterator[Finding]:
    for prefix in placed.rule.argv or ():
        for word in prefix:
            if isinstance(word, Placeholder) and word.matches is not None and _matches_empty(word.matches):
                what = f"matches: {word.matches} also takes an empty word"
                fix = "write + in place of *, where an empty word is not meant"
                yield linted.finding("empty-match", placed, what, fix)


def _sections(linted: Linted) -> Iterator[Finding]:
    document = linted.document
    everywhere = "matches the empty text, which is everywhere"
    patterns, results = enumerate(document.redaction.patterns), enumerate(document.results)
    wide: list[tuple[Path, str, str | None, str]] = [
        *((("redaction", "patterns", place, "pattern"), own.id, own.pattern, everywhere) for place, own in patterns),
        *(
            (("results", place, "contains"), own.id, own.contains, "so every result is withheld")
            for place, own in results
        ),
    ]
    for path, name, pattern, what in wide:
        if pattern is not None and _matches_empty(pattern):
            fix = "write + in place of *, or require some fixed text"
            yield linted.about("empty-match", path, f"{name}: {pattern} matches the empty text, {what}", fix)
    denying = [placed.name for placed in linted.rules if placed.rule.effect != "allow" and placed.rule.argv is not None]
    if document.opaque == "allow" and denying:
        names = ", ".join(denying[:5])
        what = f"lines that cannot be read reliably pass, also those that {names} should deny or ask about"
        yield linted.about("opaque-allow", ("opaque",), what, "write opaque: deny, or ask")


def _matches_empty(pattern: str) -> bool:
    return compile_regex(pattern).fullmatch(b"") is not None


def connections(linted: Linted) -> Iterator[Finding]:
    """Yield rules that let any host be reached, and addresses that only the operator's layer can open."""
    for placed in linted.own:
        rule = placed.rule
        if CONNECT in rule.tools and rule.effect == "allow" and rule.hosts is None:
            what = "any host of the internet may be reached, and sent whatever is in the sandbox"
            yield linted.finding("any-host", placed, what, "write hosts to say which")
    if linted.operator is None:  # with one, such a policy does not load
        places = {placed.path: placed for placed in linted.own}
        for path, what in private_hosts(linted.document, None):
            if (named := places.get(path[:-2])) is not None:
                fix = "ignore this in the operator's own policy; --operator FILE checks both layers"
                yield linted.finding("private-address", named, what, fix)


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
            what = f"has no effect: {_names(rule for rule in again if rule is not None)} covers all of it"
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
