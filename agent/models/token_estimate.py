"""Estimates the tokens of a request: a quarter of its characters, corrected by the endpoint's reports.

The run's notes carry an InputEstimate from step to step, so that only new messages are counted.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import Field, JsonValue, ValidationError

from agent.messages import Message, ToolSpec, Value

CHARS_PER_TOKEN = 4

# A report this far from the estimate counts something else, such as uncached tokens only, and is ignored. The slack
# allows for a long prompt that the endpoint adds to a short request.
_BELIEVED_FACTOR = 8
_SLACK_TOKENS = 4_000

# Added to both sides of the ratio: in short requests the endpoint's overhead weighs as much as the messages.
_DAMPING_TOKENS = 500
_MIN_RATIO, _MAX_RATIO = 0.25, 4.0


def message_tokens(message: Message) -> int:
    """Return the estimate for a message: its content and the arguments of its tool calls."""
    calls = sum(len(call.name) + len(json.dumps(call.arguments or {})) for call in message.tool_calls)
    return -(-(len(message.content) + calls) // CHARS_PER_TOKEN)


def messages_tokens(messages: Iterable[Message]) -> int:
    """Return the estimate for messages."""
    return sum(message_tokens(message) for message in messages)


def prompt_tokens(system_prompt: str, tools: Iterable[ToolSpec]) -> int:
    """Return the estimate for what is sent besides the messages."""
    chars = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in tools)
    return -(-(len(system_prompt) + chars) // CHARS_PER_TOKEN)


class InputEstimate(Value):
    """The size of one request: the thread's messages from `first` up to `messages`, and what is sent with them.

    `thread` estimates those messages, `estimated` the whole request; `tokens` is the best known size of the request.
    """

    first: int = Field(ge=0)
    messages: int = Field(ge=0)
    thread: int = Field(ge=0)
    estimated: int = Field(ge=0)
    tokens: int = Field(ge=0)

    @classmethod
    def of(cls, messages: Sequence[Message], first: int, aside: int, ratio: float = 1.0) -> Self:
        """Count all messages from `first` on; `aside` is the estimate of what is sent besides."""
        thread = messages_tokens(messages[first:])
        known, tokens = {"first": first, "messages": len(messages), "thread": thread}, round((thread + aside) * ratio)
        return cls(**known, estimated=thread + aside, tokens=tokens)

    @classmethod
    def remembered(cls, note: JsonValue, messages: Sequence[Message], first: int) -> Self | None:
        """Return the estimate in a note, None if it does not fit `messages` from `first` on."""
        try:
            found = cls.model_validate(note)
        except ValidationError:
            return None
        return found if found.first == first and first <= found.messages <= len(messages) else None

    @property
    def ratio(self) -> float:
        """Reported tokens per estimated token."""
        ratio = (self.tokens + _DAMPING_TOKENS) / (self.estimated + _DAMPING_TOKENS)
        return min(max(ratio, _MIN_RATIO), _MAX_RATIO)

    def grown(self, messages: Sequence[Message]) -> Self:
        added = messages_tokens(messages[self.messages :])
        return self.with_(
            messages=len(messages),
            thread=self.thread + added,
            estimated=self.estimated + added,
            tokens=self.tokens + round(self.ratio * added),
        )

    def measured(self, aside: int, reported_tokens: int) -> Self:
        """Return the estimate of a sent request, corrected by the endpoint's report, 0 for none."""
        estimated = self.thread + aside
        least, most = estimated / _BELIEVED_FACTOR, estimated * _BELIEVED_FACTOR + _SLACK_TOKENS
        believed = least <= reported_tokens <= most
        change = round(self.ratio * (estimated - self.estimated))
        tokens = reported_tokens if believed else max(0, self.tokens + change)
        return self.with_(estimated=estimated, tokens=tokens)
