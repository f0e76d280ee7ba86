"""Answers requests to sandboxes: the Connect RPCs of envd, its files, and its health.

A request has the sandbox's access token; a file's may have a URL that was signed with it instead.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from connectrpc.code import Code
from connectrpc.codec import Codec
from connectrpc.compat import google_protobuf_codecs
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from airlock.v1.process_service_pb2 import Program
from gateway.e2b import code_interpreter, file_transfer, views
from gateway.e2b.access import Access, key_of_token
from gateway.e2b.envd import filesystem_pb2, process_pb2
from gateway.e2b.envd_call import EnvdCall, streaming, unary
from gateway.e2b.envd_face import CODE_PORT, ENVD_PORT, Receive, Scope, Send, ToSandbox
from gateway.e2b.errors import Gone, NoCounterpart, http_status, known, refused, said
from gateway.e2b.filesystem_rpc import FilesystemRpc
from gateway.e2b.lifecycle import Lifecycle
from gateway.e2b.process_rpc import ProcessRpc
from gateway.e2b.watching import WatchRpc
from gateway.errors import Overloaded, TooLarge
from gateway.http.app import App
from gateway.http.calls import BODY_TIMEOUT_S
from gateway.http.json_messages import refuse_many_parts
from gateway.serving.limits import Tally
from gateway.serving.map_sizes import map_sizes
from gateway.serving.request_checks import map_limit
from gateway.storage.e2b_store import PAUSED, E2bSandbox

MESSAGE_LIMIT_BYTES = 4 * 1024 * 1024
# Of environment variables, as many as a program may have.
_MAP_LIMIT = map_limit(Program, "env")
# A stream of input may pause for so long.
_INPUT_TIMEOUT_S = 300.0
# A message that arrives slowly is in memory meanwhile.
_ARRIVING_OF_A_TENANT = 64
_GRPC = re.compile(r"application/grpc(\+|$)")
_STREAM_INPUT = "/process.Process/StreamInput"


class _CheckedCodec:
    """A codec whose failures are the sender's. It refuses what would take too long to decode."""

    def __init__(self, codec: Codec[Any, Any]) -> None:
        self.name, self.encode = codec.name, codec.encode
        self._decode = codec.decode

    def decode(self, data: bytes | bytearray, message_class: type[Any]) -> Any:
        raw = bytes(data)
        try:
            if self.name() == "json":
                refuse_many_parts(raw)
            elif any(entries > _MAP_LIMIT for _, entries in map_sizes(message_class, raw)):
                raise TooLarge(f"a map of the message has more than {_MAP_LIMIT:,} entries")
            return self._decode(raw, message_class)
        except (ParseError, DecodeError, ValueError, RecursionError, TooLarge) as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the message cannot be read: {error}") from error


class _Filesystem(FilesystemRpc, WatchRpc):
    """All methods of filesystem.Filesystem."""


class _RpcApp(ConnectASGIApplication[EnvdCall]):
    """One call of a method of envd."""

    @property
    def path(self) -> str:
        return "/"


class EnvdCalls:
    """Answers requests to sandboxes."""

    def __init__(self, access: Access, lifecycle: Lifecycle) -> None:
        self._access = access
        self._lifecycle = lifecycle
        self._arriving = Tally()
        self._endpoints = {
            **_endpoints(process_pb2.DESCRIPTOR.services_by_name["Process"], ProcessRpc()),
            **_endpoints(filesystem_pb2.DESCRIPTOR.services_by_name["Filesystem"], _Filesystem()),
        }
        self._codecs = [_CheckedCodec(codec) for codec in google_protobuf_codecs()]
        self._plain: Mapping[tuple[str, str], Callable[..., Coroutine[Any, Any, Response]]] = {
            ("GET", "/files"): file_transfer.download,
            ("POST", "/files"): file_transfer.upload,
            ("GET", "/envs"): _envs,
            ("GET", "/metrics"): self._metrics,
        }

    async def serve(self, asked: ToSandbox) -> None:
        """Answer a request."""
        try:
            answer = await self._answer(asked)
        except Exception as error:
            refusal = known(error)
            # The code interpreter's own server answers with the text alone.
            plain = asked.port == CODE_PORT
            answer = PlainTextResponse(said(refusal), http_status(refusal)) if plain else refused(refusal)
        await answer(asked.request.scope, asked.request.receive, asked.send)

    async def _answer(self, asked: ToSandbox) -> App:
        """Return what answers a request."""
        request = asked.request
        if asked.port not in (ENVD_PORT, CODE_PORT):
            raise NoCounterpart(
                f"port {asked.port} of a sandbox is not served here: `airlock sandbox forward {asked.port} --thread "
                "THREAD` leads to it"
            )
        sandbox = await self._access.sandbox(asked.sandbox_id)
        if asked.port == CODE_PORT:
            call = await self._call(asked, sandbox)
            return await call.while_there(code_interpreter.answered(call, request, asked.path))
        if asked.path == "/health" and request.method == "GET":
            # E2B asks for no token here. Airlock says only to the holder of one whether a sandbox runs or is paused.
            if key_of_token(request, sandbox) is None:
                raise Gone.of(asked.sandbox_id)
            self._refuse_paused(sandbox)
            return Response(status_code=204)
        call = await self._call(asked, sandbox)
        if asked.path in self._endpoints:
            return self._rpc(asked, call)
        plain = self._plain.get((request.method, asked.path))
        if plain is None:
            raise NoCounterpart(f"{request.method} {asked.path[:128]}: this part of envd has no counterpart in Airlock")
        return await call.while_there(plain(call, request))

    async def _call(self, asked: ToSandbox, sandbox: E2bSandbox) -> EnvdCall:
        request = asked.request
        signed = asked.path == "/files" and "signature" in request.query_params
        if signed and "x-access-token" not in request.headers:
            operation = "read" if request.method == "GET" else "write"
            path = request.query_params.get("path", "")
            _, client = await self._access.signer(request, sandbox, path, operation)
        else:
            _, client = await self._access.token_holder(request, sandbox)
        if sandbox.state == PAUSED:
            if not sandbox.options.get("auto_resume"):
                self._refuse_paused(sandbox)
            timeout_us = int(sandbox.options.get("timeout_s", 0)) * 1_000_000
            await self._lifecycle.resume(client, sandbox, self._access.store.clock() + timeout_us)
        return EnvdCall(sandbox, client, self._lifecycle.streams, request.state.gone)

    @staticmethod
    def _refuse_paused(sandbox: E2bSandbox) -> None:
        if sandbox.state == PAUSED:
            raise Gone.of(sandbox.id, "it is paused; connect to it to resume it")

    def _rpc(self, asked: ToSandbox, call: EnvdCall) -> App:
        if _GRPC.match(asked.request.headers.get("content-type", "")):
            raise NoCounterpart("Content-Type: envd is served by the Connect protocol here, not by gRPC")
        tenant = call.sandbox.tenant
        if self._arriving[tenant] >= _ARRIVING_OF_A_TENANT:
            raise Overloaded("too many requests of this tenant are still arriving: try again", 1.0)
        pause_s = _INPUT_TIMEOUT_S if asked.path == _STREAM_INPUT else BODY_TIMEOUT_S
        # One for each request: nothing else passes what a method needs to know of its caller.
        app = _RpcApp(
            service=call,
            endpoints=lambda call: {asked.path: self._endpoints[asked.path](call)},
            read_max_bytes=MESSAGE_LIMIT_BYTES,
            codecs=self._codecs,
        )

        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            with contextlib.ExitStack() as arriving:
                self._arriving.add(tenant)
                arriving.callback(self._arriving.add, tenant, -1)
                at = {**scope, "path": asked.path, "root_path": ""}
                await app(at, _watched(receive, call, pause_s, arriving.close), send)

        return served

    async def _metrics(self, call: EnvdCall, _request: object) -> Response:
        now_us = self._access.store.clock()
        found = views.metric(await call.client.get_sandbox_stats(call.thread), now_us)
        names = {"cpuCount": "cpu_count", "cpuUsedPct": "cpu_used_pct", "memUsed": "mem_used", "memTotal": "mem_total"}
        names |= {"diskUsed": "disk_used", "diskTotal": "disk_total", "timestampUnix": "ts"}
        return JSONResponse({name: found[ours] for ours, name in names.items()})


async def _envs(call: EnvdCall, _request: object) -> Response:
    return JSONResponse(dict(call.env))


def _watched(receive: Receive, call: EnvdCall, pause_s: float, arrived: Callable[[], None]) -> Receive:
    """Return what receives a request in time; it says when the request is whole, and when its client leaves."""
    whole = False

    async def received() -> Any:
        nonlocal whole
        try:
            async with asyncio.timeout(None if whole else pause_s):
                message = await receive()
        except TimeoutError:
            message = {"type": "http.disconnect"}
        if message["type"] == "http.disconnect":
            call.over.set()
        whole = whole or not message.get("more_body", False)
        if whole:
            arrived()
        return message

    return received


def _endpoints(service: ServiceDescriptor, rpc: Any) -> dict[str, Callable[[EnvdCall], Any]]:
    """Return what makes the endpoints of a service for a call, by their paths.

    A method of `rpc` has the name of its RPC in lower case.
    """
    found: dict[str, Callable[[EnvdCall], Any]] = {}
    for method in service.methods:
        info = MethodInfo(
            name=method.name,
            service_name=service.full_name,
            input=message_factory.GetMessageClass(method.input_type),
            output=message_factory.GetMessageClass(method.output_type),
            idempotency_level=IdempotencyLevel.UNKNOWN,
        )
        name = "".join(f"_{char.lower()}" if char.isupper() else char for char in method.name).lstrip("_")
        of_kind: Any = Endpoint.client_stream if method.client_streaming else Endpoint.unary
        wrap: Any = unary
        if method.server_streaming:
            of_kind, wrap = Endpoint.server_stream, streaming
        found[f"/{service.full_name}/{method.name}"] = partial(_endpoint, of_kind, info, wrap, getattr(rpc, name))
    return found


def _endpoint(of_kind: Any, info: Any, wrap: Any, method: Any, call: EnvdCall) -> Any:
    return of_kind(method=info, function=wrap(method, call))
