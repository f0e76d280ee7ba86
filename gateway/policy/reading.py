"""A policy file read for examination: its document and its lines, whether or not what it promises is true.

Loading refuses a file with an untrue example. The commands that say which example is untrue, and why, need the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.policy.document import PolicyDocument
from gateway.policy.loading import PolicyError, PolicyProblem, load_policy
from gateway.policy.yaml_lines import Path, YamlReading, read_yaml

_PROMISES = re.compile(r"(groups\..+\.)?rules\[\d+\]\.examples\.(match|not_match)\[\d+\]|tests\[\d+\]")


@dataclass(frozen=True)
class PolicyText:
    """A file's document, the place of everything in it, and its name for messages.

    `untrue` has the examples and tests that are untrue, by their field.
    """

    document: PolicyDocument
    reading: YamlReading
    source: str
    untrue: Mapping[str, PolicyProblem]

    def problem(self, path: Path) -> PolicyProblem | None:
        """Return what is untrue at a place."""
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        return self.untrue.get(field.lstrip("."))


def read_policy(text: str, source: str, operator: PolicyDocument | None = None) -> PolicyText:
    """Read a policy. Raises PolicyError with whatever is wrong, untrue examples and tests aside."""
    untrue: dict[str, PolicyProblem] = {}
    try:
        load_policy(text, source) if operator is None else load_policy(text, source, operator)
    except PolicyError as error:
        untrue = {problem.field: problem for problem in error.errors}
        wrong = [problem for problem in error.errors if not _PROMISES.match(problem.field)]
        if wrong:
            raise PolicyError(source, wrong) from error
    reading = read_yaml(text)
    # It is valid: loading has found nothing else wrong with it.
    return PolicyText(PolicyDocument.model_validate(reading.data), reading, source, untrue)
