"""What an adapter tells a model about a call that the policy did not let run."""

import json

from gateway.client import ToolResult


def refusal(result: ToolResult) -> str:
    """Return why a call did not run: the rule that denied it, or the approval that it waits for. Empty if it ran."""
    if result.verdict == "ask" and result.outcome == "waiting":
        return (
            f"This call waits for the approval {result.approval_id} (rule {result.rule}: {result.reason}). It has not "
            "run; make the same call again once a person has approved it."
        )
    if result.verdict != "deny":
        return ""
    if result.edited_arguments is not None:
        return (
            "This call was approved with other arguments and has not run. Make it with these: "
            f"{json.dumps(dict(result.edited_arguments))}"
        )
    return f"This call was denied by the rule {result.rule}: {result.reason}. It has not run."
