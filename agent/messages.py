"""What is said between the agent and the model. Every value is immutable and round-trips through JSON."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from agent.frozen import Arguments, Text

Role = Literal["system", "user", "assistant", "tool"]


class Value(BaseModel):
    """An immutable, serializable value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def with_(self, **changes: object) -> Self:
        """Return a copy with fields replaced; they are trusted, as they come from this package and hooks.

        It is model_copy in a fifth of its time: a tool call makes some twenty.
        """
        copied = object.__new__(type(self))
        put = object.__setattr__
        put(copied, "__dict__", {**self.__dict__, **changes})
        fields_set = self.__pydantic_fields_set__
        if not fields_set >= changes.keys():  # else shared: nothing can be set on either
            fields_set = fields_set | changes.keys()
        put(copied, "__pydantic_fields_set__", fields_set)
        put(copied, "__pydantic_extra__", None)
        put(copied, "__pydantic_private__", None)
        return copied


class ToolCall(Value):
    """A tool call the model, or a service, asks for.

    `arguments` is None when the model sent something that is not a JSON object; `raw_arguments` holds what it sent, or
    its beginning. `problem` says why arguments that are one were refused all the same (agent.tools.intake).
    """

    id: str
    name: str
    arguments: Arguments | None
    raw_arguments: str = ""
    problem: str = ""


class Message(Value):
    """One message of a thread; `tool_call_id` is set for role "tool" only."""

    role: Role
    content: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Usage(Value):
    """Tokens, as the endpoint reports them, and what they cost at the model's prices."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )

    def at_least(self, other: Usage) -> Usage:
        """Return the larger of each number."""
        return Usage(
            input_tokens=max(self.input_tokens, other.input_tokens),
            output_tokens=max(self.output_tokens, other.output_tokens),
            cost_usd=max(self.cost_usd, other.cost_usd),
        )
