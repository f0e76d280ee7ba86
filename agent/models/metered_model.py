"""A Model that keeps count of the attempts that failed: what they used was used, though nobody got an answer for it."""

from __future__ import annotations

from agent.errors import ModelError
from agent.hook import InferenceRequest
from agent.messages import Usage
from agent.model import Model, OnDelta
from agent.state import ModelResponse
from agent.token_estimate import CHARS_PER_TOKEN, messages_tokens, prompt_tokens


class MeteredModel:
    """Asks another model. `failed_usage` is what its failed and cancelled attempts have used together.

    That is what the error says; where it says nothing, or is none of ours, it is estimated from the text that had come.
    """

    def __init__(self, inner: Model) -> None:
        self.failed_usage = Usage()
        self._inner = inner

    @property
    def name(self) -> str:
        """The other model's name."""
        return self._inner.name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Ask the other model once; raises what it raises."""
        heard_chars = 0

        def heard(text: str) -> None:
            nonlocal heard_chars
            heard_chars += len(text)
            on_delta(text)

        try:
            return await self._inner.infer(request, heard)
        except BaseException as error:
            usage = error.usage if isinstance(error, ModelError) else None
            if usage is None and heard_chars:
                sent = messages_tokens(request.messages) + prompt_tokens(request.system_prompt, request.tools)
                usage = Usage(input_tokens=sent, output_tokens=-(-heard_chars // CHARS_PER_TOKEN))
            self.failed_usage += usage or Usage()
            raise
