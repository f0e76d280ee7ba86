"""What is wrong with a policy file, with what is allowed there.

Of what its types say: pydantic's errors in the words of a policy file, one for each field. Of what types cannot say:
ids given twice, groups in a circle, rules that contradict each other, and hosts that no rule may let pass: wildcards of
more than one owner, and addresses that the operator has to name.
"""

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from gateway.policy.cover import Covering
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.fields import CONNECT, WORDS_FORM
from gateway.policy.file_rules import check_kernel
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.layers import ScopedRule, all_rules, scoped_rules
from gateway.policy.yaml_lines import Path, YamlReading
from gateway.support.hosts import special

LIMIT_EXAMPLES = 20_000
_LIMIT_COMPARISONS = 20_000
"""Pieces of rules, one path, prefix or host with another, that are compared to find contradictions."""
_EXAMPLE = "an example is text (a command line, a path, HOST:PORT) or the arguments as a mapping"
_SHOWN_CHARS = 200


def wrong_places(document: PolicyDocument, reading: YamlReading) -> Iterator[tuple[Path, str]]:
    """Yield each place that is wrong, and what is."""
    named: dict[str, Iterable[tuple[Path, str]]] = {
        "rule": ((path, rule.id) for path, rule in all_rules(document)),
        "result rule": ((("results", place), rule.id) for place, rule in enumerate(document.results)),
        "pattern": ((("redaction", "patterns", n), own.id) for n, own in enumerate(document.redaction.patterns)),
    }
    for what, ids in named.items():
        yield from _duplicate_ids(ids, what, reading)
    yield from _group_problems(document)
    section = document.sandbox
    # An image that the file does not name may be the other layer's.
    refusal = section.image_rule.refusal(section.image) if "image" in section.model_fields_set else None
    if refusal is not None:
        yield ("sandbox", "image"), refusal
    for path, rule in all_rules(document):  # a deny rule may be as wide as it likes
        wide = ((place, pattern.too_wide) for place, pattern in _let_pass(rule))
        yield from (((*path, "hosts", place), what) for place, what in wide if what is not None)
    yield from _contradictions(document, reading)
    if document.enforcement == "kernel":
        yield from check_kernel(document)
    examples = sum(len(rule.examples.match) + len(rule.examples.not_match) for _, rule in all_rules(document))
    if examples > LIMIT_EXAMPLES:
        yield (), f"{examples} examples; a policy has at most {LIMIT_EXAMPLES}"


def _duplicate_ids(named: Iterable[tuple[Path, str]], what: str, reading: YamlReading) -> Iterator[tuple[Path, str]]:
    first: dict[str, int] = {}
    for path, name in named:
        place = (*path, "id")
        if name in first:
            yield place, f"{name!r} is the id of the {what} in line {first[name]} already; choose another"
        first.setdefault(name, reading.line(place))


def _group_problems(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield the places at which a group is used that does not exist, or that uses the group it is used in."""
    uses: dict[str | None, tuple[str, ...]] = {None: document.use}
    uses.update((name, group.use) for name, group in document.groups.items())
    for user, names in uses.items():
        for place, name in enumerate(names):
            if name not in document.groups:
                known = ", ".join(document.groups) or "none"
                yield (*_uses_of(user), place), f"there is no group {name!r}; groups of this file: {known[:300]}"
            elif name in names[:place]:
                yield (*_uses_of(user), place), f"the group {name!r} is named twice; keep one"
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        path = (*_uses_of(cycle[0]), uses[cycle[0]].index(cycle[1]))
        yield path, f"groups use each other in a circle: {' -> '.join(cycle)}; take one of these uses out"


def _uses_of(user: str | None) -> Path:
    return ("use",) if user is None else ("groups", user, "use")


def _contradictions(document: PolicyDocument, reading: YamlReading) -> Iterator[tuple[Path, str]]:
    """Yield the rules that allow, or ask about, nothing but what one other rule denies whatever else holds."""
    enforced = [placed for placed in scoped_rules(document) if placed.rule.mode == "enforce"]
    denials: Covering[ScopedRule] = Covering(_LIMIT_COMPARISONS)
    for placed in enforced:
        for tool in placed.rule.tools if placed.rule.effect == "deny" else ():
            denials.keep(tool, placed.rule, placed)
    for placed in enforced:
        rule = placed.rule
        for over in denials.over(rule.tools[0], rule) if rule.effect != "deny" else ():
            if set(rule.tools) <= set(over.rule.tools) and over.rule.unless in (None, rule.unless):
                what = "never allow anything" if rule.effect == "allow" else "never ask about anything"
                line = reading.line((*over.path, "id"))
                message = (
                    f"rule {rule.id!r} can {what}: {over.rule.id!r} in line {line} denies all of it; take one of them "
                    "out, or give the deny rule an unless"
                )
                yield (*placed.path, "effect"), message
                break


def translated(error: ValidationError) -> Iterator[tuple[Path, str]]:
    """Yield each wrong field and what would be right."""
    problems: dict[Path, str] = {}
    for detail in error.errors(include_url=False):
        path, message = _said(cast(Mapping[str, Any], detail))
        # What is said of a placeholder comes last of the forms that a word may have, and knows the most.
        if path not in problems or "placeholder" in message:
            problems[path] = message
    for path, message in problems.items():
        # A list with a bad item is also too short without it: the item is the problem.
        if not any(other != path and other[: len(path)] == path for other in problems):
            yield path, message


def _said(detail: Mapping[str, Any]) -> tuple[Path, str]:
    path: Path = tuple(detail["loc"])
    if path[-1:] == ("[key]",):
        path = path[:-1]
    if "argv" in path and (word := path.index("argv") + 3) <= len(path):
        form, inside = str(path[word : word + 1]), path[word + 1 :]
        if "Placeholder" not in form or not inside:  # which of the forms of a word was meant is not known
            return path[:word], str(detail["ctx"]["error"]) if detail["type"] == "value_error" else WORDS_FORM
        path = path[:word] + inside
    elif "examples" in path and len(path) > path.index("examples") + 3:
        return path[: path.index("examples") + 3], _EXAMPLE
    return path, _message(detail, path)


def _message(detail: Mapping[str, Any], path: Path) -> str:
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    shown = repr(value)[:_SHOWN_CHARS]
    if kind == "missing":
        return "missing, and it is mandatory"
    if kind == "extra_forbidden":
        return f"unknown field; allowed here: {', '.join(_allowed_fields(path[:-1]))}"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if path[-2:-1] == ("argv",) or path[-1:] == ("argv",):
        return WORDS_FORM
    if kind == "literal_error":
        return f"{shown} is not allowed; allowed: {str(context['expected']).replace(' or ', ', ')}"
    if kind == "string_type":
        return f"must be text, not {shown}; write it in quotes"
    if kind == "string_pattern_mismatch":
        if ":" in context.get("pattern", ""):
            return f"{shown} is not a time of day; write it in quotes as '09:30' or '22:00'"
        return f"{shown} is not an id; allowed: a small letter or digit, then up to 63 of these or '.', '_', '-'"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be a mapping with these fields: {', '.join(_allowed_fields(path)) or 'names and values'}"
    if kind == "tuple_type":
        return "must be a list"
    message = str(detail["msg"]).removeprefix("Input should be ").replace("Tuple", "list")
    return f"{shown} is not allowed; it should be {message}" if not isinstance(value, tuple | dict) else message


def _allowed_fields(path: Path) -> list[str]:
    """Return the names of the fields that the mapping at a path may have."""
    found: Any = PolicyDocument
    for part in path:
        if get_origin(found) is dict:  # the part is a name that the file gives, as in groups
            found = get_args(found)[1]
        elif isinstance(part, str) and (model := _model_of(found)) is not None and part in model.model_fields:
            found = model.model_fields[part].annotation
    model = _model_of(found) if get_origin(found) is not dict else None
    return list(model.model_fields) if model is not None else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field's type is, or holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_of, get_args(annotation))), None)


def private_hosts(tenant: PolicyDocument, operator: PolicyDocument | None) -> Iterator[tuple[Path, str]]:
    """Yield the addresses that rules of a tenant name and no connection reaches, as the operator names none of it."""
    above = [placed.rule for placed in scoped_rules(operator, "operator")] if operator is not None else []
    named = [pattern for rule in above if rule.effect == "allow" for _, pattern in _let_pass(rule)]
    for path, rule in all_rules(tenant):
        for place, pattern in _let_pass(rule):
            what = special(pattern.addresses) if pattern.addresses is not None else None
            if what is not None and not any(one.shares_addresses(pattern) for one in named):
                fix = "have the operator's policy allow it, or leave it out"
                yield (*path, "hosts", place), f"{pattern.name} is {what}, which the operator has to name: {fix}"


def _let_pass(rule: Rule) -> Iterable[tuple[int, HostPattern]]:
    """Return the hosts that a rule in force lets pass or asks about, with their places."""
    passing = CONNECT in rule.tools and rule.effect != "deny" and rule.mode == "enforce"
    return enumerate(map(compile_host, rule.hosts or ())) if passing else ()
