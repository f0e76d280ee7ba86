"""Which rules came near: those about a part of the call that failed in one condition only, and in which."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from zoneinfo import ZoneInfo

from gateway.policy.argv import compile_argv
from gateway.policy.certainty import PERHAPS, YES
from gateway.policy.conditions import Call, compile_conditions
from gateway.policy.cover import ArgvWord, ArgvWords, shown_word
from gateway.policy.decision import Facts
from gateway.policy.document import Condition, PolicyDocument, Rule
from gateway.policy.expressions import ExpressionError
from gateway.policy.fields import SizeRange, TimeWindow
from gateway.policy.parts import Part, cut
from gateway.policy.scoped_rule import scoped_in_both

LIMIT_NEAR = 5
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True)
class Near:
    """A rule that did not match a part by one condition: which one, and why, for people."""

    rule: str
    effect: str
    part: str
    condition: str
    why: str


@dataclass(frozen=True)
class _Failure:
    """`closeness` orders them: how much of the condition matched."""

    condition: str
    why: str
    closeness: int


def near_misses(
    document: PolicyDocument,
    operator: PolicyDocument | None,
    tool: str,
    arguments: Mapping[str, object],
    facts: Facts | None = None,
) -> list[Near]:
    """Return the few rules that came nearest to matching, the nearest first."""
    call = Call(tool, arguments, facts or Facts())
    found: list[tuple[int, int, Near]] = []
    rules = scoped_in_both(document, operator)
    by_reading = all(one is None or one.enforcement == "reading" for one in (document, operator))
    for part in cut(tool, arguments, effects=by_reading, redirects=by_reading).parts:
        for placed in rules:
            tools = placed.rule.tools
            if part.tool not in tools and not (part.of_command and "execute" in tools and not placed.rule.given()):
                continue
            failures = list(_failures(placed.rule, part, call))
            if len(failures) == 1 and failures[0].closeness > 0:
                failure = failures[0]
                near = Near(placed.name, placed.rule.effect, part.shown, failure.condition, failure.why)
                found.append((-failure.closeness, len(found), near))
    nearest = sorted(found, key=lambda entry: entry[:2])
    return list(dict.fromkeys(near for _, _, near in nearest))[:LIMIT_NEAR]


def _failures(rule: Rule, part: Part, call: Call) -> Iterator[_Failure]:
    """Yield the conditions of a rule that do not hold for a part."""
    needed = YES if rule.effect == "allow" else PERHAPS
    for name in sorted(rule.given()):
        alone = Condition.model_validate({name: getattr(rule, name)})
        try:
            if compile_conditions(alone).whole(part, call) < needed:
                yield _failure(rule, name, part, call)
        except ExpressionError:
            return  # it denies, so it is among the rules that matched
    if rule.unless is not None:
        try:
            excepted = compile_conditions(rule.unless).whole(part, call)
        except ExpressionError:
            return
        if excepted.opposite < needed:
            yield _Failure("unless", f"its exception ({', '.join(sorted(rule.unless.given()))}) holds", 100)


def _failure(rule: Rule, name: str, part: Part, call: Call) -> _Failure:
    if name == "paths":
        return _path_failure(rule.paths or (), part)
    if name == "argv":
        return max((_argv_failure(prefix, part) for prefix in rule.argv or ()), key=lambda failure: failure.closeness)
    if name == "hosts":
        return _host_failure(rule.hosts or (), part)
    if name == "size_bytes" and rule.size_bytes is not None:
        return _Failure(name, _size_text(rule.size_bytes, part.size_bytes), 100)
    if name == "time" and rule.time is not None:
        return _Failure(name, _time_text(rule.time, call), 100)
    return _Failure(name, f"{rule.when} is false", 100)


def _path_failure(globs: tuple[str, ...], part: Part) -> _Failure:
    path = part.path or part.glob
    if path is None:
        return _Failure("paths", "which file it is cannot be determined", 1)
    shared, closest = _closest(globs, path.split("/")[1:], lambda glob: glob.split("/")[1:])
    others = f" (nor do {len(globs) - 1} others)" if len(globs) > 1 else ""
    return _Failure("paths", f"{closest} does not match {path}{others}", shared)


def _host_failure(hosts: tuple[str, ...], part: Part) -> _Failure:
    if part.host is None:
        return _Failure("hosts", "which host it is cannot be determined", 1)
    labels = part.host.split(".")[::-1]
    shared, closest = _closest(hosts, labels, lambda host: host.partition(":")[0].split(".")[::-1])
    port = "" if part.port is None else f":{part.port}"
    return _Failure("hosts", f"{closest} does not match {part.host}{port}", shared)


def _closest(written: tuple[str, ...], wanted: list[str], apart: Callable[[str], list[str]]) -> tuple[int, str]:
    """Return which text begins most like what is wanted, and how many of its leading items are the same."""

    def shared(text: str) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(apart(text), wanted, strict=False)))

    closest = max(written, key=shared)
    return shared(closest), closest


def _argv_failure(prefix: ArgvWords, part: Part) -> _Failure:
    """Return the first word at which a command leaves a prefix."""
    for place, wanted in enumerate(prefix):
        (so_far,) = compile_argv([tuple(prefix[: place + 1])])
        if so_far.surely(part.words, part.cwd):
            continue
        where = f"{_ORDINALS[place]} word" if place < len(_ORDINALS) else f"word {place + 1}"
        if place >= len(part.words):
            return _Failure("argv", f"the command ends where {_wanted(wanted)} is expected", place)
        word = part.words[place]
        if shown_word(wanted) == "{end}":
            return _Failure("argv", f"the {where} {word.text!r} is one too many: the command must end there", place)
        if word.literal is None:
            return _Failure("argv", f"the {where} {word.text!r} is not literal", place)
        return _Failure("argv", f"the {where} {word.text!r} is not {_wanted(wanted)}", place)
    return _Failure("argv", "it does not match", 0)


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
