"""What is probably not meant in a policy that loads: rules without effect, rules that reach further than they read."""

from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.lint.linter import lint

__all__ = ["Finding", "Linted", "lint"]
