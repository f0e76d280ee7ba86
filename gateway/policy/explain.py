"""Which rules came near: those about a part of the call that failed in one condition only, and in which."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from zoneinfo import ZoneInfo

from gateway.policy.argv import compile_argv
from gateway.policy.conditions import Call, compile_conditions
from gateway.policy.cover import ArgvWords, shown_word
from gateway.policy.decision import PERHAPS, YES, Facts
from gateway.policy.document import Rule
from gateway.policy.expressions import ExpressionError
from gateway.policy.fields import ArgvWord, SizeRange, TimeWindow, rules_of
from gateway.policy.hosts import compile_host
from gateway.policy.judge import Policy
from gateway.policy.layers import scoped_in_both
from gateway.policy.parts import Part, cut
from gateway.support.hosts import address_of, shown_endpoint

LIMIT_NEAR = 5
_ALL = 100
"""How much of a condition matches that has no pieces."""
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True)
class Near:
    """A rule that did not match a part by one condition: which one, and why, for people."""

    rule: str
    effect: str
    part: str
    condition: str
    why: str


Failure = tuple[int, str]
"""How much of a condition matched, and why it does not hold."""


def near_misses(policy: Policy, tool: str, arguments: Mapping[str, object], facts: Facts | None = None) -> list[Near]:
    """Return the few rules that came nearest to matching, the nearest first."""
    call = Call(tool, arguments, facts or Facts())
    found: dict[Near, int] = {}
    rules = scoped_in_both(policy.tenant_document, policy.operator_document)
    by_reading = policy.file_rules is None
    for part in cut(tool, arguments, effects=by_reading, redirects=by_reading).parts:
        for placed in rules:
            tools = placed.rule.tools
            named = not set(rules_of(part.tool)).isdisjoint(tools)
            if not named and not (part.of_command and "execute" in tools and not placed.rule.given()):
                continue
            failures = list(_failures(placed.rule, part, call))
            if len(failures) == 1:
                condition, (matched, why) = failures[0]
                if matched > 0:
                    found.setdefault(Near(placed.name, placed.rule.effect, part.shown, condition, why), matched)
    return sorted(found, key=lambda near: -found[near])[:LIMIT_NEAR]


def _failures(rule: Rule, part: Part, call: Call) -> Iterator[tuple[str, Failure]]:
    """Yield the conditions of a rule that do not hold for a part."""
    needed = YES if rule.effect == "allow" else PERHAPS
    try:
        for name in sorted(rule.given()):
            if compile_conditions(rule, without=rule.given() - {name}).whole(part, call) < needed:
                yield name, _failure(rule, name, part, call)
        unless = rule.unless
        if unless is not None and compile_conditions(unless).whole(part, call).opposite < needed:
            yield "unless", (_ALL, f"its exception ({', '.join(sorted(unless.given()))}) holds")
    except ExpressionError:
        return  # it denies, so it is among the rules that matched


def _failure(rule: Rule, name: str, part: Part, call: Call) -> Failure:
    if name == "paths":
        return _path_failure(rule.paths or (), part)
    if name == "argv":
        return max((_argv_failure(prefix, part) for prefix in rule.argv or ()), key=lambda failure: failure[0])
    if name == "hosts":
        return _host_failure(rule.hosts or (), part)
    if name == "methods":
        return _ALL, _request_text(part.method, "|".join(rule.methods or ()))
    if name == "url_paths":
        return _ALL, _request_text(part.url_path, ", ".join(rule.url_paths or ()))
    if name == "size_bytes" and rule.size_bytes is not None:
        return _ALL, _size_text(rule.size_bytes, part.size_bytes)
    if name == "time" and rule.time is not None:
        return _ALL, _time_text(rule.time, call)
    return _ALL, f"{rule.when} is false"


def _path_failure(globs: tuple[str, ...], part: Part) -> Failure:
    path = part.path or part.glob
    if path is None:
        return 1, "which file it is cannot be determined"
    shared, closest = _closest(globs, path.split("/")[1:], lambda glob: glob.split("/")[1:])
    others = f" (nor do {len(globs) - 1} others)" if len(globs) > 1 else ""
    return shared, f"{closest} does not match {path}{others}"


def _host_failure(hosts: tuple[str, ...], part: Part) -> Failure:
    host = part.host or ""
    is_address = address_of(host) is not None
    alike = tuple(host for host in hosts if (compile_host(host).addresses is not None) == is_address)
    if not alike:
        what = "an address, which no pattern of a name matches" if is_address else "a name, which no address matches"
        return 0, f"{host} is {what}"
    shared, closest = _closest(alike, _labels(host), lambda host: _labels(compile_host(host).name))
    return max(shared, int(is_address)), f"{closest} does not match {shown_endpoint(host, part.port)}"


def _labels(name: str) -> list[str]:
    """Return what a canonical host is made of, the most general first."""
    return re.split(r"[.:]", name) if address_of(name.partition("/")[0]) is not None else name.split(".")[::-1]


def _request_text(seen: str | None, wanted: str) -> str:
    if seen is None:
        return f"{wanted} needs a request that the gateway sees, with a path that all servers read alike"
    return f"{seen} is not {wanted}"


def _closest(written: tuple[str, ...], wanted: list[str], apart: Callable[[str], list[str]]) -> Failure:
    """Return which text begins most like what is wanted, after how many of its leading items are the same."""

    def shared(text: str) -> int:
        return len([*takewhile(lambda pair: pair[0] == pair[1], zip(apart(text), wanted, strict=False))])

    closest = max(written, key=shared)
    return shared(closest), closest


def _argv_failure(prefix: ArgvWords, part: Part) -> Failure:
    """Return the first word at which a command leaves a prefix."""
    for place, wanted in enumerate(prefix):
        (so_far,) = compile_argv([tuple(prefix[: place + 1])])
        if so_far.surely(part.words, part.cwd):
            continue
        if place >= len(part.words):
            return place, f"the command ends where {_wanted(wanted)} is expected"
        word = part.words[place]
        where = f"{_ORDINALS[place]} word" if place < len(_ORDINALS) else f"word {place + 1}"
        said = f"the {where} {word.text!r} is"
        if shown_word(wanted) == "{end}":
            return place, f"{said} one too many: the command must end there"
        return place, f"{said} not {'literal' if word.literal is None else _wanted(wanted)}"
    return 0, "it does not match"


def _wanted(word: ArgvWord) -> str:
    if isinstance(word, tuple):
        shown = ", ".join(word[:6])
        return f"one of {shown}{', …' if len(word) > 6 else ''}"
    return repr(word) if isinstance(word, str) else shown_word(word)


def _size_text(size: SizeRange, written: int | None) -> str:
    if written is None:
        return "how many bytes are written is not known"
    if size.over is not None and written <= size.over:
        return f"{written} bytes are not over {size.over}"
    return f"{written} bytes are more than {size.up_to}"


def _time_text(window: TimeWindow, call: Call) -> str:
    local = call.now.astimezone(ZoneInfo(window.zone))
    days = " ".join(window.days or ())
    hours = f"{window.since} to {window.until}" if window.since is not None else ""
    return f"{local:%a %H:%M} is outside of {' '.join(filter(None, (days, hours)))} ({window.zone})"
