"""Loading a policy: text in, a Policy out, or every problem with its line, its field and what is allowed there."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from pydantic import ValidationError

from gateway.policy.checks import translated, wrong_places
from gateway.policy.document import PolicyDocument
from gateway.policy.file_rules import check_layers
from gateway.policy.host_checks import private_hosts
from gateway.policy.judge import Policy
from gateway.policy.proof import Outcome, prove_examples, prove_tests
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
        super().__init__("\n".join(f"{source}:{problem.line}: {problem.text}" for problem in errors))


@dataclass(frozen=True)
class PolicyText:
    """A file's document and the place of everything in it. `outcomes` are of its examples and tests, in its order."""

    document: PolicyDocument
    reading: YamlReading
    outcomes: tuple[Outcome, ...] = ()


def load_policy(text: str, source: str, operator: PolicyDocument | None = None) -> Policy:
    """Load a policy from the text of a file; `source` names it in messages. Raises PolicyError.

    The tests of the file are judged together with the operator's layer, where one is given.
    """
    read = _read(text, source)
    policy = _in_layers(read, source, operator)
    _raise_if(source, _untrue(read.reading, prove_tests(read.document, read.reading, policy)))
    return policy


def load_document(text: str, source: str) -> PolicyDocument:
    """Load a policy as a document: all is checked but its tests, which need both layers. Raises PolicyError."""
    return _read(text, source).document


def read_policy(text: str, source: str, operator: PolicyDocument | None = None) -> PolicyText:
    """Read a policy for examination, whether or not what it promises is true.

    Raises PolicyError with whatever is wrong, untrue examples and tests aside.
    """
    read = _read(text, source, may_be_untrue=True)
    tests = prove_tests(read.document, read.reading, _in_layers(read, source, operator))
    outcomes = (*read.outcomes, *(outcome for _, outcome in tests))
    return replace(read, outcomes=tuple(sorted(outcomes, key=lambda outcome: outcome.line)))


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


def _read(text: str, source: str, *, may_be_untrue: bool = False) -> PolicyText:
    if len(text) > LIMIT_BYTES or len(text.encode(errors="replace")) > LIMIT_BYTES:
        raise PolicyError(source, [_too_large()])
    reading = read_yaml(text)
    document: PolicyDocument | None = None
    problems = [PolicyProblem(problem.line, field_of(problem.path), problem.message) for problem in reading.problems]
    outcomes: list[tuple[Path, Outcome]] = []
    if reading.data is not None or not problems:
        try:
            document = PolicyDocument.model_validate(reading.data)
        except ValidationError as error:
            problems += _problems(reading, translated(error))
    if document is not None:
        wrong = list(wrong_places(document, reading))
        problems += _problems(reading, wrong)
        # Examples are judged one rule at a time; only a reasonable number of them is worth the time.
        if not any(path == () for path, _ in wrong):
            outcomes = list(prove_examples(document, reading))
    untrue = _untrue(reading, outcomes)
    if document is None or problems or (untrue and not may_be_untrue):
        raise PolicyError(source, sorted([*problems, *untrue], key=lambda problem: problem.line))
    return PolicyText(document, reading, tuple(outcome for _, outcome in outcomes))


def _in_layers(read: PolicyText, source: str, operator: PolicyDocument | None) -> Policy:
    """Return a policy together with the operator's. Raises PolicyError where they do not fit."""
    if operator is not None:
        wrong = [*check_layers(read.document, operator), *private_hosts(read.document, operator)]
        _raise_if(source, _problems(read.reading, wrong))
    return Policy(read.document, operator)


def _raise_if(source: str, problems: list[PolicyProblem]) -> None:
    if problems:
        raise PolicyError(source, problems)


def _problems(reading: YamlReading, wrong: Iterable[tuple[Path, str]]) -> list[PolicyProblem]:
    found = [PolicyProblem(reading.line(path), field_of(path), message) for path, message in wrong]
    return sorted(found, key=lambda problem: problem.line)


def _untrue(reading: YamlReading, outcomes: Iterable[tuple[Path, Outcome]]) -> list[PolicyProblem]:
    return _problems(reading, ((path, outcome.message) for path, outcome in outcomes if not outcome.passed))


def _too_large() -> PolicyProblem:
    return PolicyProblem(1, "", f"larger than {LIMIT_BYTES} bytes; no policy that a person can read is")


def field_of(path: Path) -> str:
    """Return a place of a file as people write it: rules[2].paths[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
