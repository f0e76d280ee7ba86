"""What is refused before the protocol's methods: a slow body, and one request too many of a tenant."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.errors import Overloaded
from gateway.http import calls as http_calls
from gateway.http.app import Receive
from gateway.http.calls import Calls
from gateway.identity.principal import Principal
from gateway.mcp.authorization import Authorization
from gateway.mcp.face import McpFace
from gateway.policy import Policy, PolicyDocument
from gateway.serving.edge import ADMISSION
from gateway.serving.in_process import InProcessServices
from gateway.support.heavy_work import HeavyWork, Work
from gateway.tenancy.tenants import Tenant

TENANT = Tenant("acme", Policy(PolicyDocument(version=1)), ModelSettings(), {})
SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/mcp",
    "scheme": "http",
    "headers": [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer alk_x")],
    "client": ("127.0.0.1", 1),
    "query_string": b"",
    "state": {},
}


async def _answered(receive: Receive, work: HeavyWork | None = None, revision: str = "") -> tuple[int, dict[str, Any]]:
    """Return the status and the error of the answer to a request with this body."""

    async def anyone(_credentials: object) -> Principal:
        return Principal(TENANT, Caller("key_1"))

    face = McpFace(Calls(InProcessServices([]), work or HeavyWork()), Authorization(anyone))
    endpoint = next(route for route in face.routes() if getattr(route, "path", "") == "/mcp")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app: Any = endpoint.app  # type: ignore[attr-defined]  # of a starlette Route
    headers = [*SCOPE["headers"], (b"mcp-protocol-version", revision.encode())] if revision else SCOPE["headers"]
    await app({**SCOPE, "headers": headers}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


async def test_a_body_that_stalls_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "BODY_TIMEOUT_S", 0.05)

    async def receive() -> Any:
        await asyncio.sleep(60)

    status, error = await _answered(receive)
    assert (status, error["data"]["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert error["message"] == "the body of the request did not arrive in time"


async def test_a_tenant_with_too_many_requests_learns_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_tenant: str) -> Any:
        raise Overloaded("256 streams of this tenant are open, the limit", 1.0)

    monkeypatch.setattr(ADMISSION, "stream", full)

    status, error = await _answered(_receives(b"{}"))
    assert (status, error["data"]["retry_after_s"]) == (429, 1.0)


def _receives(body: bytes) -> Receive:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


@pytest.mark.parametrize("revision", ["", "2026-07-28"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(revision: str, encoding: str) -> None:
    # The character has the byte of a quotation mark in UTF-16.
    message = {"method": "tools/call", "params": {"arguments": {"\u2201": [[] for _ in range(20_000)]}}}
    body = json.dumps(message, ensure_ascii=False).encode(encoding)
    status, error = await _answered(_receives(body), revision=revision)
    assert (status, error["data"]["reason"]) == (413, "TOO_LARGE")
    assert "more than 21,000 JSON values" in error["message"]


async def test_a_large_body_is_parsed_in_a_turn_of_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(HeavyWork):
        turns: ClassVar[list[str]] = []

        def of(self, tenant: str) -> Work:
            self.turns.append(tenant)
            return super().of(tenant)

    def full(_tenant: str) -> Any:
        raise Overloaded("256 streams of this tenant are open, the limit", 1.0)

    monkeypatch.setattr(ADMISSION, "stream", full)
    for size in (100, 20_000):
        status, _ = await _answered(_receives(json.dumps({"method": "x" * size}).encode()), Counted())
        assert status == 429, "it was parsed"
    assert Counted.turns == ["acme"]


def test_the_bodies_of_a_tenants_requests_in_progress_have_a_limit_together() -> None:
    async def nobody(_credentials: object) -> Principal:
        raise NotImplementedError

    face = McpFace(Calls(InProcessServices([]), HeavyWork()), Authorization(nobody))
    end = face._kept("a", 62 * 2**20)
    with pytest.raises(Overloaded, match="too large together"):
        face._kept("a", 4 * 2**20)
    face._kept("b", 4 * 2**20)()
    end()
    face._kept("a", 4 * 2**20)()


def test_a_gateway_imports_mcp_with_the_first_request_and_without_http_nothing_of_it() -> None:
    look = "import sys; import gateway.server; first = 'gateway.mcp' in sys.modules; import gateway.mcp.face; "
    said = "print(first, 'mcp' in sys.modules or 'mcp.server' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look + said], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False False\n"
