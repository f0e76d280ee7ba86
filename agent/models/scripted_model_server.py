"""A model server that follows a script (agent.models.scripted_model), for demos and tests with a real client.

It serves `POST /v1/chat/completions` and `POST /v1/responses` over HTTP/1.1 on loopback, with and without SSE, at its
`base_url`. An unmet expectation is answered with HTTP 400 of type script_expectation_failed.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Self, cast

from agent.cancellation import ended
from agent.models import scripted_responses
from agent.models.scripted_model import Answer, Call, ExpectationFailed, Fault, Received, Script, Turn, envelope

__all__ = ["Call", "Fault", "Received", "ScriptedModelServer", "Turn"]


_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"


class ScriptedModelServer(Script):
    """Serves a script; see Script."""

    def __init__(
        self, turns: Sequence[Turn], *, by_model: Mapping[str, Sequence[Turn]] | None = None, fragment_chars: int = 7
    ) -> None:
        super().__init__(turns, by_model)
        self.base_url = ""
        self._fragment_chars = fragment_chars
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
        await ended(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())  # a coroutine always runs in one
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while (request := await _read_request(reader)) is not None:
                await self._answer(*request, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError):
            pass  # the client disconnected or does not speak HTTP, or the server is closing
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if method != "POST" or path not in (_CHAT, _RESPONSES):
            only = f"only POST {_CHAT} and POST {_RESPONSES}, not {method} {path}"
            await _send(writer, 404, _error("not_found", only), {})
            return
        request = json.loads(body)
        responses = path == _RESPONSES
        try:
            answer = self.play(request, len(body))
        except ExpectationFailed as failed:
            await _send(writer, 400, _error("script_expectation_failed", str(failed)), {})
            return
        if isinstance(answer, Fault):
            await _play_fault(answer, writer, stream=bool(request.get("stream")), responses=responses)
        elif responses and request.get("stream"):
            await _send_events(writer, scripted_responses.events(answer, self._pieces))
        elif responses:
            await _send(writer, 200, json.dumps(scripted_responses.document(answer)), {})
        elif request.get("stream"):
            include_usage = bool((request.get("stream_options") or {}).get("include_usage"))
            await _send_events(writer, self._chunks(answer, include_usage=include_usage))
        else:
            await _send(writer, 200, json.dumps(answer.completion()), {})

    def _chunks(self, answer: Answer, *, include_usage: bool) -> Iterator[str]:
        yield _chunk({"role": "assistant", "content": ""})
        for piece in self._pieces(answer.reasoning):
            yield _chunk({"reasoning_content": piece})
        for piece in self._pieces(answer.text):
            yield _chunk({"content": piece})
        for position, call in enumerate(answer.calls):
            head = {"index": position, **call, "function": {**call["function"], "arguments": ""}}
            yield _chunk({"tool_calls": [head]})
        # Fragments of parallel calls are interleaved, which is harder on a client.
        for pieces in zip_longest(*(self._pieces(call["function"]["arguments"]) for call in answer.calls)):
            for position, piece in enumerate(pieces):
                if piece is not None:
                    yield _chunk({"tool_calls": [{"index": position, "function": {"arguments": piece}}]})
        yield _chunk({}, finish_reason=answer.finish_reason)
        if include_usage:
            yield json.dumps({**envelope("chat.completion.chunk"), "choices": [], "usage": answer.usage})
        yield "[DONE]"

    def _pieces(self, text: str) -> list[str]:
        return [text[at : at + self._fragment_chars] for at in range(0, len(text), self._fragment_chars)]


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return json.dumps({**envelope("chat.completion.chunk"), "choices": [choice]})


def _error(kind: str, message: str) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "code": None, "param": None}})


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


async def _send(writer: asyncio.StreamWriter, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = text.encode()
    sent = {"content-type": "application/json", **{name.lower(): value for name, value in headers.items()}}
    sent["content-length"] = str(len(body))
    lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()


async def _send_events(writer: asyncio.StreamWriter, events: Iterable[str]) -> None:
    writer.write(_EVENT_STREAM_HEAD)
    for event in events:
        _write_event(writer, event)
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


_EVENT_STREAM_HEAD = b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _write_event(writer: asyncio.StreamWriter, event: str) -> None:
    data = f"data: {event}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _play_fault(fault: Fault, writer: asyncio.StreamWriter, *, stream: bool, responses: bool) -> None:
    if fault.kind == "status":
        body = _error("scripted_fault", f"a scripted HTTP {fault.status}") if fault.body is None else fault.body
        text = body if isinstance(body, str) else json.dumps(body)
        await _send(writer, fault.status, text, fault.headers)
        return
    if fault.kind == "drop":
        if stream:
            writer.write(_EVENT_STREAM_HEAD)
            said = _chunk({"role": "assistant", "content": "I was about to"})
            for event in scripted_responses.begun() if responses else [said]:
                _write_event(writer, event)
            await writer.drain()
        raise ConnectionError("scripted")
    nothing = scripted_responses.nothing() if responses else {**envelope("chat.completion"), "choices": []}
    empty = "[DONE]" if stream else json.dumps(nothing)
    text = "{nope" if fault.kind == "nonsense" else empty
    await (_send_events(writer, [text]) if stream else _send(writer, 200, text, {}))
