"""A script of a model's answers, turn by turn, for demos and tests of agents.

    turns = [
        Turn(say="Let me look.", calls=[Call("execute", {"command": "pytest -q"})]),
        Turn(expect=["1 failed"], say="It fails, as you said."),
    ]

ScriptedModel plays it in this process, ScriptedModelServer over HTTP. A turn's `expect` applies to the messages since
the last assistant message: tool results in call order, the task on turn 0.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from agent.errors import ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.models.chat_completions import Gathered
from agent.models.chat_request import request_body
from agent.models.endpoint_errors import complaint_of, endpoint_error
from agent.models.model import OnDelta
from agent.models.reported_usage import usage_of
from agent.state import ModelResponse

Received = Sequence[str]
"""The texts of the messages since the last assistant message, without system messages."""

Check = str | re.Pattern[str] | Callable[[str], object]
"""A substring, a pattern to find, or a function that returns False or a text (what is missing) if it is not met."""

Expectation = Check | Sequence[Check] | None
"""The checks that one message must pass; None for no check."""


@dataclass(frozen=True)
class Call:
    """A tool call. Arguments as a str are sent unchanged, for a model that writes bad JSON. id None: generated."""

    name: str
    arguments: dict[str, Any] | str
    id: str | None = None


@dataclass(frozen=True)
class Fault:
    """A failure of the first `times` requests of a turn; later requests get the turn.

    A "status" answers with `status`, `headers` and `body` (JSON, or a text that is sent unchanged), which can also play
    an odd endpoint's stream: status 200 and content-type text/event-stream.
    """

    kind: Literal["drop", "nonsense", "status", "empty"]
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: dict[str, Any] | str | None = None


@dataclass(frozen=True)
class Turn:
    """One answer. `say` and `calls` may be functions of the received texts, e.g. to take a path from a result.

    `reasoning` is sent before them, as the API in use sends it. The usage is about a quarter of the characters; `usage`
    has fields that are reported besides, or instead.
    """

    say: str | Callable[[Received], str] = ""
    calls: Sequence[Call] | Callable[[Received], Sequence[Call]] = ()
    expect: Sequence[Expectation] = ()
    finish_reason: str | None = None
    fault: Fault | None = None
    reasoning: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A turn as it is sent, with calls and usage in the format of chat completions."""

    text: str
    calls: tuple[dict[str, Any], ...]
    finish_reason: str
    usage: dict[str, Any]
    reasoning: str = ""
    index: int = 0

    def completion(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [*self.calls]
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return {**envelope("chat.completion"), "choices": [choice], "usage": self.usage}


class ExpectationFailed(Exception):
    """An expectation was not met, or the script is wrong. str() names the turn and the problem."""


class Script:
    """Plays the turns. `failures` lists unmet expectations, `requests` the bodies of all requests.

    The number of assistant messages in a request selects the turn, so that several runs, and repeated requests, can
    share a script; `by_model` has turns for requests to other models, such as a subagent's.
    """

    def __init__(self, turns: Sequence[Turn], by_model: Mapping[str, Sequence[Turn]] | None = None) -> None:
        self.failures: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self._turns = tuple(turns)
        self._by_model = {model: tuple(script) for model, script in (by_model or {}).items()}
        self._faults_played: Counter[tuple[str, int]] = Counter()

    def play(self, request: dict[str, Any], size_bytes: int) -> Answer | Fault:
        """Return the answer to a request, the body of either API. Raises ExpectationFailed."""
        self.requests.append(request)
        messages = request["messages"] if "messages" in request else _messages_of(request["input"])
        model = str(request.get("model"))
        index: int = sum(message["role"] == "assistant" for message in messages)
        turns = self._by_model.get(model, self._turns)
        if index >= len(turns):
            raise self._failed(index, f"the script has {len(turns)} turns only")
        turn, received = turns[index], _received(messages)
        if problem := _unmet(turn, received):
            raise self._failed(index, problem)
        if turn.fault is not None and self._faults_played[model, index] < turn.fault.times:
            self._faults_played[model, index] += 1
            return turn.fault
        try:
            return _compose(index, turn, received, size_bytes)
        except Exception as error:  # the script's own function: its author must see any error
            problem = f"the script's function failed: {type(error).__name__}: {error}"
            raise self._failed(index, problem) from error

    def _failed(self, index: int, problem: str) -> ExpectationFailed:
        message = f"the script's turn {index}: {problem}"
        self.failures.append(message)
        return ExpectationFailed(message)


def _messages_of(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages in the input of a request to the Responses API; the items of one answer are one message."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": item["output"]})
        elif item.get("role", "assistant") != "assistant":
            messages.append({"role": item["role"], "content": item["content"]})
        elif not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
    return messages


def _received(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    texts: list[str] = []
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        if message["role"] != "system":
            texts.append(_text(message.get("content")))
    return texts[::-1]


def _text(content: object) -> str:
    """Return the text of a message, without the images and files among its parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part["type"] in ("text", "input_text"))
    return str(content or "")


def _unmet(turn: Turn, received: Received) -> str:
    for position, expectation in enumerate(turn.expect):
        if expectation is None:
            continue
        if position >= len(received):
            return f"message {position} is missing: only {len(received)} came since the last assistant message"
        text = received[position]
        several = isinstance(expectation, Sequence) and not isinstance(expectation, str)
        for check in cast(Sequence[Check], expectation if several else [expectation]):
            if problem := _problem(check, text):
                shown = repr(text) if len(text) <= 1200 else f"{text[:600]!r} ... {text[-600:]!r}"
                return f"message {position}: {problem}; it was: {shown}"
    return ""


def _problem(check: Check, text: str) -> str:
    if isinstance(check, str):
        return "" if check in text else f"expected the text {check!r}"
    if isinstance(check, re.Pattern):
        return "" if check.search(text) else f"expected a match of {check.pattern!r}"
    try:
        verdict = check(text)
    except Exception as error:  # a check that fails is not met
        return f"a check failed: {type(error).__name__}: {error}"
    if isinstance(verdict, str):
        return verdict
    return f"the check {getattr(check, '__name__', 'given')} is not met" if verdict is False else ""


def _compose(index: int, turn: Turn, received: Received, request_bytes: int) -> Answer:
    text = turn.say(received) if callable(turn.say) else turn.say
    asked = turn.calls(received) if callable(turn.calls) else turn.calls
    calls: list[dict[str, Any]] = []
    for position, call in enumerate(asked):
        id_ = f"call_{index}_{position}" if call.id is None else call.id
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
        calls.append({"id": id_, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    prompt, reasoned = request_bytes // 4, len(turn.reasoning) // 4
    written = (len(text) + sum(len(str(call)) for call in calls)) // 4 + reasoned
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "completion_tokens_details": {"reasoning_tokens": reasoned},
        **turn.usage,
    }
    finish_reason = turn.finish_reason or ("tool_calls" if calls else "stop")
    return Answer(text, tuple(calls), finish_reason, usage, turn.reasoning, index)


def envelope(kind: str) -> dict[str, Any]:
    """Return the frame of an object of the protocol."""
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": "scripted"}


class ScriptedModel(Script):
    """A Model that plays turns.

    An unmet expectation raises ModelRefused, which ends the run; a Fault raises the error that the same fault of an
    endpoint would.
    """

    def __init__(self, turns: Sequence[Turn], *, name: str = "scripted") -> None:
        super().__init__(turns)
        self.name = name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Play the turn that the request is at. Raises ModelError."""
        body = request_body(self.name, request)
        try:
            answer = self.play(body, len(json.dumps(body)))
        except ExpectationFailed as failed:
            raise ModelRefused(str(failed)) from failed
        if isinstance(answer, Fault):
            raise self._error(answer)
        gathered = Gathered()
        gathered.add(answer.completion()).deliver(on_delta)
        usage = usage_of(gathered.usage, request, gathered.written_chars)
        message, reason = gathered.message(), gathered.finish_reason
        return ModelResponse(message=message, finish_reason=reason, usage=usage, model=self.name)

    def _error(self, fault: Fault) -> Exception:
        if fault.kind == "drop":
            return ModelUnavailable("a scripted fault: the connection was dropped")
        if fault.kind != "status":
            return ModelNonsense(f"a scripted fault: the answer was {fault.kind}")
        text = fault.body if isinstance(fault.body, str) else json.dumps(fault.body or {})
        said = f"a scripted fault: HTTP {fault.status} {text}"
        headers = {name.lower(): value for name, value in fault.headers.items()}
        return endpoint_error(
            complaint_of(text), said, status=fault.status, headers=headers, now_s=0.0, model=self.name
        )
