"""What is probably not meant in a policy that loads: rules without effect, rules that reach further than they read.

Start at `__init__.py`. Imports gateway.policy and agent.tools.
"""

from gateway.policy.document import PolicyDocument
from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.lint.kernel import kernel_rules
from gateway.policy.lint.mistakes import connections, effectless, mistakes
from gateway.policy.lint.reaches import reaches_interpreters, side_doors
from gateway.policy.yaml_lines import YamlReading

__all__ = ["Finding", "Linted", "lint"]

_CHECKS = (effectless, mistakes, reaches_interpreters, side_doors, kernel_rules, connections)


def lint(document: PolicyDocument, reading: YamlReading, operator: PolicyDocument | None = None) -> list[Finding]:
    """Return what is to look at in a file, in its order; `reading` tells the lines."""
    linted = Linted(document, reading, operator)
    found = [finding for check in _CHECKS for finding in check(linted)]
    return sorted(found, key=lambda finding: (finding.line, finding.severity != "warning"))
