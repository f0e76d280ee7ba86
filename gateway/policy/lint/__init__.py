"""What is probably not meant in a policy that loads: rules without effect, rules that reach further than they read.

Start at `linter.py`. Imports gateway.policy and agent.tools.
"""

from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.lint.linter import lint

__all__ = ["Finding", "Linted", "lint"]
