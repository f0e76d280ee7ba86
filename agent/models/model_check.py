"""What an endpoint can do: a handful of small requests, what their answers show, and the settings that follow.

Each request asks for an answer of a few words. A question that an endpoint does not answer is a finding, not an error;
only the first one, which asks for any answer at all, ends the check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.errors import ContextLengthExceeded, ModelError, ModelNonsense
from agent.frozen import frozen_arguments
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall, ToolSpec
from agent.models.chat_request import request_body
from agent.models.openai_model import OpenAIModel
from agent.models.settings import RequestSettings
from agent.state import ModelResponse

Answer = Literal["yes", "no", "unknown"]
OpenModel = Callable[[bool, RequestSettings], OpenAIModel]
"""Returns a driver for the endpoint; the arguments are `stream` and the settings."""

_BOUND_TOKENS = 512  # room for a model that reasons before it says a word
_NUMBER: dict[str, Any] = {"type": "integer", "description": "the number to report"}
_TOOL = ToolSpec(
    "report_number",
    "Report one number. Call it once for each number.",
    {"type": "object", "properties": {"number": _NUMBER}, "required": ["number"]},
)
_SYSTEM = "You are being tested. Do exactly what is asked, and nothing else."
_ONE = "Report the number 7 with the tool report_number."
_TWO = "Report the numbers 1 and 2: call the tool report_number twice in the same answer."
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
# Where lists of models say how long the context of one is.
_CONTEXT_FIELDS = (
    "context_length",
    "max_model_len",
    "context_window",
    "max_context_length",
    "n_ctx",
    "inputTokenLimit",
)


@dataclass(frozen=True)
class Finding:
    """The answer to one question about an endpoint, and what was seen."""

    question: str
    answer: Answer
    detail: str = ""


@dataclass
class ModelReport:
    """What was found, and the settings that follow. `problem`: why the model gave no answer at all, or ""."""

    findings: list[Finding] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


class ModelCheck:
    """Asks the questions. `run` is for one endpoint, once."""

    def __init__(
        self,
        open_model: OpenModel,
        settings: RequestSettings,
        *,
        stream: bool,
        on_answer: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare the questions; `on_answer` gets each one when it is answered."""
        self._open = open_model
        self._on_answer = on_answer
        self._settings = settings
        self._stream = stream
        self._report = ModelReport()
        self._reasoning_chars = 0
        self._reasoning_fields: set[str] = set()

    async def run(self, *, short: bool = False) -> ModelReport:
        """Ask everything, or if `short` only whether the model answers, streams and calls tools."""
        report = self._report
        try:
            first = await self._ask("Say: ok", stream=self._stream)
        except ModelError as error:
            try:
                first = await self._ask("Say: ok", stream=not self._stream)
            except ModelError:
                report.problem = str(error)
                return report
            report.settings["stream"] = not self._stream
        self._found("answers", first, _said(first))
        streams = self._streams_calls
        if streams:
            streamed: ModelResponse | None = first
            self._found("streams", first, "")
        else:
            streamed = await self._tried("streams", "Say: ok", stream=True)
        calls = await self._calls(stream=streams)
        if not calls and await self._calls(stream=not streams):
            report.settings["stream"], calls = not streams, True
        if not short:
            await self._the_rest(first, streamed, calls=calls)
        return report

    async def _the_rest(self, first: ModelResponse, streamed: ModelResponse | None, *, calls: bool) -> None:
        report = self._report
        await self._calls(stream=not self._streams_calls)
        if calls:
            await self._parallel_calls()
            await self._history()
        counted = streamed is not None and not streamed.usage.estimated_tokens
        self._found("usage in a stream", streamed if counted else None, "" if counted else "the endpoint reports none")
        shown = bool(self._reasoning_chars or first.usage.reasoning_tokens)
        where = f" in {', '.join(sorted(self._reasoning_fields))}" if self._reasoning_fields else ""
        seen = f"{self._reasoning_chars:,} characters{where}" if self._reasoning_chars else "counted, not shown"
        self._found("reasoning", first if shown else None, seen if shown else "none seen")
        await self._structured()
        await self._context()
        if report.settings.get("max_tokens_name"):
            self._found("max_tokens", None, f"it wants {report.settings['max_tokens_name']}")

    @property
    def _streams_calls(self) -> bool:
        return bool(self._report.settings.get("stream", self._stream))

    async def _ask(
        self, text: str | tuple[Message, ...], *, stream: bool, tools: bool = False, **settings: Any
    ) -> ModelResponse:
        extra = {**self._settings.extra, **settings.pop("extra", {})}
        learned = {name: self._report.settings[name] for name in ("max_tokens_name",) if name in self._report.settings}
        bound = {"max_output_tokens": _BOUND_TOKENS, "response_format": None}
        known = {**vars(self._settings), **bound, **learned, **settings, "extra": extra}
        schema = _SCHEMA if known["response_format"] else None
        messages = (Message(role="user", content=text),) if isinstance(text, str) else text
        request = InferenceRequest(_SYSTEM, messages, (_TOOL,) if tools else (), schema)
        async with self._open(stream, RequestSettings(**known)) as model:
            response = await model.infer(request, self._count_reasoning)
            needed = model.learned
            if needed.pop("stream", ""):
                raise ModelNonsense("its stream was empty")
            self._report.settings.update(needed)
        kept = response.message.provider_data
        said = kept.data.get("message") if kept is not None else None
        self._reasoning_fields |= said.keys() if isinstance(said, Mapping) else set()
        return response

    def _count_reasoning(self, text: str, *, reasoning: bool = False, shown: bool = True) -> None:
        self._reasoning_chars += len(text) if reasoning and shown else 0

    async def _tried(
        self, question: str, text: str | tuple[Message, ...], *, stream: bool, **settings: Any
    ) -> ModelResponse | None:
        try:
            response = await self._ask(text, stream=stream, **settings)
        except ModelError as error:
            self._found(question, None, _short(error))
            return None
        self._found(question, response, "")
        return response

    async def _calls(self, *, stream: bool) -> bool:
        """Find out whether the model calls a tool, by itself or only if it must."""
        question = "tools in a stream" if stream else "tools without a stream"
        known = {finding.question: finding.answer for finding in self._report.findings}
        if question in known:
            return known[question] == "yes"
        problem = "it answered without a call"
        for choice in (None, "required"):
            try:
                response = await self._ask(_ONE, stream=stream, tools=True, tool_choice=choice)
            except ModelError as error:
                problem = _short(error)
                continue
            if response.message.tool_calls:
                call = response.message.tool_calls[0]
                detail = (
                    f"{call.name}({json.dumps(call.arguments) if call.arguments is not None else call.raw_arguments})"
                )
                if choice is not None:
                    detail += ", only with tool_choice: required"
                self._found(question, response, detail)
                return True
        self._found(question, None, problem)
        return False

    async def _parallel_calls(self) -> None:
        try:
            response = await self._ask(_TWO, stream=self._streams_calls, tools=True)
        except ModelError as error:
            self._found("parallel calls", None, _short(error))
            return
        count = len(response.message.tool_calls)
        self._found("parallel calls", response if count > 1 else None, f"{count} in one answer")

    async def _history(self) -> None:
        """Find out whether a history with a call is taken, also with the text null as OpenAI's own answers have it."""
        call = ToolCall(id="call_1", name=_TOOL.name, arguments=frozen_arguments({"number": 7}))
        thread = (
            Message(role="user", content=_ONE),
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", tool_call_id=call.id, content="reported"),
        )
        await self._tried("a history with calls", thread, stream=self._streams_calls, tools=True)
        if self._settings.api == "chat_completions":  # elsewhere a call is no part of a message
            messages = request_body("", InferenceRequest(_SYSTEM, thread, ()))["messages"]
            messages[2]["content"] = None
            extra = {"messages": messages}
            question = "null as the text of a call"
            await self._tried(question, thread, stream=self._streams_calls, tools=True, extra=extra)

    async def _structured(self) -> None:
        question = "structured output"
        for kind in ("json_schema", "json_object"):
            try:
                text = 'Answer with the JSON object {"ok": true}.'
                response = await self._ask(text, stream=self._streams_calls, response_format=kind)
                fits = isinstance(json.loads(response.message.content), Mapping)
            except (ModelError, ValueError):
                continue
            if fits:
                self._found(question, response, f"response_format: {kind}")
                self._report.settings["response_format"] = kind
                return
        self._found(question, None, "the schema is in the prompt only")

    async def _context(self) -> None:
        try:
            async with self._open(False, self._settings) as model:
                listed = await model.listed()
        except ModelError as error:
            self._found("context length", None, _short(error), "unknown")
            return
        length = context_tokens(listed)
        if length is None:
            self._found("context length", None, "the endpoint does not say; set context_window_tokens", "unknown")
            return
        self._report.findings.append(Finding("context length", "yes", f"{length:,} tokens"))
        self._report.settings["context_window_tokens"] = length

    def _found(self, question: str, response: ModelResponse | None, detail: str, otherwise: Answer = "no") -> None:
        self._report.findings.append(Finding(question, "yes" if response is not None else otherwise, detail))
        self._on_answer(question)


def context_tokens(listed: Any) -> int | None:
    """Return the context length in an endpoint's description of a model, wherever it has it."""
    if not isinstance(listed, Mapping):
        return None
    places = (listed, listed.get("meta"), listed.get("top_provider"), listed.get("limits"))
    for place in places:
        known = place if isinstance(place, Mapping) else {}
        for name in _CONTEXT_FIELDS:
            length = known.get(name)
            if isinstance(length, int) and 1_000 <= length < 10**9:
                return length
    return None


def _said(response: ModelResponse) -> str:
    return repr(response.message.content[:40])


def _short(error: ModelError) -> str:
    if isinstance(error, ContextLengthExceeded):
        return "the request does not fit the context"
    text = str(error)
    return text if len(text) <= 200 else f"{text[:200]}..."
