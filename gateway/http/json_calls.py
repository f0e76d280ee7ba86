"""The gRPC services as JSON over HTTP, by the rules in their protos, with server-sent events for streams.

A unary RPC answers with a JSON object. One whose answers are a stream sends each as an event, then `event: end`, or
`event: error` with a problem document. One whose requests are a stream takes them as lines of JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from grpc.aio import EOF  # type: ignore[attr-defined]  # grpc-stubs do not know it
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from airlock.wire import error_of
from gateway.errors import AirlockError, InvalidArgument, TooLarge
from gateway.http.calls import BODY_LIMIT_BYTES, Calls, body_of, metadata_of, origin_of, pieces_of
from gateway.http.http_rules import HttpRule, Router, rules_of
from gateway.http.json_messages import from_json, parse, set_field, to_json
from gateway.http.problems import fields_of, refusal
from gateway.serving.in_process import Call

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_ALIVE_EVERY_S = 15.0
# More is coded in a thread: it would delay the other calls of this process.
_CODED_AT_ONCE_BYTES = 128 * 1024
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
        return await self._called(request, rule, variables)

    async def _called(self, request: Request, rule: HttpRule, variables: dict[str, str]) -> Response:
        read = asyncio.Event()
        requests = (
            _lines(request, rule, variables) if rule.rpc.client_streaming else _one(request, rule, variables, read)
        )
        call = self._calls.services.call(
            rule.path, origin_of(request), metadata_of(request), requests, _timeout_s(request)
        )
        if rule.rpc.server_streaming:
            return await _events(rule, call)
        watching = asyncio.create_task(_cancel_if_gone(request, read, call))
        try:
            answer = rule.answer_type.FromString(await call)
        finally:
            watching.cancel()
        return JSONResponse(await _encoded(answer))


async def _one(
    request: Request, rule: HttpRule, variables: dict[str, str], read: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the one request of an RPC, once the service asks for it: by then it knows the caller."""
    tree: dict[str, Any] = {}
    raw = await body_of(request)
    if raw and not rule.body:
        raise InvalidArgument(f"{rule.method} {rule.template} takes no body: give its fields in the query string")
    read.set()
    body = parse(raw) if len(raw) <= _CODED_AT_ONCE_BYTES else await asyncio.to_thread(parse, raw)
    if rule.body == "*":
        if not isinstance(body, dict):
            raise InvalidArgument("the body is no JSON object")
        tree = dict(body)
    elif rule.body:
        tree[rule.body] = body
    _take_query(request, rule, tree)
    yield _message(rule, tree, variables)


async def _lines(request: Request, rule: HttpRule, variables: dict[str, str]) -> AsyncIterator[bytes]:
    """Yield the requests of a stream, one for each line; the fields in the path are those of the first."""
    line = bytearray()
    first = True
    async for piece in pieces_of(request):
        *whole, rest = (line + piece).split(b"\n")
        for one in whole:
            if one.strip():
                yield _message(rule, parse(bytes(one)), variables if first else {})
                first = False
        line = bytearray(rest)
        if len(line) > BODY_LIMIT_BYTES:
            raise TooLarge(f"a line of the body has more than {BODY_LIMIT_BYTES:,} bytes")
    if line.strip():
        yield _message(rule, parse(bytes(line)), variables if first else {})


def _take_query(request: Request, rule: HttpRule, tree: dict[str, Any]) -> None:
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        given.setdefault(name, []).append(value)
    resumed = _RESUMED.get(rule.rpc.name)
    last = request.headers.get("last-event-id", "")
    if resumed is not None and last.isdecimal():
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


async def _encoded(answer: Any) -> dict[str, Any]:
    """Return an answer as JSON, a large one from a thread."""
    if answer.ByteSize() <= _CODED_AT_ONCE_BYTES:
        return to_json(answer)
    return await asyncio.to_thread(to_json, answer)


async def _cancel_if_gone(request: Request, read: asyncio.Event, call: Call) -> None:
    """End a call whose client closes the connection."""
    await read.wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass
    call.cancel()


async def _events(rule: HttpRule, call: Call) -> Response:
    """Return the answers of a stream as server-sent events. An error before the first one is the answer itself."""
    first = asyncio.ensure_future(call.read())
    await asyncio.wait([first], timeout=_ALIVE_EVERY_S)
    if first.done() and (error := first.exception()) is not None:
        raise error
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_written(rule, call, first), media_type="text/event-stream", headers=headers)


async def _written(rule: HttpRule, call: Call, reading: asyncio.Future[Any]) -> AsyncIterator[str]:
    try:
        while True:
            await asyncio.wait([reading], timeout=_ALIVE_EVERY_S)
            if not reading.done():
                yield ": still here\n\n"  # some proxies close a connection that is silent for longer
                continue
            answer = reading.result()
            if answer is EOF:
                yield "event: end\ndata: {}\n\n"
                return
            message = rule.answer_type.FromString(answer)
            identified = _id_of(rule, message)
            yield f"{identified}data: {json.dumps(await _encoded(message))}\n\n"
            reading = asyncio.ensure_future(call.read())
    except (grpc.aio.AioRpcError, AirlockError) as error:
        known = error_of(error) if isinstance(error, grpc.aio.AioRpcError) else error
        yield f"event: error\ndata: {json.dumps(fields_of(known))}\n\n"
    finally:
        reading.cancel()
        call.cancel()


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
