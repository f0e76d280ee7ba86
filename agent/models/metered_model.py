"""A Model that keeps count of what every attempt used, whether its answer was taken, dropped, or never came."""

from __future__ import annotations

from agent.errors import ModelError
from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.model import Model, OnDelta
from agent.models.token_estimate import CHARS_PER_TOKEN, messages_tokens, prompt_tokens
from agent.state import ModelResponse


class MeteredModel:
    """Asks another model. `usage` is what all its attempts have used together.

    Of a failed or cancelled one that is what the error says; where it says nothing, or is none of ours, it is estimated
    from the text that had come.
    """

    def __init__(self, inner: Model) -> None:
        self.usage = Usage()
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
            response = await self._inner.infer(request, heard)
        except BaseException as error:
            usage = error.usage if isinstance(error, ModelError) else None
            if usage is None and heard_chars:
                sent = messages_tokens(request.messages) + prompt_tokens(request.system_prompt, request.tools)
                usage = Usage(input_tokens=sent, output_tokens=-(-heard_chars // CHARS_PER_TOKEN))
            self.usage += usage or Usage()
            raise
        if isinstance(response, ModelResponse):  # else a ring, or the loop, says what is wrong with it
            self.usage += response.usage
        return response
