"""A model server that follows a script: the fake beside the real endpoint, for demos and tests.

It speaks `POST /v1/chat/completions` over real HTTP/1.1 on loopback, with and without SSE, for the real client.

    turns = [
        Turn(say="Let me look.", calls=[Call("execute", {"command": "pytest -q"})]),
        Turn(expect=["1 failed"], say="It fails, as you said."),
    ]
    async with ScriptedModelServer(turns) as server:
        model = OpenAIModel("scripted", base_url=server.base_url, api_key="none")
        ...
    assert not server.failures

The turn is chosen by the number of assistant messages in the request, so that several runs, and repeated requests, can
share one server; `by_model` has scripts for requests that name another model, such as a subagent's. A turn states what
it expects of the messages that came since the last assistant message (tool results in call order; the task on turn 0).
What is not met is answered with HTTP 400 of type script_expectation_failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

Received = Sequence[str]
"""The texts of the messages since the last assistant message, without system messages."""

Check = str | re.Pattern[str] | Callable[[str], object]
"""A substring, a pattern to find, or a function: False or a text (what is missing) means not met, all else met."""

Expectation = Check | Sequence[Check] | None
"""What one received message must meet, all of it; None expects nothing."""


@dataclass(frozen=True)
class Call:
    """A tool call; arguments as a str are sent as they are, to play a model that writes bad JSON. id None: made up."""

    name: str
    arguments: dict[str, Any] | str
    id: str | None = None


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong on a turn, the first `times` times it is asked; after that the turn is played.

    A "status" answers with `status`, `headers` and `body` (JSON, or a text that is sent as it is). As any answer can be
    written that way, an odd endpoint's stream can be played too: status 200 and content-type text/event-stream.
    """

    kind: Literal["drop", "nonsense", "status", "empty"]
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: dict[str, Any] | str | None = None


@dataclass(frozen=True)
class Turn:
    """One answer. `say` and `calls` may be functions of what was received, e.g. to take a path out of a result."""

    say: str | Callable[[Received], str] = ""
    calls: Sequence[Call] | Callable[[Received], Sequence[Call]] = ()
    expect: Sequence[Expectation] = ()
    finish_reason: str | None = None
    fault: Fault | None = None


@dataclass(frozen=True)
class _Answer:
    text: str
    calls: tuple[dict[str, Any], ...]
    finish_reason: str
    usage: dict[str, int]


class ScriptedModelServer:
    """Plays the turns; `failures` lists unmet expectations, `requests` the bodies of all requests."""

    def __init__(
        self,
        turns: Sequence[Turn],
        *,
        by_model: Mapping[str, Sequence[Turn]] | None = None,
        fragment_chars: int = 7,
    ) -> None:
        self.turns = tuple(turns)
        self.by_model = {model: tuple(script) for model, script in (by_model or {}).items()}
        self.failures: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""
        self._fragment_chars = fragment_chars
        self._faults_played: Counter[tuple[str, int]] = Counter()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())  # a coroutine always runs in one
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while (request := await _read_request(reader)) is not None:
                await self._answer(*request, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError):
            pass  # the client went away, does not speak HTTP, or we are closing: nobody is left to tell
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if (method, path) != ("POST", "/v1/chat/completions"):
            await _send_json(writer, 404, _error("not_found", f"only POST /v1/chat/completions, not {method} {path}"))
            return
        request = json.loads(body)
        self.requests.append(request)
        messages = request["messages"]
        index = sum(message["role"] == "assistant" for message in messages)
        model = str(request.get("model"))
        turns = self.by_model.get(model, self.turns)
        if index >= len(turns):
            await self._fail(writer, index, f"the script has {len(turns)} turns only")
            return
        turn, received = turns[index], _received(messages)
        for problem in _unmet(turn, received):
            await self._fail(writer, index, problem)
            return
        if turn.fault is not None and self._faults_played[model, index] < turn.fault.times:
            self._faults_played[model, index] += 1
            await _play_fault(turn.fault, request, writer)
            return
        try:
            answer = _compose(index, turn, received, len(body))
        except Exception as error:  # a script's own function: anything may be wrong in it, and it must be told
            await self._fail(writer, index, f"the script's function failed: {type(error).__name__}: {error}")
            return
        if request.get("stream"):
            include_usage = bool((request.get("stream_options") or {}).get("include_usage"))
            await _send_events(writer, self._chunks(answer, include_usage=include_usage))
        else:
            await _send_json(writer, 200, _completion(answer))

    async def _fail(self, writer: asyncio.StreamWriter, index: int, problem: str) -> None:
        message = f"the script's turn {index}: {problem}"
        self.failures.append(message)
        await _send_json(writer, 400, _error("script_expectation_failed", message))

    async def _chunks(self, answer: _Answer, *, include_usage: bool) -> AsyncIterator[str]:
        yield _chunk({"role": "assistant", "content": ""})
        for piece in self._pieces(answer.text):
            yield _chunk({"content": piece})
        # Fragments of parallel calls take turns, which is harder on a client than one call after the other.
        pending: list[tuple[int, list[str]]] = []
        for position, call in enumerate(answer.calls):
            head = {"index": position, **call, "function": {"name": call["function"]["name"], "arguments": ""}}
            yield _chunk({"tool_calls": [head]})
            pending.append((position, self._pieces(call["function"]["arguments"])))
        while any(pieces for _, pieces in pending):
            for position, pieces in pending:
                if pieces:
                    yield _chunk({"tool_calls": [{"index": position, "function": {"arguments": pieces.pop(0)}}]})
        yield _chunk({}, finish_reason=answer.finish_reason)
        if include_usage:
            yield json.dumps({**_envelope("chat.completion.chunk"), "choices": [], "usage": answer.usage})
        yield "[DONE]"

    def _pieces(self, text: str) -> list[str]:
        return [text[at : at + self._fragment_chars] for at in range(0, len(text), self._fragment_chars)]


def _received(messages: Sequence[dict[str, Any]]) -> list[str]:
    texts: list[str] = []
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        if message["role"] != "system":
            texts.append(message.get("content") or "")
    return texts[::-1]


def _unmet(turn: Turn, received: Received) -> list[str]:
    problems = []
    for position, expectation in enumerate(turn.expect):
        if expectation is None:
            continue
        if position >= len(received):
            return [f"message {position} is missing: only {len(received)} came since the last assistant message"]
        checks = (
            expectation if isinstance(expectation, Sequence) and not isinstance(expectation, str) else [expectation]
        )
        for check in checks:
            problem = _problem(check, received[position])
            if problem:
                problems.append(f"message {position}: {problem}; it was: {_shortened(received[position])}")
    return problems


def _problem(check: Check, text: str) -> str:
    if isinstance(check, str):
        return "" if check in text else f"expected the text {check!r}"
    if isinstance(check, re.Pattern):
        return "" if check.search(text) else f"expected a match of {check.pattern!r}"
    try:
        verdict = check(text)
    except Exception as error:  # a check is free to fail in any way; all of them mean that it is not met
        return f"a check failed: {type(error).__name__}: {error}"
    if isinstance(verdict, str):
        return verdict
    return f"the check {getattr(check, '__name__', 'given')} is not met" if verdict is False else ""


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 1200 else f"{text[:600]!r} ... {text[-600:]!r}"


def _compose(index: int, turn: Turn, received: Received, request_bytes: int) -> _Answer:
    text = turn.say(received) if callable(turn.say) else turn.say
    asked = turn.calls(received) if callable(turn.calls) else turn.calls
    calls = tuple(
        {
            "id": f"call_{index}_{position}" if call.id is None else call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
            },
        }
        for position, call in enumerate(asked)
    )
    # Four characters a token is the usual rule of thumb; a script counts as that.
    prompt, written = request_bytes // 4, (len(text) + sum(len(str(call)) for call in calls)) // 4
    return _Answer(
        text=text,
        calls=calls,
        finish_reason=turn.finish_reason or ("tool_calls" if calls else "stop"),
        usage={"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    )


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": "scripted"}


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return json.dumps({**_envelope("chat.completion.chunk"), "choices": [choice]})


def _completion(answer: _Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = list(answer.calls)
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": answer.usage}


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None, "param": None}}


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes] | None:
    """Return method, path and body, or None when the client has closed."""
    start = await reader.readline()
    if not start:
        return None
    method, path, _ = start.decode("latin-1").split(" ", 2)
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
    return method, path, await reader.readexactly(length)


async def _send_json(writer: asyncio.StreamWriter, status: int, payload: dict[str, Any]) -> None:
    await _send(writer, status, json.dumps(payload), {})


async def _send(writer: asyncio.StreamWriter, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = text.encode()
    sent = {"content-type": "application/json", **{name.lower(): value for name, value in headers.items()}}
    sent["content-length"] = str(len(body))
    lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()


async def _send_events(writer: asyncio.StreamWriter, events: AsyncIterator[str]) -> None:
    writer.write(_EVENT_STREAM_HEAD)
    async for event in events:
        _write_event(writer, event)
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


_EVENT_STREAM_HEAD = b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _write_event(writer: asyncio.StreamWriter, event: str) -> None:
    data = f"data: {event}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _play_fault(fault: Fault, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    if fault.kind == "status":
        body = _error("scripted_fault", f"a scripted HTTP {fault.status}") if fault.body is None else fault.body
        text = body if isinstance(body, str) else json.dumps(body)
        await _send(writer, fault.status, text, fault.headers)
        return
    if not request.get("stream"):
        if fault.kind == "drop":
            raise ConnectionError("scripted")
        if fault.kind == "nonsense":
            writer.write(b"HTTP/1.1 200 -\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{nope")
            await writer.drain()
        else:
            await _send_json(writer, 200, {**_envelope("chat.completion"), "choices": []})
        return
    writer.write(_EVENT_STREAM_HEAD)
    if fault.kind == "drop":
        _write_event(writer, _chunk({"role": "assistant", "content": "I was about to"}))
        await writer.drain()
        raise ConnectionError("scripted")
    if fault.kind == "nonsense":
        _write_event(writer, "{nope")
    else:
        _write_event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
