"""A fault of the gateway is an error in E2B's form, which says nothing of it; the log does."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from structlog.testing import capture_logs

from gateway.config.http_settings import HttpSettings
from gateway.e2b.envd_call import EnvdCall, streaming, unary
from gateway.e2b.envd_calls import EnvdCalls
from gateway.e2b.envd_face import EnvdRoute
from gateway.e2b.open_streams import OpenStreams
from gateway.e2b.rest import RestFace
from gateway.http.app import make_app

SAID = "internal error in the gateway; its log has the details"


async def _fail(*_given: object) -> Any:
    raise KeyError("secret")


BROKEN: Any = SimpleNamespace(key_holder=_fail, sandbox=_fail)


@pytest.mark.parametrize("method, headers", [("GET", {}), ("OPTIONS", {}), ("GET", {b"e2b-sandbox-id": b"i1"})])
async def test_a_fault_in_a_request(method: str, headers: dict[bytes, bytes]) -> None:
    routes = [EnvdRoute(EnvdCalls(BROKEN, BROKEN), "/e2b"), *RestFace(BROKEN, BROKEN).routes("/e2b")]
    app = make_app(routes, HttpSettings(), loopback=False)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/e2b/sandboxes", "query_string": b"", "state": {}}
    with capture_logs() as logged:
        await app({**scope, "headers": list(headers.items())}, _fail, send)
    assert (sent[0]["status"], json.loads(sent[1]["body"])) == (500, {"code": 500, "message": SAID})
    assert [one["event"] for one in logged] == ["fault"]


async def test_a_fault_in_a_call_to_a_sandbox() -> None:
    sandbox: Any = SimpleNamespace(id="i1")
    call = EnvdCall(sandbox, BROKEN, OpenStreams(), asyncio.Event())
    context: Any = SimpleNamespace(request_headers={})

    async def stream(*_given: object) -> Any:
        yield await _fail()

    with capture_logs(), pytest.raises(ConnectError, match=SAID) as failed:
        await unary(_fail, call)("", context)
    with capture_logs(), pytest.raises(ConnectError, match=SAID):
        await anext(aiter(streaming(stream, call)("", context)))
    assert failed.value.code == Code.INTERNAL
