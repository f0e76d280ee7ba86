"""Tracing: a span around each inference and each tool call, for any recorder.

    chat            message_count, content_length_chars, content (first 500 characters of the answer), tool_call_count,
                    tool_call_names, finish_reason, and the fields of Usage; error
    execute_tool    tool_name, tool_call_id, arguments (first 500 characters of their JSON), output_length_bytes,
                    output (first 500 characters), outcome, error

The rings are outermost: a span covers everything inside, such as retries. Rings see a tool's output before redacting
hooks do, so a recorder that stores attributes must redact them.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from agent.hooks.hook import Hook, InferenceRequest, NextInference, NextToolUse
from agent.messages import ToolResult
from agent.state import ModelResponse, ToolExecution
from agent.tools.tool import Capability

_log = logging.getLogger(__name__)

_SHOWN_CHARS = 500

Attribute = str | int | float | bool | tuple[str, ...]


class Span(Protocol):
    """One span while it is open."""

    def set(self, **attributes: Attribute) -> None: ...


class Recorder(Protocol):
    """Takes spans.

    A span is open as long as its context, whose __exit__ gets the error that ends it. Concurrent tool calls open spans
    at the same time, each in its own task. A recorder must not block.
    """

    def span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]: ...


@dataclass(eq=False)
class Tracing(Hook):
    """Opens a span in each ring."""

    recorder: Recorder
    name = "tracing"
    priority = 1_000_000
    on_failure = "open"

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        with _Guarded(self.recorder, "chat", {"message_count": len(request.messages)}) as span:
            response = await next_(request)
            message = response.message
            span.set(
                content_length_chars=len(message.content),
                content=_shown(message.content),
                tool_call_count=len(message.tool_calls),
                tool_call_names=tuple(_shown(call.name) for call in message.tool_calls[:32]),
                finish_reason=_shown(response.finish_reason),
                **dict(response.usage),
            )
            return response

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        call = tool.call
        arguments = _shown(tool.judged.canonical.decode())
        attributes = {"tool_name": _shown(call.name), "tool_call_id": call.id, "arguments": arguments}
        with _Guarded(self.recorder, "execute_tool", attributes) as span:
            result = await next_(tool)
            # At most four bytes per character: decode no more of a large output than is shown.
            output = _shown(result.content[: 4 * _SHOWN_CHARS].decode("utf-8", "replace"))
            span.set(output_length_bytes=len(result.content), output=output, outcome=result.outcome)
            if result.is_error:
                span.set(error=output)
            return result


class _Guarded:
    """A span whose recorder cannot break the run: what it raises is logged, and the rest goes unrecorded.

    It cannot suppress an error either: the result of the context's __exit__ is ignored.
    """

    def __init__(self, recorder: Recorder, name: str, attributes: Mapping[str, Attribute]) -> None:
        self._name = name
        self._context: AbstractContextManager[Span] | None = None
        self._span: Span | None = None
        with self._logged():
            context = recorder.span(name, attributes)
            self._span = context.__enter__()
            self._context = context

    def __enter__(self) -> Self:
        return self

    def set(self, **attributes: Attribute) -> None:
        with self._logged():
            if self._span is not None:
                self._span.set(**attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.set(error=_shown(str(error) or type(error).__name__))
        with self._logged():
            if self._context is not None:
                self._context.__exit__(kind, error, trace)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._span = None
            _log.exception("the recorder failed on a span %s", self._name)


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS]


@dataclass
class RecordedSpan:
    """A span in memory; `duration_s` is None while it is open."""

    name: str
    attributes: dict[str, Attribute] = field(default_factory=dict)
    duration_s: float | None = None

    def set(self, **attributes: Attribute) -> None:
        self.attributes.update(attributes)


def tracing(recorder: Recorder | None = None) -> Capability:
    """Return the tracing hook; no hook, and no cost, without a recorder."""
    return Capability("tracing", hooks=() if recorder is None else (Tracing(recorder),))
