"""The vocabulary between agent, model and tools: messages, tool calls and their results, and token usage."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue

from agent.frozen import Arguments, Json, Text, frozen_arguments, storable_text

Role = Literal["system", "user", "assistant", "tool"]

_ERROR_LIMIT_CHARS = 8_000


class Value(BaseModel):
    """An immutable value that survives a round trip through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def with_(self, **changes: object) -> Self:
        """Return a copy with fields replaced, without validation.

        Takes a fifth of the time of `model_copy`; a tool call makes some twenty copies.
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
    """A tool call that the model or a service requests.

    `arguments` is None when the model sent anything but a JSON object; `raw_arguments` is then what it sent, possibly
    shortened. `problem` says why a JSON object was refused (agent.tools.intake).
    """

    id: str
    name: str
    arguments: Arguments | None
    raw_arguments: str = ""
    problem: str = ""


class Attachment(Value):
    """A file of the workspace that a model is shown with a message: an image, or a PDF.

    The thread keeps this reference; the bytes are read when a request is sent (agent.capabilities.attachments), and are
    left out if the file has changed since: `sha256` is of its bytes.
    """

    path: Text
    media_type: str
    size_bytes: int
    sha256: str


class ProviderData(Value):
    """What an endpoint sent with an answer and wants back with the next request, such as encrypted reasoning.

    Opaque, and sent only to `provider`: the endpoint and model that it came from.
    """

    provider: Text
    data: Json


class Message(Value):
    """One message of a thread; `tool_call_id` is set for role "tool" only."""

    role: Role
    content: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    attachments: tuple[Attachment, ...] = ()
    provider_data: ProviderData | None = None


def storable_message(message: Message) -> Message:
    """Return the message as the thread stores it.

    JSON can encode half of a surrogate pair, as in a file name that is not UTF-8. Tools get such arguments unchanged;
    stores and endpoints refuse them, so the thread keeps them escaped in `raw_arguments`.
    """
    calls = tuple(map(_storable_call, message.tool_calls))
    return message if calls == message.tool_calls else message.with_(tool_calls=calls)


def _storable_call(call: ToolCall) -> ToolCall:
    try:
        json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # NaN and infinity, too
        text = storable_text(json.dumps(call.arguments, ensure_ascii=False))
        arguments = frozen_arguments(json.loads(text, parse_constant=str))
        return call.with_(arguments=arguments, raw_arguments=json.dumps(call.arguments))
    return call


class Evicted(Value):
    """A result that was too long for the thread: the file in the sandbox that contains it."""

    path: str
    size_bytes: int
    lines: int
    sha256: str
    incomplete: bool


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call.

    `outcome` is completed or failed for tools that run no program, blocked for a refused call, else a program's outcome
    (see ExecResult). `note` follows the content in what the model is shown. `withheld_by` names the rule that replaced
    the result, `would_be_withheld_by` a rule in shadow mode that would have. `attachments` are shown to a model that
    takes them. `structured` is for services, which may want parts of the content apart; no model is shown it.
    """

    content: bytes
    outcome: str = "completed"
    is_error: bool = False
    exit_code: int | None = None
    evicted: Evicted | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    note: str = ""
    withheld_by: str = ""
    would_be_withheld_by: str = ""
    attachments: tuple[Attachment, ...] = ()
    structured: JsonValue = None

    @classmethod
    def error(cls, message: str, *, outcome: str = "failed") -> ToolResult:
        """Return a result that says what is wrong and how to fix it; a long message is cut in the middle."""
        if len(message) > _ERROR_LIMIT_CHARS:
            half = _ERROR_LIMIT_CHARS // 2
            message = f"{message[:half]} [... {len(message) - 2 * half} characters ...] {message[-half:]}"
        return cls(content=message.encode("utf-8", "replace"), outcome=outcome, is_error=True)

    def noted(self, note: str) -> ToolResult:
        return replace(self, note=f"{self.note}\n{note}" if self.note else note)

    def text(self) -> str:
        """Return what the model is shown."""
        content = self.content.decode("utf-8", "replace")
        return f"{content}\n{self.note}" if self.note and content else content or self.note


@dataclass(frozen=True)
class ToolSpec:
    """A tool's description. The model sees `name`, `description` and `parameters`, a JSON Schema.

    `writes`: a call changes the file at its `path` argument, so calls of one step on that path run one after the other.
    `writes_anywhere`: a call, such as a command, may change any file; it never overlaps calls that write a file.
    `own_state`: the tool changes its run's state, through a hook of its capability; subagents do not get it.
    `read_only`: a call changes nothing, so an interrupted call may be repeated.
    """

    name: str
    description: str
    parameters: dict[str, JsonValue]
    writes: bool = False
    writes_anywhere: bool = False
    own_state: bool = False
    read_only: bool = False


class Amounts(Value):
    """Numbers that are counted together."""

    def __add__(self, other: Self) -> Self:
        return self._each(operator.add, other)

    def at_least(self, other: Self) -> Self:
        """Return the larger of each number."""
        return self._each(lambda mine, its: mine.at_least(its) if isinstance(mine, Amounts) else max(mine, its), other)

    def _each(self, joined: Callable[[Any, Any], Any], other: Self) -> Self:
        return type(self)(**{name: joined(value, getattr(other, name)) for name, value in self})


class Usage(Amounts):
    """Tokens as the endpoint reports them, and their cost at the model's prices.

    `input_tokens` includes `cached_input_tokens`, which came from the endpoint's prompt cache; `output_tokens` includes
    `reasoning_tokens`. `estimated_tokens` is how many of both the endpoint did not report: they are an estimate.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated_tokens: int = 0
    cost_usd: float = 0.0
