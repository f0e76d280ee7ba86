"""The gRPC services as JSON over HTTP, by the rules in their protos, with server-sent events for streams.

A unary RPC answers with a JSON object. One whose answers are a stream sends each as an event, then `event: end`, or
`event: error` with a problem document. One whose requests are a stream takes them as lines of JSON.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import not_
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from grpc.aio import EOF  # type: ignore[attr-defined]  # grpc-stubs do not know it
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from airlock.wire import error_of
from gateway.errors import AirlockError, Cancelled, InvalidArgument, TooLarge
from gateway.http.app import Receive, Scope, Send
from gateway.http.calls import BODY_LIMIT_BYTES, Calls, body_of, metadata_of, origin_of, pieces_of
from gateway.http.http_rules import HttpRule, Router, rules_of
from gateway.http.json_messages import encoded, from_json, parse, set_field
from gateway.http.problems import fields_of, refusal
from gateway.serving.in_process import Call
from gateway.support.current_tenant import CURRENT_TENANT

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_ALIVE_EVERY_S = 15.0
_ID_DIGITS = 19
_TEXT = re.compile(rb"\S")
T = TypeVar("T")
_TIMEOUT_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(frozen=True)
class _Resumed:
    """How a stream is resumed after the event with the last id: the field of the id, and what is asked for."""

    id_of: str
    field: str
    offset: int


_RESUMED = {
    "WatchRun": _Resumed("event.sequence", "from_sequence", 1),
    "TailAudit": _Resumed("record.sequence", "from_sequence", 1),
    "WatchSandboxTransitions": _Resumed("transition.id", "after_id", 0),
}


class JsonCalls:
    """Serves the RPCs of the public services."""

    def __init__(self, calls: Calls, files: Sequence[FileDescriptor]) -> None:
        self._calls = calls
        self._router = Router(list(rules_of(files)))

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/v1/{rest:path}", self._serve, methods=_METHODS)]

    async def _serve(self, request: Request) -> Response:
        raw_path = request.scope["raw_path"].decode("ascii")
        found = self._router.find(request.method, raw_path)
        if found is None:
            if methods := self._router.methods(raw_path):
                answer = refusal(405, "Method not allowed", f"{raw_path} has {', '.join(methods)}")
                answer.headers["allow"] = ", ".join(methods)
                return answer
            return refusal(404, "Not found", f"{raw_path}: no such path; GET /openapi.json lists them")
        rule, variables = found
        asked = _Asked(request, rule, variables, self._calls)
        requests = asked.lines() if rule.rpc.client_streaming else asked.body()
        call = self._calls.services.call(
            rule.path, origin_of(request), metadata_of(request), requests, _timeout_s(request)
        )
        reader = _Reader(call, request.state.gone)
        try:
            # An error before the first answer is the answer itself.
            first = await reader.next(_ALIVE_EVERY_S if rule.rpc.server_streaming else None)
            if rule.rpc.server_streaming:
                return _Events(_written(asked, reader, first), reader)
            text, _ = await asked.shown(first, call.tenant)
            return _Answer(text, reader)
        except BaseException:
            reader.close()
            raise


class _Reader:
    """Reads the answers of a call until its client closes the connection."""

    def __init__(self, call: Call, gone: asyncio.Event) -> None:
        self.call = call
        self._gone = asyncio.ensure_future(gone.wait())
        self._reading: asyncio.Future[Any] | None = None

    async def next(self, wait_s: float | None = None) -> Any:
        """Return the next answer, EOF after the last one, None if `wait_s` passes; raises Cancelled, AioRpcError.

        The answer before counts as unread until then.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.call.read())
        reading = self._reading
        await asyncio.wait((reading, self._gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            if self._gone.done():
                raise Cancelled("the client closed the connection")
            return None
        self._reading = None
        return reading.result()

    def close(self) -> None:
        """End the call if it is in progress."""
        self._gone.cancel()
        if self._reading is not None:
            self._reading.cancel()
        self.call.cancel()


class _Answer(Response):
    """The one answer of a call, which ends when the answer was sent."""

    media_type = "application/json"

    def __init__(self, text: str, reader: _Reader) -> None:
        super().__init__(text)
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
            with contextlib.suppress(grpc.aio.AioRpcError, AirlockError):
                await self._reader.next()
        finally:
            self._reader.close()


class _Events(StreamingResponse):
    """The answers of a call as server-sent events. It reads nothing of the request, unlike its base class."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], reader: _Reader) -> None:
        super().__init__(events, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as its base class
        try:
            await self.stream_response(send)
        finally:
            self._reader.close()


@dataclass(frozen=True)
class _Asked:
    """One request over HTTP, and how messages of its RPC are coded."""

    request: Request
    rule: HttpRule
    variables: dict[str, str]
    calls: Calls

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the one request of an RPC, once the service asks for it: by then it knows the caller."""
        raw = await body_of(self.request)
        if raw and not self.rule.body:
            template = f"{self.rule.method} {self.rule.template}"
            raise InvalidArgument(f"{template} takes no body: give its fields in the query string")
        yield await self._coded(CURRENT_TENANT.get(), len(raw), self._of_body, raw)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the requests of a stream, one for each line; the fields in the path are those of the first."""
        variables = self.variables
        async for line in lines_of(self.request):
            yield await self._coded(CURRENT_TENANT.get(), len(line), self._of_line, line, variables)
            variables = {}

    async def shown(self, raw: bytes, tenant: str) -> tuple[str, str]:
        """Return an answer as JSON text, and the id that its event has."""
        return await self._coded(tenant, len(raw), self._shown, raw)

    async def _coded(self, tenant: str | None, size_bytes: int, function: Callable[..., T], *args: Any) -> T:
        """Return the result of a function that codes a message, a large one from a thread."""
        return await self.calls.work_for(tenant or "", size_bytes)(function, *args)

    def _of_body(self, raw: bytes) -> bytes:
        tree: dict[str, Any] = {}
        body = parse(raw)
        if self.rule.body == "*":
            if not isinstance(body, dict):
                raise InvalidArgument("the body is not a JSON object")
            tree = body
        elif self.rule.body:
            tree[self.rule.body] = body
        _take_query(self.request, self.rule, tree)
        return _message(self.rule, tree, self.variables)

    def _of_line(self, line: bytes, variables: dict[str, str]) -> bytes:
        return _message(self.rule, parse(line), variables)

    def _shown(self, raw: bytes) -> tuple[str, str]:
        message = self.rule.answer_type.FromString(raw)
        return encoded(message), _id_of(self.rule, message)


async def lines_of(request: Request) -> AsyncIterator[bytes]:
    """Yield the lines of a body that are not blank; raises TooLarge, and as pieces_of.

    As between two messages of gRPC, the event loop has a turn between two lines, and a client may be silent: how long
    is up to the service, and the stream counts in admission. A line that has begun must arrive, since it is in memory.
    """
    line = bytearray()
    async for piece in pieces_of(request, partial(not_, line)):
        begin = 0 if line else _text_in(piece, 0)
        while (end := piece.find(b"\n", begin)) >= 0:
            yield bytes(line + piece[begin:end])
            line.clear()
            begin = _text_in(piece, end + 1)
            await asyncio.sleep(0)
        line += piece[begin:]
        if len(line) > BODY_LIMIT_BYTES:
            raise TooLarge(f"a line of the body has more than {BODY_LIMIT_BYTES:,} bytes")
    if line:
        yield bytes(line)


def _text_in(piece: bytes, begin: int) -> int:
    """Return where the next line that is not blank begins, the length of the piece if none does."""
    found = _TEXT.search(piece, begin)
    return found.start() if found else len(piece)


def _take_query(request: Request, rule: HttpRule, tree: dict[str, Any]) -> None:
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        given.setdefault(name, []).append(value)
    resumed = _RESUMED.get(rule.rpc.name)
    last = request.headers.get("last-event-id", "")
    if resumed is not None and last.isdecimal() and len(last) <= _ID_DIGITS:
        given[resumed.field] = [str(int(last) + resumed.offset)]
    if given and rule.body == "*":
        raise InvalidArgument(f"{rule.method} {rule.template} takes no query string: give its fields in the body")
    for path, values in given.items():
        set_field(tree, rule.rpc.input_type, path, values)


def _message(rule: HttpRule, tree: Any, variables: dict[str, str]) -> bytes:
    """Return a request as bytes; what the path says overrides the body."""
    message = rule.request_type()
    if isinstance(tree, dict):
        for path, value in variables.items():
            set_field(tree, rule.rpc.input_type, path, [value])
    from_json(message, tree)
    raw: bytes = message.SerializeToString()
    return raw


async def _written(asked: _Asked, reader: _Reader, answer: Any) -> AsyncIterator[str]:
    """Yield the events of a stream, of which the first answer was read, None if it has not come yet."""
    try:
        while answer is not EOF:
            if answer is None:
                yield ": still here\n\n"  # some proxies close a connection that is silent for longer
            else:
                text, identified = await asked.shown(answer, reader.call.tenant)
                yield f"{identified}data: {text}\n\n"
            answer = await reader.next(_ALIVE_EVERY_S)
        yield "event: end\ndata: {}\n\n"
    except (grpc.aio.AioRpcError, AirlockError) as error:
        known = error_of(error) if isinstance(error, grpc.aio.AioRpcError) else error
        yield f"event: error\ndata: {json.dumps(fields_of(known))}\n\n"


def _id_of(rule: HttpRule, message: Any) -> str:
    resumed = _RESUMED.get(rule.rpc.name)
    if resumed is None:
        return ""
    for name in resumed.id_of.split("."):
        message = getattr(message, name)
    return f"id: {message}\n" if message else ""


def _timeout_s(request: Request) -> float | None:
    """Return the deadline that a request asks for, as gRPC writes it; raises InvalidArgument."""
    given = request.headers.get("grpc-timeout")
    if given is None:
        return None
    number, unit = given[:-1], given[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) <= 8 and unit in _TIMEOUT_UNITS_S):
        raise InvalidArgument("grpc-timeout: at most 8 digits and a unit of H, M, S, m, u or n, such as 30S")
    return int(number) * _TIMEOUT_UNITS_S[unit]
