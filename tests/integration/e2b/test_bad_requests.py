"""Requests that are wrong are answered by one clear error, in E2B's form."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2 as httpx
import pytest
from e2b import Sandbox

from tests.integration.http.conftest import Listening


@pytest.mark.parametrize(
    "method, path, content, status, said",
    [
        ("POST", "/sandboxes", "{", 400, "body: Invalid JSON"),
        ("POST", "/sandboxes", "[]", 400, "body: Input should be an object"),
        ("POST", "/sandboxes", '{"templateID": "base", "timeout": 0}', 400, "timeout: "),
        ("POST", "/sandboxes", '{"templateID": "base", "surprise": 1}', 501, "surprise: unknown here"),
        ("POST", "/sandboxes", '{"templateID": "' + "x" * 40_000 + '"}', 413, "more than 32,768 bytes"),
        ("GET", "/sandboxes?limit=1000", "", 400, "limit: "),
        ("GET", "/v2/sandboxes?nextToken=x", "", 400, "page_token"),
        ("GET", "/v2/sandboxes?state=dead", "", 400, "state: 'dead'"),
        ("GET", "/sandboxes/none", "", 404, "sandbox 'none' not found"),
        ("DELETE", "/sandboxes/none", "", 404, "sandbox 'none' not found"),
        ("POST", "/sandboxes/none/pause", "{}", 404, "sandbox 'none' not found"),
        ("GET", "/teams", "", 501, "has no counterpart in Airlock"),
    ],
)
def test_a_request_to_the_rest_face(
    gateway: Listening, method: str, path: str, content: str, status: int, said: str
) -> None:
    url, headers = f"{gateway.url}/e2b{path}", {"x-api-key": gateway.key}
    answer = httpx.request(method, url, headers=headers, content=content)
    assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert said in answer.json()["message"]


@pytest.mark.parametrize("key", ["", "wrong", "alk_wrong", "x" * 5000])
def test_a_key_that_is_none(gateway: Listening, key: str) -> None:
    answer = httpx.get(f"{gateway.url}/e2b/sandboxes", headers={"x-api-key": key})
    assert (answer.status_code, answer.json()["code"]) == (401, 401)


@pytest.mark.parametrize("has, lacks", [("run", "tool"), ("tool", "run")])
def test_a_key_without_a_scope_changes_nothing(gateway: Listening, sandbox: Sandbox, has: str, lacks: str) -> None:
    url, headers = f"{gateway.url}/e2b/sandboxes", {"x-api-key": gateway.home.make_key("default", has)}
    one = f"{url}/{sandbox.sandbox_id}"
    for method, path, body in (
        ("GET", url, None),
        ("DELETE", one, None),
        ("POST", f"{one}/timeout", {"timeout": 0}),
        ("PUT", f"{one}/network", {}),
    ):
        answer = httpx.request(method, path, headers=headers, json=body)
        assert (answer.status_code, answer.json()["message"]) == (403, f"the key lacks the scope {lacks}")
    assert sandbox.is_running()


@pytest.mark.parametrize(
    "method, path, content, headers, status, said",
    [
        ("POST", "/process.Process/List", "{", {}, 400, "the message cannot be read"),
        ("POST", "/process.Process/List", "x" * 5_000_000, {}, 429, "resource_exhausted"),
        ("POST", "/process.Process/Nothing", "{}", {}, 501, "has no counterpart"),
        ("POST", "/init", "{}", {}, 501, "has no counterpart"),
        ("GET", "/files", "", {}, 400, "path: "),
        ("GET", "/files?path=%00", "", {}, 400, "NUL"),
        ("POST", "/files", "x", {"content-type": "text/plain"}, 400, "multipart/form-data"),
        ("POST", "/files", "x", {"content-type": "multipart/form-data; boundary=b"}, 400, "not valid multipart"),
        ("POST", "/files?path=x", "x", {"content-encoding": "gzip"}, 400, "not valid gzip"),
        ("POST", "/files?path=x", "x", {"content-encoding": "br"}, 400, "Content-Encoding"),
        ("POST", "/files?path=x", "x", {"x-metadata-a": "b"}, 501, "X-Metadata"),
        ("GET", "/health", "", {"e2b-sandbox-id": "none"}, 502, "was not found"),
        ("GET", "/health", "", {"e2b-sandbox-port": "8080"}, 501, "port 8080"),
    ],
)
def test_a_request_to_a_sandbox(
    gateway: Listening,
    sandbox: Sandbox,
    *,
    method: str,
    path: str,
    content: str,
    headers: Any,
    status: int,
    said: str,
) -> None:
    kind = "application/octet-stream" if path.startswith("/files") else "application/json"
    sent = {"content-type": kind, "e2b-sandbox-id": sandbox.sandbox_id, "x-access-token": sandbox._envd_access_token}
    answer = httpx.request(method, f"{gateway.url}/e2b{path}", headers={**sent, **headers}, content=content)
    assert answer.status_code == status
    assert said in answer.text
    assert set(answer.json()) == {"code", "message"}


async def test_requests_that_arrive_slowly_are_few(gateway: Listening, sandbox: Sandbox) -> None:
    head = (
        f"POST /e2b/process.Process/List HTTP/1.1\r\nHost: {gateway.http}\r\nContent-Type: application/json\r\n"
        f"E2b-Sandbox-Id: {sandbox.sandbox_id}\r\nX-Access-Token: {sandbox._envd_access_token}\r\n"
        "Content-Length: 2\r\n\r\n"
    )
    host, _, port = gateway.http.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(65)]
    try:
        for _, writer in opened:
            writer.write(head.encode())
        answers = {asyncio.create_task(reader.readline()) for reader, _ in opened}
        async with asyncio.timeout(15):
            done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().split()[1] for one in done] == [b"429"]
        for _, writer in opened:
            writer.write(b"{}")
        assert {line.split()[1] for line in await asyncio.gather(*waiting)} == {b"200"}
    finally:
        for _, writer in opened:
            writer.close()
