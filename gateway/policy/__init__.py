"""The policy: one YAML file per tenant that says which tool calls may run. Nothing matched means deny."""

from importlib.resources import files

from gateway.policy.decision import Decision, Match
from gateway.policy.document import PolicyDocument
from gateway.policy.hook import PolicyHook
from gateway.policy.judge import Policy
from gateway.policy.loading import PolicyError, PolicyProblem, check_policy_file, load_policy

STARTER_POLICY: str = files(__name__).joinpath("starter.yaml").read_text(encoding="utf-8")
"""The text of the policy that `airlock init` writes."""

__all__ = [
    "STARTER_POLICY",
    "Decision",
    "Match",
    "Policy",
    "PolicyDocument",
    "PolicyError",
    "PolicyHook",
    "PolicyProblem",
    "check_policy_file",
    "load_policy",
]
