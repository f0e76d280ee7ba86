"""What is sent is a stable prefix from step to step: llama-server computes only what is new."""

from __future__ import annotations

from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall
from tests.models.asking import CLOCK, WEATHER, ask, model_of
from tests.models.servers import ModelServer

_STEPS = 25


async def test_most_of_each_request_but_the_first_is_cached(llama_server: ModelServer) -> None:
    """The share is printed; it depends on what a step adds."""
    messages = [Message(role="user", content="Look up the weather of 25 cities, one after the other.")]
    sent = cached = 0
    for step in range(_STEPS):
        asked = InferenceRequest("You look things up. " * 40, tuple(messages), (WEATHER, CLOCK))
        model = model_of(llama_server, max_output_tokens=16)
        usage = (await ask(model, asked)).usage
        sent, cached = sent + usage.input_tokens, cached + usage.cached_input_tokens
        if step:
            assert usage.cached_input_tokens > usage.input_tokens * 0.8, step
        call = ToolCall(id=f"call_{step}", name="weather", arguments={"city": f"city {step}", "days": 1})
        messages += [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", tool_call_id=call.id, content=f"{step} degrees, sunny"),
        ]
    print(f"{cached:,} of {sent:,} input tokens of {_STEPS} steps were cached: {cached / sent:.1%}")
