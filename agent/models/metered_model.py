"""A Model that counts the usage of every attempt, including failed and cancelled ones."""

from __future__ import annotations

from agent.errors import ModelError
from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.model import Model, OnDelta
from agent.models.token_estimate import CHARS_PER_TOKEN, messages_tokens, prompt_tokens
from agent.state import ModelResponse


class MeteredModel:
    """Sums up the `usage` of all attempts of another model.

    A failed attempt counts as its error says; without that, its usage is estimated from the text received so far.
    """

    def __init__(self, inner: Model) -> None:
        self.usage = Usage()
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        received_chars = 0

        def received(text: str) -> None:
            nonlocal received_chars
            received_chars += len(text)
            on_delta(text)

        try:
            response = await self._inner.infer(request, received)
        except BaseException as error:
            usage = error.usage if isinstance(error, ModelError) else None
            if usage is None and received_chars:
                sent = messages_tokens(request.messages) + prompt_tokens(request.system_prompt, request.tools)
                usage = Usage(input_tokens=sent, output_tokens=-(-received_chars // CHARS_PER_TOKEN))
            self.usage += usage or Usage()
            raise
        if isinstance(response, ModelResponse):  # else the loop reports the wrong type
            self.usage += response.usage
        return response
