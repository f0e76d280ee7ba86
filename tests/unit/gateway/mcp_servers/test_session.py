"""A session over fake streams: both kinds of revisions, and servers that say the wrong thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter, methods

from gateway.mcp_servers.session import ServerFailed, Session
from gateway.mcp_servers.traffic import SentTooMuch, Texts, Traffic
from gateway.support import printable_text
from gateway.support.heavy_work import Work, at_once

Send = Callable[[dict[str, Any]], Awaitable[None]]
Answers = Callable[[str, dict[str, Any], Any, Send], Awaitable[None]]
ECHO = {"name": "echo", "description": "Say it.", "inputSchema": {"type": "object"}}
OLDER = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
NEWER = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"}


def session(
    answers: Answers, *, modern_first: bool = False, seen: list[dict[str, Any]] | None = None, work: Work = at_once
) -> Session:
    """Return a session with a server that `answers` each request by its method, params and id."""

    @asynccontextmanager
    async def open_(traffic: Traffic) -> AsyncIterator[Any]:
        incoming, read = anyio.create_memory_object_stream[Any](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        raw, messages = anyio.create_memory_object_stream[Any](0)

        async def send(message: dict[str, Any]) -> None:
            await raw.send(SessionMessage(jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})))

        async def serve() -> None:
            async for one in outgoing:
                if seen is not None:
                    seen.append(one.message.model_dump(by_alias=True, exclude_none=True))
                if isinstance(one.message, JSONRPCRequest):
                    tasks.start_soon(answers, one.message.method, dict(one.message.params or {}), one.message.id, send)

        async with incoming, read, write, outgoing, raw, messages, anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            tasks.start_soon(traffic.pass_on, messages, incoming)
            try:
                yield read, write
            finally:
                tasks.cancel_scope.cancel()

    return Session(open_, modern_first=modern_first, work=work)


def older(call: Answers | None = None, tools: Any = (ECHO,)) -> Answers:
    async def answer(method: str, params: dict[str, Any], id_: Any, send: Send) -> None:
        if method == "initialize":
            await send({"id": id_, "result": OLDER})
        elif method == "tools/list":
            await send({"id": id_, "result": {"tools": list(tools)}})
        elif method == "tools/call" and call is not None:
            await call(method, params, id_, send)
        else:
            await send({"id": id_, "error": {"code": -32601, "message": "no such method"}})

    return answer


async def newer(method: str, params: dict[str, Any], id_: Any, send: Send) -> None:
    del params
    if method == "server/discover":
        await send({"id": id_, "result": {**NEWER, "resultType": "complete"}})
    elif method == "tools/list":
        listed = {"tools": [ECHO], "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
        await send({"id": id_, "result": listed})
    elif method == "tools/call":
        await send({"id": id_, "result": {"content": [{"type": "text", "text": "new"}], "resultType": "complete"}})
    else:
        await send({"id": id_, "error": {"code": -32601, "message": "no such method"}})


async def called(one: Session, timeout_s: float = 5) -> dict[str, Any]:
    async with asyncio.timeout(timeout_s):
        return await one.call("echo", {}, on_progress=lambda _: None)


@pytest.mark.parametrize("modern_first", [True, False])
@pytest.mark.parametrize("server, said", [(newer, "new"), ("older", "old")])
async def test_both_revisions_are_found_whichever_is_tried_first(server: Any, said: str, modern_first: bool) -> None:
    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"id": id_, "result": {"content": [{"type": "text", "text": "old"}]}})

    one = session(older(call) if server == "older" else server, modern_first=modern_first)
    await one.start(20)
    try:
        assert list(one.definitions.tools) == ["echo"]
        assert (await called(one))["content"][0]["text"] == said
    finally:
        await one.end()


async def test_a_cancelled_call_is_cancelled_at_the_server_and_the_session_goes_on() -> None:
    seen: list[dict[str, Any]] = []
    hanging = asyncio.Event()

    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        if hanging.is_set():
            await send({"id": id_, "result": {"content": []}})
        hanging.set()

    one = session(older(call), seen=seen)
    await one.start(20)
    try:
        task = asyncio.create_task(called(one, 60))
        await hanging.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [message["method"] for message in seen if "method" in message][-1] == "notifications/cancelled"
        assert (await called(one))["content"] == []
    finally:
        await one.end()


async def _nothing(*_: Any) -> None:
    """Never answer."""


async def _not_a_result(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
    await send({"id": id_, "result": {"content": "no list"}})


async def _wants_input(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
    await send({"id": id_, "error": {"code": -32042, "message": "visit \x1b[31mhttps://evil.example"}})


async def _flood(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
    while True:
        await send({"method": "notifications/progress", "params": {"progressToken": id_, "progress": 1}})


async def _asks(_: str, __: dict[str, Any], ___: Any, send: Send) -> None:
    for number in range(1000):
        await send({"id": f"q{number}", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})


@pytest.mark.parametrize(
    "answer, said",
    [
        (_not_a_result, "an answer that is not MCP"),
        (_wants_input, "visit \u241b[31mhttps://evil.example"),
        (_flood, "more than 10,000 messages"),
        (_asks, "more than 100 requests of its own"),
    ],
)
async def test_what_a_server_does_wrong_is_an_error_of_the_call(answer: Answers, said: str) -> None:
    one = session(older(answer))
    await one.start(20)
    try:
        with pytest.raises(ServerFailed) as failed:
            await called(one, 60)
        assert said in str(failed.value)
    finally:
        await one.end()


async def test_long_texts_that_cannot_be_shown_cost_no_more_than_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    said: list[str] = []
    long = "a" * 100_000 + "\u200b"
    monkeypatch.setattr(printable_text, "is_unprintable", lambda character: bool(seen.append(character)))

    async def call(_: str, params: dict[str, Any], id_: Any, send: Send) -> None:
        token = params["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": 1, "message": f"\u200b{long}"}
        await send({"method": "notifications/progress", "params": progress})
        await send({"id": id_, "error": {"code": -32000, "message": f"\u200b{long}"}})

    one = session(older(call))
    await one.start(20)
    try:
        with pytest.raises(ServerFailed) as failed:
            await one.call("echo", {}, on_progress=said.append)
        assert len(str(failed.value)) == 1_000
        assert [len(text) for text in said] == [1_002]
        assert len(seen) == 2_000
    finally:
        await one.end()


async def test_a_list_of_tools_without_end_is_refused() -> None:
    async def endless(method: str, params: dict[str, Any], id_: Any, send: Send) -> None:
        if method == "initialize":
            await send({"id": id_, "result": OLDER})
        else:
            await send({"id": id_, "result": {"tools": [], "nextCursor": f"{params.get('cursor', '')}x"}})

    with pytest.raises(ServerFailed, match="has no end"):
        await session(endless).start(60)


async def test_a_server_that_never_answers_does_not_hold_up_a_call_for_ever() -> None:
    with pytest.raises(ServerFailed, match="did not list its tools within 1 s"):
        await session(_nothing).start(1)


async def test_tools_that_changed_are_listed_again() -> None:
    tools = [ECHO]

    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        tools.append({**ECHO, "name": "more"})
        await send({"method": "notifications/tools/list_changed"})
        await send({"id": id_, "result": {"content": []}})

    async def answer(method: str, params: dict[str, Any], id_: Any, send: Send) -> None:
        await older(call, tools)(method, params, id_, send)

    one = session(answer)
    await one.start(20)
    try:
        await called(one)
        await one.list_tools()
        assert list(one.definitions.tools) == ["echo", "more"]
    finally:
        await one.end()


async def test_a_list_is_read_in_turns_of_its_tenant_and_an_equal_one_is_not_read_again() -> None:
    wide = {"type": "object", "properties": {f"p{number}": {} for number in range(400)}}
    tools = [{**ECHO, "name": f"t{number}", "inputSchema": wide} for number in range(10)]
    turns: list[Any] = []

    async def work(function: Any, /, *args: Any) -> Any:
        turns.append(function)
        return function(*args)

    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"method": "notifications/tools/list_changed"})
        await send({"id": id_, "result": {"content": []}})

    one = session(older(call, tools), work=work)
    await one.start(20)
    try:
        assert len(one.definitions.tools) == 10
        assert len(turns) > 5
        read = one.definitions
        await called(one)
        turns.clear()
        await one.list_tools()
        assert (len(turns), one.definitions) == (1, read)
        tools.pop()
        await called(one)
        await one.list_tools()
        assert len(one.definitions.tools) == 9
    finally:
        await one.end()


async def test_tools_that_could_not_be_listed_again_are_listed_by_the_next_call() -> None:
    answers = asyncio.Event()
    answers.set()

    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"method": "notifications/tools/list_changed"})
        await send({"id": id_, "result": {"content": []}})

    async def answer(method: str, params: dict[str, Any], id_: Any, send: Send) -> None:
        if method == "tools/list":
            await answers.wait()
        await older(call, tools)(method, params, id_, send)

    tools = [ECHO]
    one = session(answer)
    await one.start(20)
    try:
        await called(one)
        tools.append({**ECHO, "name": "more"})
        answers.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.list_tools(), 0.2)
        answers.set()
        await one.list_tools()
        assert list(one.definitions.tools) == ["echo", "more"]
    finally:
        await one.end()


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": "a"}] * 3_001},
        {"content": [{"type": "resource_link", "name": "a", "uri": "x:b", "icons": [{"src": "x:c"}] * 3_000}]},
        {"content": [{"type": "text", "text": "a", "annotations": {"audience": ["user"] * 3_001}}]},
        {"resultType": "input_required", "inputRequests": {str(number): {} for number in range(4_000)}},
        {"resultType": "input_required", "inputRequests": {"_meta": {"params": {"messages": [{}] * 3_001}}}},
    ],
)
async def test_an_answer_with_many_parts_that_are_checked_one_by_one_is_refused(result: dict[str, Any]) -> None:
    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"id": id_, "result": result})

    one = session(older(call))
    await one.start(20)
    try:
        with pytest.raises(ServerFailed, match="more than 3,000 parts"):
            await called(one, 60)
    finally:
        await one.end()


async def test_free_forms_of_an_answer_may_have_many_parts() -> None:
    many = {"type": "object", "properties": {f"p{number}": {"enum": [1, 2]} for number in range(1_000)}}
    answer = {"content": [{"type": "text", "text": "a", "_meta": many}] * 900, "structuredContent": many}

    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"id": id_, "result": answer})

    one = session(older(call, [{**ECHO, "inputSchema": many, "outputSchema": many}]))
    await one.start(20)
    try:
        assert list(one.definitions.tools) == ["echo"]
        assert len((await called(one, 60))["content"]) == 900
    finally:
        await one.end()


async def test_a_request_of_a_server_is_answered_without_a_look_at_what_it_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []
    asked: list[Any] = []
    parse = methods.parse_server_request
    monkeypatch.setattr(methods, "parse_server_request", lambda *given: asked.append(given) or parse(*given))
    sampling = {"maxTokens": 1, "messages": [{"role": "user", "content": [{}] * 1_000}]}

    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"id": "a", "method": "sampling/createMessage", "params": sampling})
        await send({"id": "b", "method": "roots/list"})
        await send({"id": "c", "method": "ping", "params": {"_meta": {"x": [1] * 1_000}}})
        await send({"id": id_, "result": {"content": []}})

    one = session(older(call), seen=seen)
    await one.start(20)
    try:
        await called(one)
        async with asyncio.timeout(20):
            while len(answers := {one["id"]: one for one in seen if "method" not in one}) < 3:
                await asyncio.sleep(0.01)
    finally:
        await one.end()
    assert [answers[id_]["error"]["code"] for id_ in "ab"] == [-32601, -32601]
    assert answers["c"]["result"] == {}
    assert len(str(asked)) < 1_000


async def test_an_answer_is_read_in_a_turn_of_the_tenant() -> None:
    async def call(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
        await send({"id": id_, "result": {"content": [], "structuredContent": {"rows": [[1]] * 5_000}}})

    turns: list[object] = []

    async def work(function: Callable[..., Any], /, *args: Any) -> Any:
        turns.append(function)
        return function(*args)

    one = session(older(call), work=work)
    await one.start(20)
    turns.clear()
    try:
        assert (await called(one))["structuredContent"] == {"rows": [[1]] * 5_000}
        assert len(turns) == 1
    finally:
        await one.end()


def test_what_would_take_long_to_parse_is_refused_before_and_a_long_text_is_not() -> None:
    traffic = Traffic()
    with traffic.request():
        traffic.received(b'"' + b'{\\"a\\": 1}' * 100_000 + b'"', Texts())
        texts = Texts()
        for piece in (b'"', b"1,2\\", b'",[', b"", *[b"[{1,2," * 10_000] * 20, b'"'):  # a table, as text
            traffic.received(piece, texts)
    for heavy in (b"[]," * 50_001, b'"a":"b",' * 33_334, b"1," * 100_001, b"{" * 100_001):
        with traffic.request(), pytest.raises(SentTooMuch):
            traffic.received(heavy, Texts())
        with traffic.request(), pytest.raises(SentTooMuch):
            texts = Texts()
            for start in range(0, len(heavy), 1_000):
                traffic.received(heavy[start : start + 1_000], texts)
    with traffic.request():
        traffic.received(b"1," * 100_000, Texts())


@pytest.mark.parametrize(
    "text, parts",
    [
        (b'{"a": ["b,c", "\\"[,", "\\\\", "\\u0022,"], "": {}}', 13),
        (b': "\n[[[', 4),  # no string goes on after the end of its line
        (b': "\r[[[', 4),
        (b'"\\\n[[[', 4),
        (b'"a\\\\" "b\\\\\\" " ,', 3),
    ],
)
def test_parts_are_the_same_wherever_pieces_begin(text: bytes, parts: int) -> None:
    assert Texts().parts(text) == parts
    for middle in range(len(text)):
        for end in range(middle, len(text)):
            texts = Texts()
            assert sum(map(texts.parts, (text[:middle], text[middle:end], text[end:]))) == parts


def test_pieces_are_counted_however_short_they_are() -> None:
    traffic, texts = Traffic(), Texts()
    for _ in range(2):  # anew for the next call
        with traffic.request():
            for _ in range(50_000):
                traffic.received(b"a", texts)
            with pytest.raises(SentTooMuch, match="more than 50,000 pieces"):
                traffic.received(b"a", texts)
