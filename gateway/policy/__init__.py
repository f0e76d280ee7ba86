"""The policy: one YAML file per tenant that says which tool calls may run. A call that no rule matches is denied.

Start at `document.py`, what a policy says, and `judge.py`, which applies it. Imports agent,
file_rules and image_names of sandbox, and hosts of gateway.support.
"""

from importlib.resources import files

from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.policy.loading import PolicyError, load_document, load_policy

STARTER_POLICY: str = files(__name__).joinpath("starter.yaml").read_text(encoding="utf-8")
"""The text of the policy that `airlock init` writes."""

__all__ = ["STARTER_POLICY", "Policy", "PolicyDocument", "PolicyError", "load_document", "load_policy"]
