"""Loading a policy: text in, a Policy out, or every problem with its line, its field and what is allowed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.policy.yaml_lines import Path, YamlReading, read_yaml

LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class PolicyProblem:
    """One thing wrong with a policy file. `line` counts from 1; `field` is as in rules[2].paths[0], "" for the file."""

    line: int
    field: str
    message: str


class PolicyError(Exception):
    """A policy that cannot be loaded; `errors` has at least one problem, in the order of the file."""

    def __init__(self, source: str, errors: list[PolicyProblem]) -> None:
        self.source = source
        self.errors = errors
        super().__init__("\n".join(_show(source, problem) for problem in errors))


def load_policy(text: str, source: str) -> Policy:
    """Load a policy from the text of a file; `source` names it in messages. Raises PolicyError."""
    if len(text.encode(errors="replace")) > LIMIT_BYTES:
        raise PolicyError(source, [PolicyProblem(1, "", f"larger than {LIMIT_BYTES} bytes")])
    reading = read_yaml(text)
    document: PolicyDocument | None = None
    problems = [PolicyProblem(problem.line, _field(problem.path), problem.message) for problem in reading.problems]
    if reading.data is not None or not problems:
        try:
            document = PolicyDocument.model_validate(reading.data)
        except ValidationError as error:
            problems.extend(_translated(error, reading))
    if document is not None:
        problems.extend(_duplicate_ids(document, reading))
        problems.extend(_untrue_examples(document, reading))
    if problems or document is None:
        raise PolicyError(source, sorted(problems, key=lambda problem: problem.line))
    return Policy(document)


def check_policy_file(path: FilePath | str) -> list[PolicyProblem]:
    """Return what is wrong with a policy file, nothing when it can be loaded."""
    try:
        with FilePath(path).open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        return [PolicyProblem(1, "", f"cannot be read: {error.strerror}")]
    try:
        load_policy(data.decode(), str(path))
    except UnicodeDecodeError as error:
        return [PolicyProblem(data[: error.start].count(b"\n") + 1, "", "not UTF-8 text")]
    except PolicyError as error:
        return error.errors
    return []


def _duplicate_ids(document: PolicyDocument, reading: YamlReading) -> Iterator[PolicyProblem]:
    first: dict[str, int] = {}
    for place, rule in enumerate(document.rules):
        path: Path = ("rules", place, "id")
        line = reading.line(path)
        if rule.id in first:
            yield PolicyProblem(
                line, _field(path), f"{rule.id!r} is the id of the rule in line {first[rule.id]} already"
            )
        first.setdefault(rule.id, line)


def _untrue_examples(document: PolicyDocument, reading: YamlReading) -> Iterator[PolicyProblem]:
    """Judge each example by its rule alone."""
    for place, rule in enumerate(document.rules):
        if not rule.examples.match and not rule.examples.not_match:
            continue
        alone = Policy(document.model_copy(update={"rules": (rule,)}))
        for kind, examples in (("match", rule.examples.match), ("not_match", rule.examples.not_match)):
            for number, example in enumerate(examples):
                message = _untrue(alone, rule, example, matches=kind == "match")
                if message:
                    path: Path = ("rules", place, "examples", kind, number)
                    yield PolicyProblem(reading.line(path), _field(path), message)


def _untrue(alone: Policy, rule: Rule, example: str, *, matches: bool) -> str | None:
    for tool in rule.tools:
        arguments = {"command": example} if tool == "execute" else {"path": example, "pattern": "*"}
        decision = alone.judge(tool, arguments)
        if matches and decision.rule != rule.id:
            return f"{example!r} does not match rule {rule.id!r} for {tool}: {decision.reason}"
        if not matches and decision.rule == rule.id:
            return f"{example!r} matches rule {rule.id!r} for {tool}, and must not"
    return None


def _translated(error: ValidationError, reading: YamlReading) -> Iterator[PolicyProblem]:
    """Say pydantic's errors in the words of the file, one for each field."""
    problems: dict[Path, Mapping[str, Any]] = {}
    for detail in error.errors(include_url=False):
        path = tuple(detail["loc"])
        if path[2:3] == ("argv",) and detail["type"] != "value_error":
            path = path[:5]  # the branches of "a word or alternatives" are one problem
        elif path[-1:] == ("[key]",):
            path = path[:-1]
        problems.setdefault(path, cast(Mapping[str, Any], detail))
    for path, problem in problems.items():
        # A list with a bad item is also too short without it: the item is the problem.
        if not any(other != path and other[: len(path)] == path for other in problems):
            yield PolicyProblem(reading.line(path), _field(path), _message(problem, path))


def _message(detail: Mapping[str, Any], path: Path) -> str:
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "missing":
        return "missing, and it is mandatory"
    if kind == "extra_forbidden":
        return f"unknown field; allowed here: {', '.join(_allowed_fields(path[:-1]))}"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if path[2:3] == ("argv",):
        return 'write lists of words, as in [[git, [status, diff]], [ls]]; words like "no" and "1" need quotes'
    if kind == "literal_error":
        later = {"ask": "approvals come later; ", "shadow": "shadow mode comes later; "}.get(str(value), "")
        return f"{later}{value!r} is not allowed; allowed: {str(context['expected']).replace(' or ', ', ')}"
    if kind == "string_type":
        return f"must be text, not {value!r}; write it in quotes"
    if kind == "string_pattern_mismatch":
        return f"{value!r} is not an id; allowed: a small letter or digit, then up to 63 of these or '.', '_', '-'"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be a mapping with these fields: {', '.join(_allowed_fields(path)) or 'names and values'}"
    if kind == "tuple_type":
        return "must be a list"
    message = str(detail["msg"]).removeprefix("Input should be ").replace("Tuple", "list")
    return f"{value!r} is not allowed; it should be {message}" if not isinstance(value, tuple | dict) else message


def _allowed_fields(path: Path) -> list[str]:
    """Return the names of the fields that the mapping at a path may have."""
    model: type[BaseModel] | None = PolicyDocument
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        found = model.model_fields.get(part)
        model = _model_of(found.annotation) if found is not None else model
    return list(model.model_fields) if model is not None else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field's type is, or holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        model = _model_of(argument)
        if model is not None:
            return model
    return None


def _field(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _show(source: str, problem: PolicyProblem) -> str:
    return f"{source}:{problem.line}: {problem.field + ': ' if problem.field else ''}{problem.message}"
