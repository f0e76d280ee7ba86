"""A model that follows a script (agent.models.script) in this process, for tests and examples.

model = ScriptedModel([Turn(calls=[Call("weather", {"city": "Bern"})]), Turn(expect=["rain"], say="It rains.")])
final = await Agent(model=model, tools=[weather]).run(AgentState.start("How is the weather?"))
assert final.answer == "It rains." and not model.failures
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent.errors import ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.models.chat_completions import Gathered, request_body, usage_of
from agent.models.endpoint_errors import complaint_of, endpoint_error
from agent.models.model import OnDelta
from agent.models.script import ExpectationFailed, Fault, Script, Turn
from agent.state import ModelResponse


class ScriptedModel(Script):
    """A Model that plays turns.

    An unmet expectation raises ModelRefused, which ends the run; a Fault raises the error that the same fault of an
    endpoint would.
    """

    def __init__(self, turns: Sequence[Turn], *, name: str = "scripted") -> None:
        super().__init__(turns)
        self.name = name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Play the turn that the request is at. Raises ModelError."""
        body = request_body(self.name, request)
        try:
            answer = self.play(body, len(json.dumps(body)))
        except ExpectationFailed as failed:
            raise ModelRefused(str(failed)) from failed
        if isinstance(answer, Fault):
            raise self._error(answer)
        gathered = Gathered()
        on_delta(gathered.add(answer.completion()))
        usage = usage_of(gathered.usage, body, gathered.written_chars)
        return ModelResponse(message=gathered.message(), finish_reason=gathered.finish_reason, usage=usage)

    def _error(self, fault: Fault) -> Exception:
        if fault.kind == "drop":
            return ModelUnavailable("a scripted fault: the connection was dropped")
        if fault.kind != "status":
            return ModelNonsense(f"a scripted fault: the answer was {fault.kind}")
        text = fault.body if isinstance(fault.body, str) else json.dumps(fault.body or {})
        said = f"a scripted fault: HTTP {fault.status} {text}"
        headers = {name.lower(): value for name, value in fault.headers.items()}
        return endpoint_error(
            complaint_of(text), said, status=fault.status, headers=headers, now_s=0.0, model=self.name
        )
