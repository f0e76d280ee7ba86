"""The policy: one YAML file per tenant that says which tool calls may run. A call that no rule matches is denied.

Start at `document.py`, what a policy says, and `judge.py`, which applies it. Imports agent, and
file_rules and image_names of sandbox; nothing else of gateway.
"""

from importlib.resources import files

from gateway.policy.decision import Decision, Effect, Facts, Match, RuleLimit
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Grants, Policy, compile_grants
from gateway.policy.loading import PolicyError, PolicyProblem, check_policy_file, load_document, load_policy
from gateway.policy.narrow import narrow_rule, rule_as_yaml
from gateway.policy.schema import policy_schema

STARTER_POLICY: str = files(__name__).joinpath("starter.yaml").read_text(encoding="utf-8")
"""The text of the policy that `airlock init` writes."""

__all__ = [
    "STARTER_POLICY",
    "Decision",
    "Effect",
    "Facts",
    "Grants",
    "Match",
    "Policy",
    "PolicyDocument",
    "PolicyError",
    "PolicyProblem",
    "Rule",
    "RuleLimit",
    "check_policy_file",
    "compile_grants",
    "load_document",
    "load_policy",
    "narrow_rule",
    "policy_schema",
    "rule_as_yaml",
]
