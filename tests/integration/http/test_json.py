"""The services as JSON over HTTP: the same calls, the same errors, and events for streams."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest

from gateway.client import AuditQuery, Client
from gateway.composition.services import service_files
from gateway.http.calls import BODY_TIMEOUT_S
from gateway.http.http_rules import rules_of
from tests.integration.http.conftest import Listening


async def call(client: httpx.AsyncClient, command: str, thread: str = "json", **more: Any) -> httpx.Response:
    body = {"thread": thread, "arguments": {"command": command, "timeout_s": 20}, **more}
    return await client.post("/v1/tools/execute:call", json=body)


def events_of(answer: httpx.Response) -> list[dict[str, str]]:
    """Return the events of an answer, each with its fields."""
    blocks = [block for block in answer.text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


def test_every_rpc_has_a_path_of_its_own() -> None:
    rules = list(rules_of(service_files()))
    assert len({(rule.method, rule.template) for rule in rules}) == len(rules) >= 67


async def test_a_tool_call_takes_arguments_as_json_and_returns_text_as_text(gateway: Listening) -> None:
    async with gateway.client() as client:
        answer = await call(client, "echo hi; echo oops >&2; exit 3")
    assert answer.status_code == 200
    result = answer.json()["result"]
    assert (result["stdout_text"], result["stderr_text"], result["exit_code"]) == ("hi\n", "oops\n", 3)
    assert (result["verdict"], result["thread"]) == ("VERDICT_ALLOW", "json")


async def test_bytes_that_are_no_text_come_in_base64(gateway: Listening) -> None:
    async with gateway.client() as client:
        result = (await call(client, r"printf '\377\000'")).json()["result"]
    assert base64.b64decode(result["stdout"]) == b"\xff\x00"
    assert "stdout_text" not in result


async def test_it_is_the_same_thread_as_over_grpc(gateway: Listening) -> None:
    async with gateway.client() as client, Client(gateway.address, gateway.key) as airlock:
        await call(client, "echo over http > shared", "both")
        assert (await airlock.read_file("both", "/workspace/shared")) == b"over http\n"
        threads = (await client.get("/v1/threads", params={"name_prefix": "bo"})).json()["threads"]
    assert [thread["name"] for thread in threads] == ["both"]


async def test_a_name_in_the_path_may_have_any_character(gateway: Listening) -> None:
    async with gateway.client() as client:
        await call(client, "true", "a/b c:é")
        answer = await client.get("/v1/threads/a%2Fb%20c:%C3%A9")
    assert answer.json()["thread"]["name"] == "a/b c:é"


async def test_without_a_valid_key_nothing_is_read_and_the_answer_says_how_to_get_one(gateway: Listening) -> None:
    for key in ("", "alk_wrong"):
        async with gateway.client(key) as client:
            answer = await call(client, "true")
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["reason"] == "UNAUTHENTICATED"


async def test_another_tenants_thread_is_not_there(gateway: Listening) -> None:
    async with gateway.client() as client, gateway.client(gateway.other_key) as other:
        await call(client, "echo secret > s", "mine")
        for path in ("/v1/threads/mine", "/v1/threads/mine/messages"):
            assert (await other.get(path)).status_code == 404
        assert (await other.get("/v1/threads/mine/content", params={"path": "s"})).status_code == 404


async def test_a_scope_that_is_missing_is_named(gateway: Listening) -> None:
    key = gateway.home.make_key("default", "run")
    async with gateway.client(key) as client:
        answer = await call(client, "true")
    assert (answer.status_code, answer.json()["reason"]) == (403, "SCOPE_MISSING")
    assert answer.json()["details"] == {"scope": "tool"}


@pytest.mark.parametrize(
    "path, body, said",
    [
        ("/v1/tools/execute:call", b"{", "the body is not JSON"),
        ("/v1/tools/execute:call", b"[]", "not a JSON object"),
        (
            "/v1/tools/execute:call",
            b'{"threat": "t"}',
            "threat: there is no such field; CallToolRequest has thread, name, arguments, request_id",
        ),
        ("/v1/tools/execute:call", b'{"thread": 7}', "thread"),
        ("/v1/tools/execute:call", b'{"thread": "\\ud800"}', "thread"),
        ("/v1/tools/execute:call?thread=t", b"{}", "takes no query string"),
        ("/v1/runs", b'{"task": ""}', "task: between 1 and"),
        ("/v1/toolCalls/x:cancel", b"{}", "takes no body"),
        ("/v1/tools/execute:call", b'{"arguments": ' + b"[" * 90_000, "the body is not JSON"),
        ("/v1/tools/execute:call", '{"thread": "t"}'.encode("utf-16"), "the body is not JSON"),
        ("/v1/tools/execute:call", b'{"\\ud800": 1}', "no such field"),
        ("/v1/tools/execute:stream", b'"x"', "call: it is not a JSON object"),
        ("/v1/threads/t/programs:run", b'{"run": "x"}', "run: it is not a JSON object"),
        ("/v1/threads/t/programs:run", b'{"run": {"program": null}}', "program: it is not a JSON object"),
    ],
)
async def test_what_is_no_request_is_named_in_one_line(gateway: Listening, path: str, body: bytes, said: str) -> None:
    async with gateway.client() as client:
        answer = await client.post(path, content=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


async def test_violations_name_their_fields(gateway: Listening) -> None:
    async with gateway.client() as client:
        answer = await client.get("/v1/runs", params={"page_size": "1000"})
    assert answer.status_code == 400
    assert answer.json()["violations"] == [{"field": "page_size", "message": "between 0 and 200"}]
    async with gateway.client() as client:
        assert "no such field" in (await client.get("/v1/runs", params={"sort": "x"})).json()["detail"]
        assert "may be given only once" in (await client.get("/v1/runs?agent=a&agent=b")).json()["detail"]


async def test_a_body_that_is_too_large_is_refused(gateway: Listening) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/runs", content=b" " * 5_000_000)
    assert (answer.status_code, answer.json()["reason"]) == (413, "TOO_LARGE")


@pytest.mark.parametrize("part", ["[]", '"a"', '{"a":0}', "0"])
async def test_a_body_of_many_values_is_refused(gateway: Listening, part: str) -> None:
    async with gateway.client() as client:
        body = '{"program": {"argv": [' + ",".join([part] * 110_000) + "]}}"
        answer = await client.post("/v1/threads/json/processes", content=body)
    assert (answer.status_code, answer.json()["reason"]) == (413, "TOO_LARGE")


async def test_a_large_text_is_no_body_of_many_values(gateway: Listening) -> None:
    async with gateway.client() as client:
        assert (await call(client, "echo '" + '[{"a", "b"}],\\\n' * 10_000 + "'")).status_code == 200


async def test_a_path_says_which_methods_it_has(gateway: Listening) -> None:
    async with gateway.client() as client:
        answer = await client.delete("/v1/runs")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
        assert (await client.get("/v1/nothing")).status_code == 404
        for path in ("/v1/threads/%ff", "/v1/threads/%ff/content?path=a"):
            answer = await client.get(path)
            assert (answer.status_code, "%ff" in answer.json()["detail"]) == (400, True)


async def test_output_comes_as_events_and_the_result_last(gateway: Listening) -> None:
    async with gateway.client() as client:
        arguments = {"command": "echo one; echo two >&2", "timeout_s": 20}
        answer = await client.post("/v1/tools/execute:stream", json={"thread": "json", "arguments": arguments})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer)
    assert events[-1]["event"] == "end"
    *pieces, last = [json.loads(event["data"]) for event in events[:-1]]
    assert {(piece["output"]["stderr"], piece["output"]["data_text"]) for piece in pieces} == {
        (False, "one\n"),
        (True, "two\n"),
    }
    assert last["result"]["exit_code"] == 0


async def test_an_error_before_the_first_event_is_the_answer(gateway: Listening) -> None:
    async with gateway.client() as client:
        answer = await client.get("/v1/runs/none:watch")
    assert (answer.status_code, answer.json()["reason"]) == (404, "NOT_FOUND")


async def test_a_client_that_leaves_ends_its_call(gateway: Listening) -> None:
    async with gateway.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(
                "/v1/tools/execute:call",
                json={"thread": "gone", "arguments": {"command": "touch began; sleep 300; touch ended"}},
                timeout=3,
            )
    auditor = gateway.home.make_key("default", "audit")
    async with Client(gateway.address, gateway.key) as airlock, Client(gateway.address, auditor) as audited:
        async with asyncio.timeout(60):
            while "cancelled" not in {one.outcome for one in await audited.audit(AuditQuery(thread="gone"))}:
                await asyncio.sleep(0.05)
        assert [one.name async for one in airlock.list_files("gone")] == ["began"]


async def test_a_deadline_ends_a_call(gateway: Listening) -> None:
    async with gateway.client() as client:
        body = {"thread": "late", "arguments": {"command": "sleep 300"}}
        answer = await client.post("/v1/tools/execute:call", json=body, headers={"grpc-timeout": "300m"})
        assert (answer.status_code, answer.json()["reason"]) == (504, "DEADLINE_EXCEEDED")
        answer = await client.post("/v1/tools/execute:call", json=body, headers={"grpc-timeout": "soon"})
        assert answer.status_code == 400


@pytest.mark.full
async def test_a_client_may_be_silent_between_two_lines(gateway: Listening) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b'{"run": {"program": {"argv": ["cat"]}, "stdin": true}}\n'
        await asyncio.sleep(BODY_TIMEOUT_S + 2)
        yield b'{"stdin_text": "late"}\n{"end": true}\n'

    async with gateway.client() as client:
        answer = await client.post("/v1/threads/json/programs:run", content=lines())
    assert json.loads(events_of(answer)[0]["data"])["stdout_text"] == "late"


async def test_a_program_reads_lines_of_the_body(gateway: Listening) -> None:
    lines = [
        {"run": {"program": {"argv": ["tr", "a-z", "A-Z"]}, "stdin": True}},
        {"stdin_text": "hello "},
        {"stdin_text": "world"},
        {"end": True},
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    async with gateway.client() as client:
        answer = await client.post("/v1/threads/json/programs:run", content=body)
    pieces = [json.loads(event["data"]) for event in events_of(answer)[:-1]]
    assert "".join(piece.get("stdout_text", "") for piece in pieces) == "HELLO WORLD"
    assert pieces[-1]["end"]["exit_code"] == 0


async def test_a_program_that_reads_late_gets_its_whole_input(gateway: Listening) -> None:
    lines = [{"run": {"program": {"argv": ["sh", "-c", "echo first; sleep 1; wc -c"]}, "stdin": True}}]
    lines += [{"stdin_text": "x" * 50_000}] * 40 + [{"end": True}]  # type: ignore[list-item]
    async with gateway.client() as client:
        answer = await client.post("/v1/threads/json/programs:run", content="\n".join(map(json.dumps, lines)))
    pieces = [json.loads(event["data"]) for event in events_of(answer)[:-1]]
    assert "".join(piece.get("stdout_text", "") for piece in pieces) == "first\n2000000\n"


async def test_files_are_plain_bodies(gateway: Listening) -> None:
    content = bytes(range(256)) * 8192
    where = {"path": "/workspace/some file.bin"}
    async with gateway.client() as client:
        put = await client.put("/v1/threads/files/content", params=where, content=content)
        assert (put.status_code, put.json()) == (200, {"size_bytes": len(content)})
        got = await client.get("/v1/threads/files/content", params=where)
        assert got.content == content
        assert got.headers["x-content-type-options"] == "nosniff"
        part = await client.get("/v1/threads/files/content", params={**where, "offset": "3", "limit_bytes": "4"})
        assert part.content == content[3:7]
        listed = (await client.get("/v1/threads/files/files")).json()["files"]
        assert [one["name"] for one in listed] == ["some file.bin"]
        for params, status in (({}, 400), ({"path": "none"}, 404), ({**where, "offset": "x"}, 400)):
            assert (await client.get("/v1/threads/files/content", params=params)).status_code == status
        assert (await client.delete("/v1/threads/files/files", params=where)).status_code == 200


async def test_a_run_is_watched_as_events_and_resumed_by_its_last_one(gateway: Listening) -> None:
    async with gateway.client() as client:
        started = await client.post("/v1/runs", json={"task": "hello"})
        run = started.json()["run"]["id"]
        first = events_of(await client.get(f"/v1/runs/{run}:watch"))
        again = events_of(await client.get(f"/v1/runs/{run}:watch", headers={"last-event-id": first[0]["id"]}))
        got = (await client.get(f"/v1/runs/{run}")).json()["run"]
    assert [event["id"] for event in first[:-1]] == [str(n) for n in range(1, len(first))]
    assert again == first[1:]
    assert json.loads(first[-2]["data"])["event"]["type"] == "run_finished"
    assert isinstance(json.loads(first[0]["data"])["event"]["payload"], dict)
    assert got["status"] != "RUN_STATUS_RUNNING"


async def test_an_event_id_of_many_digits_is_no_fault(gateway: Listening) -> None:
    async with gateway.client() as client:
        answer = await client.get("/v1/runs/none:watch", headers={"last-event-id": "9" * 5000})
    assert answer.status_code == 404
