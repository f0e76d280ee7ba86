"""The events of a tool call: its start, its verdict, its output while it runs, and its end."""

import asyncio
import codecs
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from agent.coalescer import Coalescer
from agent.events import EventSink, emit
from agent.filesystem import OnOutput, OutputStream, joined
from agent.hooks.hook import Hook, OutputFilter
from agent.messages import ToolCall, ToolResult
from agent.state import ToolExecution, Verdict
from agent.tool_call import Slot

_STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")
_log = logging.getLogger(__name__)
EVENTS = Slot[EventSink]("where the events of the call go")


def emit_started(events: EventSink, call: ToolCall) -> None:
    """Emit tool_call_started."""
    emit(events, "tool_call_started", call_id=call.id, name=call.name, arguments=call.arguments)


def emit_verdict(events: EventSink, asked: ToolCall, judged: ToolCall, verdict: Verdict) -> None:
    """Emit hook_verdict for a call as requested and as judged."""
    emit(
        events,
        "hook_verdict",
        call_id=asked.id,
        verdict=verdict.kind.public_name,
        **_same(verdict, "hook", "rule", "reason"),
        **_policy(verdict),
        arguments=judged.arguments if judged.arguments != asked.arguments else None,
    )


def emit_finished(events: EventSink, tool: ToolExecution, result: ToolResult) -> None:
    """Emit tool_call_finished."""
    verdict = tool.verdict
    emit(
        events,
        "tool_call_finished",
        call_id=tool.call.id,
        name=tool.call.name,
        verdict=verdict.kind.public_name if verdict else "",
        rule=verdict.rule if verdict else "",
        reason=verdict.reason if verdict else "",
        **_policy(verdict),
        approval_id=tool.approval_id,
        **_same(result, "outcome", "exit_code", "is_error", "withheld_by", "would_be_withheld_by", "note"),
        content=result.content.decode("utf-8", "replace"),
        evicted=result.evicted.model_dump() if result.evicted else None,
        attachments=[one.model_dump() for one in result.attachments],
        duration_ms=round(tool.duration_s * 1000, 3),
    )


def _same(value: Verdict | ToolResult, *names: str) -> dict[str, JsonValue]:
    return {name: getattr(value, name) for name in names}


def _policy(verdict: Verdict | None) -> dict[str, JsonValue]:
    policy = verdict.policy if verdict is not None else None
    would_be: JsonValue = None
    if policy is not None and policy.would_be:
        would_be = {"verdict": policy.would_be, "rule": policy.would_be_rule}
    return {"policy_version": policy.version if policy is not None else "", "would_be": would_be}


class OutputEvents:
    """Turns a program's output into tool_output events: decoded per stream, coalesced, in order of arrival."""

    def __init__(self, events: EventSink, call_id: str) -> None:
        self._events = events
        self._call_id = call_id
        self._stream: OutputStream = "stdout"
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}
        self._text = Coalescer(self._deliver)

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if stream != self._stream:
            self._text.flush()
            self._stream = stream
        self._text.add(self._decoders[stream].decode(data))

    def flush(self) -> None:
        self._text.flush()

    def _deliver(self, text: str) -> None:
        emit(self._events, "tool_output", call_id=self._call_id, stream=self._stream, text=text)


def output_filters(hooks: Iterable[Hook]) -> list[OutputFilter] | None:
    """Return new filters for one call, the innermost first.

    None if a hook redacts without a filter, or fails to make one: then nothing is shown before the result.
    """
    filters: list[OutputFilter] = []
    for hook in (hook for hook in hooks if hook.redacts):
        try:
            made = hook.output_filter()
        except Exception:  # any hook may fail: without its filter nothing is shown live
            _log.exception("the output filter of %s could not be made", hook.name)
            made = None
        if made is None:
            return None
        filters.insert(0, made)
    return filters


async def filtered(
    filters: Sequence[OutputFilter], stream: OutputStream, data: bytes, *, cut: bool | None = None
) -> bytes:
    """Return bytes of a stream after the filters; with `cut` given, they end the stream."""
    for filter_ in filters:
        passed = b""
        if data:
            fed = filter_.feed(stream, data)
            passed = fed if isinstance(fed, bytes) else await fed
        if cut is not None:
            rest = filter_.flush(stream, cut=cut)
            passed = joined((passed, rest if isinstance(rest, bytes) else await rest))
        data = passed
    return data


class LiveOutput:
    """Shows a call's output, filtered; pieces that wait for the filters are merged.

    After a filter fails nothing more is shown; the result has the rest.
    """

    def __init__(self, filters: Sequence[OutputFilter], listeners: Sequence[OnOutput]) -> None:
        self._filters = filters
        self._listeners = listeners
        self._waiting: deque[tuple[OutputStream, list[bytes]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._ended = False

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if self._over or self._ended or not data:
            return
        if not self._filters:
            self._show(stream, data)
            return
        if self._waiting and self._waiting[-1][0] == stream:
            self._waiting[-1][1].append(data)
        else:
            self._waiting.append((stream, [data]))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._pass_waiting())

    async def end(self, *, cut: bool) -> None:
        """Show what the filters hold back; `cut`: output is missing. Only the first end counts."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._task is not None:
                await self._task
            for stream in _STREAMS:
                await self._pass(stream, b"", cut=cut)
        finally:
            self._over = True

    async def _pass_waiting(self) -> None:
        while self._waiting:
            stream, pieces = self._waiting.popleft()
            await self._pass(stream, joined(pieces), cut=None)
            if self._waiting:  # tens of thousands may, after a filter that took its time; most filters do not suspend
                await asyncio.sleep(0)
        self._task = None

    async def _pass(self, stream: OutputStream, data: bytes, *, cut: bool | None) -> None:
        if self._over:
            return
        try:
            data = await filtered(self._filters, stream, data, cut=cut)
        except Exception:  # any filter may fail: nothing more is shown live
            _log.exception("a filter of live output failed")
            self._over = True
            return
        if data:
            self._show(stream, data)

    def _show(self, stream: OutputStream, data: bytes) -> None:
        for listener in self._listeners:
            listener(stream, data)
