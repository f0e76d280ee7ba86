"""Files that a request shows the model are read again for it: only those that the policy still lets the agent read."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.capabilities.attachments import VIEW
from agent.hooks.hook import Hook, InferenceRequest, NextInference
from agent.messages import Attachment, Message
from agent.models.shown_message import left_out
from agent.state import ModelResponse
from gateway.policy import Policy
from gateway.policy.decision import Facts

# Outside of the capability that reads the files.
_PRIORITY = 900_000
# As many as a request can show at most (gateway/config/agent_settings.py).
_JUDGED_LIMIT = 64


@dataclass(eq=False)
class ShownFilesHook(Hook):
    """Leaves out of a request what the policy denies now, before it is read.

    A file was judged when it was attached, as the call of a tool or of the service that started the run. What a person
    was asked about then is not asked again: only the same bytes are shown.
    """

    name = "shown_files"
    mandatory = True
    priority = _PRIORITY

    policy: Callable[[], Policy]
    facts: Facts

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        if not any(message.attachments for message in request.messages):
            return await next_(request)
        judged = _Judged(self.policy(), self.facts)
        newest_first = [judged.take(message) for message in reversed(request.messages)]
        return await next_(replace(request, messages=tuple(newest_first[::-1])))


class _Judged:
    """The files of one request, from its newest message on."""

    def __init__(self, policy: Policy, facts: Facts) -> None:
        self._policy = policy
        self._facts = facts
        self._left = _JUDGED_LIMIT
        self._reasons: dict[str, str] = {}

    def take(self, message: Message) -> Message:
        reasons = {one: self._take(one) for one in reversed(message.attachments)}
        return left_out(message, {one: reasons[one] for one in message.attachments if reasons[one]})

    def _take(self, asked: Attachment) -> str:
        """Return why a file must not be shown, "" if it may be."""
        if not self._left:
            return f"a request shows at most {_JUDGED_LIMIT} files"
        self._left -= 1
        if asked.path not in self._reasons:
            decision = self._policy.judge(VIEW, {"path": asked.path}, self._facts)
            denied = f"{decision.reason} (rule {decision.rule})" if decision.verdict == "deny" else ""
            self._reasons[asked.path] = denied
        return self._reasons[asked.path]
