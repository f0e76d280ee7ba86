"""Who may use the MCP server, sessions, and requests that are refused: one clear error each, as the protocol has it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.integration.mcp.conftest import LEGACY, MODERN, Post, Served

INITIALIZE = {
    "method": "initialize",
    "params": {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LIST = {"method": "tools/list", "params": {}}
_ENVELOPE = {"protocolVersion": "1999-01-01", "clientCapabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def _error(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_request_without_a_valid_credential_learns_where_tokens_come_from(gateway: Served, post: Post) -> None:
    anonymous = post(LIST, {"authorization": None})
    assert _error(anonymous, 401)["data"]["reason"] == "UNAUTHENTICATED"
    metadata = f"http://{gateway.http}/.well-known/oauth-protected-resource/mcp"
    assert anonymous.headers["www-authenticate"] == f'Bearer resource_metadata="{metadata}"'
    assert 'error="invalid_token"' in post(LIST, {"authorization": "Bearer alk_x"}).headers["www-authenticate"]
    found = httpx2.get(metadata).json()
    assert found["resource"] == gateway.url
    assert found["authorization_servers"] == [gateway.issuer.url]


def test_a_token_is_good_for_its_audience_alone(gateway: Served, post: Post) -> None:
    good = gateway.issuer.token("default", "tool")
    assert post(LIST, {"authorization": f"Bearer {good}"}).status_code == 200
    other = gateway.issuer.token("default", "tool", aud="https://elsewhere.example/mcp")
    assert "Audience" in _error(post(LIST, {"authorization": f"Bearer {other}"}), 401)["message"]


def test_a_credential_without_the_scope_or_a_tenant_is_refused(gateway: Served, post: Post) -> None:
    for key in (gateway.home.make_key("default", "approve"), gateway.home.make_key("")):
        refused = post(LIST, {"authorization": f"Bearer {key}"})
        assert _error(refused, 403)["data"]["reason"] == "SCOPE_MISSING"
        assert 'error="insufficient_scope", scope="tool"' in refused.headers["www-authenticate"]


def test_a_session_is_that_of_the_credential_which_opened_it(gateway: Served, post: Post) -> None:
    session = post(INITIALIZE, {"mcp-protocol-version": None}).headers["mcp-session-id"]
    assert post(LIST, {"mcp-session-id": session}).status_code == 200
    others = [gateway.other_key, gateway.home.make_key("default", "tool")]
    for key in others:
        refused = post(LIST, {"mcp-session-id": session, "authorization": f"Bearer {key}"})
        assert "no session with this id" in _error(refused, 404)["message"]
    for unknown in ("x", f"u{session[1:]}", f"{session}0"):
        _error(post(LIST, {"mcp-session-id": unknown}), 404)


def test_a_thread_of_another_tenant_is_another_thread(gateway: Served, post: Post) -> None:
    write = {"name": "write_file", "arguments": {"path": "mine.txt", "content": "mine"}}
    read = {"name": "read_file", "arguments": {"path": "mine.txt"}}
    path = "/mcp/threads/shared%2Fname"
    assert "wrote 4 bytes" in post({"method": "tools/call", "params": write}, path=path).text
    assert "mine" in post({"method": "tools/call", "params": read}, path="/mcp/threads/shared/name").text
    theirs = post({"method": "tools/call", "params": read}, {"authorization": f"Bearer {gateway.other_key}"}, path=path)
    assert "no such file" in theirs.text


@pytest.mark.parametrize(
    "path, said",
    [
        ("/mcp/threads/", "the path names no thread: /mcp/threads/THREAD, or /mcp for the thread default"),
        ("/mcp/threads/%ff", "the path has '%ff', which is not UTF-8 once it is decoded"),
        ("/mcp/threads/%00", "thread: 256 printable characters at most"),
    ],
)
def test_a_path_without_a_threads_name_is_refused(post: Post, path: str, said: str) -> None:
    listed = post({"method": "tools/call", "params": {"name": "ls", "arguments": {}}}, path=path)
    assert said in listed.text


def test_what_the_protocol_does_not_know_is_refused_with_its_own_errors(post: Post) -> None:
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in _ENVELOPE.items()}
    headers = {"mcp-protocol-version": "1999-01-01", "mcp-method": "tools/list"}
    wrong = _error(post({"method": "tools/list", "params": {"_meta": meta}}, headers), 400)
    assert (wrong["code"], wrong["data"]["supported"]) == (-32022, [MODERN])
    assert _error(post(b"{", {}), 400)["code"] == -32700
    assert _error(post(b"[]", {}), 400)["code"] == -32602
    assert post({"method": "tools/fly"}).json()["error"]["code"] == -32601
    nameless = post({"method": "tools/call", "params": {"arguments": {}}})
    assert '"code":-32602' in nameless.text
    assert _error(post(b"x" * (4 * 1024 * 1024 + 1)), 413)["data"]["reason"] == "TOO_LARGE"
    assert _error(post(b"[" * 200_000), 413)["data"]["reason"] == "TOO_LARGE"
    assert post(LIST, {"accept": "text/html"}).status_code == 406
    long_name = post({"method": "tools/call", "params": {"name": "ls"}}, path=f"/mcp/threads/{'t' * 300}")
    assert '"reason":"INVALID_ARGUMENT"' in long_name.text


def test_a_web_page_of_another_origin_and_another_host_are_refused(gateway: Served, post: Post) -> None:
    assert post(LIST, {"origin": "https://evil.example"}).status_code == 403
    assert post(LIST, {"host": "evil.example"}).status_code == 421
    assert post(LIST, {"origin": f"http://{gateway.http}"}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_there_is_neither_a_stream_without_a_request_nor_a_session_to_end(post: Post, method: str) -> None:
    refused = post({}, method=method)
    assert json.loads(refused.text)["error"]["message"] == "only POST is served here"
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
