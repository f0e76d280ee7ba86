"""What the attempts to ask a model cost, also those that failed."""

from dataclasses import replace

from agent.hooks.hook import Failover, InferenceRequest
from agent.messages import Usage
from agent.models.model import Model, OnDelta
from agent.models.token_estimates import lost_usage, request_tokens
from agent.state import ModelResponse


class MeteredModel:
    """Sums up the `usage` of all attempts of another model; `last` is that of the last one.

    A failed attempt counts as its error says (charge_failure); without that, its usage is estimated from the text
    received so far.
    """

    def __init__(self, inner: Model) -> None:
        self.name = inner.name
        self.usage = self.last = Usage()
        self._inner = inner

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        received_chars = 0

        def received(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
            nonlocal received_chars
            received_chars += len(text)
            on_delta(text, reasoning=reasoning, shown=shown)

        def charge(error: BaseException) -> None:
            nonlocal received_chars
            self.last = charged(error) or (
                lost_usage(request_tokens(request), received_chars) if received_chars else Usage()
            )
            self.usage += self.last
            received_chars = 0

        def failed_over(failover: Failover) -> None:
            charge(failover.error)
            request.progress.failing_over(failover)

        self.last = Usage()
        try:
            progress = replace(request.progress, failing_over=failed_over)
            response = await self._inner.infer(replace(request, progress=progress), received)
        except BaseException as error:
            charge(error)
            raise
        if isinstance(response, ModelResponse):  # else the loop reports the wrong type
            self.last = response.usage
            self.usage += self.last
        return response


def charge_failure(error: BaseException, usage: Usage) -> None:
    """Say what a failed attempt cost, of any error: also of a cancellation."""
    vars(error)["usage"] = usage


def charged(error: BaseException) -> Usage | None:
    """Return what an error says that the attempt cost, None if it does not."""
    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else None
