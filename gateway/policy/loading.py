"""Loading a policy: text in, a Policy out, or every problem with its line, its field and what is allowed there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath

from pydantic import ValidationError

from gateway.policy.checks import wrong_places
from gateway.policy.document import PolicyDocument
from gateway.policy.file_rules import check_layers
from gateway.policy.judge import Policy
from gateway.policy.messages import translated
from gateway.policy.policy_tests import untrue_examples, untrue_tests
from gateway.policy.yaml_lines import Path, YamlReading, read_yaml

LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class PolicyProblem:
    """One thing wrong with a policy file. `line` counts from 1; `field` is as in rules[2].paths[0], "" for the file."""

    line: int
    field: str
    message: str

    @property
    def text(self) -> str:
        """The problem in words, with the field where it is about one."""
        return f"{self.field}: {self.message}" if self.field else self.message


class PolicyError(Exception):
    """A policy that cannot be loaded; `errors` has at least one problem, in the order of the file."""

    def __init__(self, source: str, errors: list[PolicyProblem]) -> None:
        self.source = source
        self.errors = errors
        super().__init__("\n".join(_show(source, problem) for problem in errors))


def load_policy(text: str, source: str, operator: PolicyDocument | None = None) -> Policy:
    """Load a policy from the text of a file; `source` names it in messages. Raises PolicyError.

    The tests of the file are judged together with the operator's layer, where one is given.
    """
    document, reading = _read(text, source)
    policy = Policy(document, operator)
    if operator is not None:
        _raise_if(source, reading, list(check_layers(document, operator)))
    _raise_if(source, reading, list(untrue_tests(document, policy)))
    return policy


def load_document(text: str, source: str) -> PolicyDocument:
    """Load a policy as a document: all is checked but its tests, which need both layers. Raises PolicyError."""
    return _read(text, source)[0]


def check_policy_file(path: FilePath | str, operator: PolicyDocument | None = None) -> list[PolicyProblem]:
    """Return what is wrong with a policy file, nothing when it can be loaded."""
    try:
        with FilePath(path).open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        return [PolicyProblem(1, "", f"cannot be read: {error.strerror}")]
    try:
        load_policy(data.decode(), str(path), operator)
    except UnicodeDecodeError as error:
        if len(data) > LIMIT_BYTES:
            return [_too_large()]
        return [PolicyProblem(data[: error.start].count(b"\n") + 1, "", "not UTF-8 text")]
    except PolicyError as error:
        return error.errors
    return []


def _read(text: str, source: str) -> tuple[PolicyDocument, YamlReading]:
    if len(text) > LIMIT_BYTES or len(text.encode(errors="replace")) > LIMIT_BYTES:
        raise PolicyError(source, [_too_large()])
    reading = read_yaml(text)
    document: PolicyDocument | None = None
    problems = [(problem.line, problem.path, problem.message) for problem in reading.problems]
    if reading.data is not None or not problems:
        try:
            document = PolicyDocument.model_validate(reading.data)
        except ValidationError as error:
            problems.extend((reading.line(path), path, message) for path, message in translated(error))
    wrong: list[tuple[Path, str]] = []
    if document is not None:
        wrong.extend(wrong_places(document, reading))
        # Examples are judged one rule at a time; only a reasonable number of them is worth the time.
        if not any(path == () for path, _ in wrong):
            wrong.extend(untrue_examples(document))
    problems.extend((reading.line(path), path, message) for path, message in wrong)
    if problems or document is None:
        raise PolicyError(source, _in_order(problems))
    return document, reading


def _raise_if(source: str, reading: YamlReading, wrong: list[tuple[Path, str]]) -> None:
    if wrong:
        raise PolicyError(source, _in_order([(reading.line(path), path, message) for path, message in wrong]))


def _in_order(problems: list[tuple[int, Path, str]]) -> list[PolicyProblem]:
    in_order = sorted(problems, key=lambda problem: problem[0])
    return [PolicyProblem(line, field_of(path), message) for line, path, message in in_order]


def _too_large() -> PolicyProblem:
    return PolicyProblem(1, "", f"larger than {LIMIT_BYTES} bytes; no policy that a person can read is")


def field_of(path: Path) -> str:
    """Return a place of a file as people write it: rules[2].paths[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _show(source: str, problem: PolicyProblem) -> str:
    return f"{source}:{problem.line}: {problem.text}"
