"""An endpoint whose abilities can be taken away one by one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Abilities:
    """What the endpoint can do; the usual one can do everything."""

    streams: bool = True
    streams_tools: bool = True
    empty_streams: bool = False  # in place of a call
    tools: bool = True
    calls_unasked: bool = True
    parallel: bool = True
    counts_in_stream: bool = True
    null_content: bool = True
    bound_name: str = "max_tokens"
    formats: tuple[str, ...] = ("json_schema", "json_object")
    listed: dict[str, Any] | None = field(default_factory=lambda: {"id": "m", "context_length": 32_000})
    status: int = 200
    reasoning: str = ""


class CapableEndpoint:
    """Serves chat completions and the list of models; `requests` are the bodies that it got."""

    def __init__(self, can: Abilities) -> None:
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""
        self._can = can

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")), 0
            )
            body = json.loads(await reader.readexactly(length)) if length else {}
            status, answer, stream = self._answer(head.split(" ")[1], body)
            kind = "text/event-stream" if stream else "application/json"
            writer.write(f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{answer}".encode())
            await writer.drain()
        writer.close()

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, str, bool]:
        if path.endswith("/models"):
            return 200, json.dumps({"data": [self._can.listed] if self._can.listed else []}), False
        self.requests.append(body)
        if problem := self._problem(body):
            return 400, json.dumps({"error": {"message": problem, "type": "invalid_request_error"}}), False
        if self._can.status != 200:
            return self._can.status, json.dumps({"error": {"message": "go away"}}), False
        message, reason = self._message(body)
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return 200, json.dumps({"choices": [choice], "usage": usage}), False
        if self._can.empty_streams and body.get("tools"):
            return 200, "", True
        for position, call in enumerate(message.get("tool_calls", ())):
            call["index"] = position
        chunks: list[Any] = [{"choices": [{"index": 0, "delta": message, "finish_reason": reason}]}]
        if self._can.counts_in_stream:
            chunks.append({"choices": [], "usage": usage})
        return 200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n", True

    def _problem(self, body: dict[str, Any]) -> str:
        can, tools, stream = self._can, bool(body.get("tools")), bool(body.get("stream"))
        other = {"max_tokens": "max_completion_tokens"}.get(can.bound_name, "max_tokens")
        if other in body:
            return f"Unsupported parameter: '{other}' is not supported with this model. Use '{can.bound_name}' instead."
        if stream and (not can.streams or (tools and not can.streams_tools)):
            return "streaming is not supported here"
        if tools and not can.tools:
            return "this model does not support tools"
        if not can.null_content and any(message["content"] is None for message in body["messages"]):
            return "messages: content must be a string"
        kind = body.get("response_format", {}).get("type")
        return "" if kind is None or kind in can.formats else f"response_format {kind} is not supported"

    def _message(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        asked = body["messages"][-1]
        if body.get("response_format"):
            return {"role": "assistant", "content": '{"ok": true}'}, "stop"
        forced = body.get("tool_choice") == "required"
        if body.get("tools") and asked["role"] == "user" and (forced or self._can.calls_unasked):
            count = 2 if "twice" in asked["content"] and self._can.parallel else 1
            calls = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": "report_number", "arguments": json.dumps({"number": number})},
                }
                for number in range(count)
            ]
            said = {"reasoning_content": self._can.reasoning} if self._can.reasoning else {}
            return {"role": "assistant", "content": None, "tool_calls": calls, **said}, "tool_calls"
        return {"role": "assistant", "content": "ok"}, "stop"


@contextlib.asynccontextmanager
async def capable(**abilities: Any) -> AsyncIterator[CapableEndpoint]:
    """Serve on a free port."""
    endpoint = CapableEndpoint(Abilities(**abilities))
    async with await asyncio.start_server(endpoint.serve, "127.0.0.1", 0) as server:
        endpoint.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield endpoint
