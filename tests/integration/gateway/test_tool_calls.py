"""Tool calls through the whole gateway: client, policy, journal, sandbox, eviction and back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time

import grpc.aio
import pytest

from airlock.v1 import tool_service_pb2
from gateway.client import Client
from gateway.errors import DeadlineExceeded, InvalidArgument, TooLarge
from gateway.services import messages
from gateway.v1 import tool_service_pb2_grpc
from tests.gateway_process import airlock
from tests.integration.gateway.conftest import Pair

LEFT_OVER = "airlock-left-over"


async def test_execute_returns_raw_output_of_both_streams(client: Client) -> None:
    result = await client.call_tool("execute", {"command": "echo out; echo err >&2; exit 3"}, thread="t1")
    assert (result.verdict, result.outcome, result.exit_code, result.is_error) == ("allow", "exited", 3, True)
    assert (result.content, result.stdout, result.stderr) == ("out\nerr\n", "out\n", "err\n")
    assert result.thread == "t1"
    assert result.rule
    assert result.duration_ms > 0


async def test_bytes_that_are_not_utf8_survive(client: Client) -> None:
    result = await client.call_tool("execute", {"command": r"printf '\377\000\200'"}, thread="t1")
    assert result.content_bytes == b"\xff\x00\x80"


async def test_a_blocked_call_names_rule_and_reason_and_does_not_run(strict: Client) -> None:
    result = await strict.call_tool("execute", {"command": "ls; touch /workspace/ran"})
    assert (result.verdict, result.outcome, result.is_error) == ("deny", "blocked", True)
    assert result.reason
    assert result.reason in result.content
    listing = await strict.call_tool("ls", {"path": "/workspace"})
    assert "ran" not in [entry["name"] for entry in json.loads(listing.content)]


async def test_a_deny_rule_beats_an_allow_rule_for_tools_and_for_streams(strict: Client) -> None:
    from gateway.errors import PermissionDenied

    result = await strict.call_tool("write_file", {"path": "/workspace/secret/a", "content": "x"})
    assert (result.verdict, result.rule) == ("deny", "no-secrets")
    with pytest.raises(PermissionDenied, match="no-secrets"):
        await strict.write_file("default", "/workspace/secret/../secret/a", b"x")
    with pytest.raises(PermissionDenied):
        await strict.read_file("default", "secret/a")


async def test_a_large_result_stays_in_the_sandbox_and_can_be_searched(client: Client) -> None:
    command = "python3 -c \"for i in range(30000): print('line', i, 'needle' if i == 15000 else '')\""
    whole = "".join(f"line {i} {'needle' if i == 15000 else ''}\n" for i in range(30000)).encode()
    result = await client.call_tool("execute", {"command": command}, thread="evict")
    assert result.evicted is not None
    assert (result.evicted.size_bytes, result.evicted.lines) == (len(whole), 30000)
    assert result.evicted.sha256 == hashlib.sha256(whole).hexdigest()
    assert not result.evicted.incomplete
    assert result.content_bytes.startswith(whole[:2000])
    assert result.content_bytes.endswith(whole[-2000:])
    assert len(result.content) < 6000
    assert await client.read_file("evict", result.evicted.path) == whole
    found = await client.call_tool("grep", {"pattern": "needle", "path": result.evicted.path}, thread="evict")
    assert "15001:line 15000 needle" in found.content
    page = await client.call_tool(
        "read_file", {"path": result.evicted.path, "offset": 15000, "limit": 1}, thread="evict"
    )
    assert page.content == "line 15000 needle\n"


LOOK = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"
BACKGROUND = (
    f'python3 -c "import os,time,sys; os.fork() and sys.exit(); os.setsid(); os.fork() and os._exit(0); '
    f'time.sleep(60) # {LEFT_OVER}"'
)


async def test_a_timeout_kills_double_forked_children_and_what_ignores_term(client: Client) -> None:
    started = time.monotonic()
    command = f"echo before; {BACKGROUND} & trap '' TERM; sleep 60"
    result = await client.call_tool("execute", {"command": command, "timeout_s": 1}, thread="timeout")
    assert (result.outcome, result.is_error) == ("timed_out", True)
    assert result.stdout == "before\n"
    assert time.monotonic() - started < 40, "none of what it started ran to its end"
    listed = await client.call_tool("execute", {"command": LOOK}, thread="timeout")
    assert "sleep 60" not in listed.content
    assert LEFT_OVER not in listed.content


async def test_cancelling_the_client_reaches_the_process(client: Client) -> None:
    await client.call_tool("execute", {"command": "true"}, thread="cancel")
    call = asyncio.create_task(
        client.call_tool("execute", {"command": f"touch started; {BACKGROUND}; sleep 61"}, thread="cancel")
    )
    async with asyncio.timeout(20):
        while "started" not in (await client.call_tool("ls", {}, thread="cancel")).content:
            await asyncio.sleep(0.02)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    async with asyncio.timeout(40):  # less than they would sleep
        while True:
            listed = (await client.call_tool("execute", {"command": LOOK}, thread="cancel")).content
            if "sleep 61" not in listed and LEFT_OVER not in listed:
                break


async def test_output_streams_as_it_arrives(client: Client) -> None:
    pieces: list[tuple[str, bytes]] = []
    arrived = asyncio.Event()

    def take(stream: str, data: bytes) -> None:
        pieces.append((stream, data))
        arrived.set()

    command = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo second >&2"
    call = asyncio.create_task(client.call_tool("execute", {"command": command}, thread="stream", on_output=take))
    async with asyncio.timeout(20):
        await arrived.wait()
        assert not call.done()
        await client.call_tool("write_file", {"path": "go", "content": ""}, thread="stream")
        result = await call
    assert b"".join(data for stream, data in pieces if stream == "stdout") == b"first\n"
    assert b"".join(data for stream, data in pieces if stream == "stderr") == b"second\n"
    assert result.content == "first\nsecond\n"


async def test_calls_that_the_model_got_wrong_say_how_to_fix_them(client: Client) -> None:
    relative = await client.call_tool("write_file", {"path": "x", "content": "x", "z": 1})
    assert (relative.verdict, relative.is_error) == ("allow", True)
    assert "`z`" in relative.content
    unknown = await client.call_tool("bash", {"command": "ls"})
    assert unknown.is_error
    assert "execute" in unknown.content
    unfit = await client.call_tool("read_file", {"file": "/workspace/a"})
    assert unfit.is_error
    assert "path" in unfit.content
    outside = await client.call_tool("read_file", {"path": "/etc/shadow"})
    assert (outside.verdict, outside.is_error) == ("deny", True)
    with pytest.raises(InvalidArgument):
        await client.call_tool("", {})


async def test_a_file_that_is_not_utf8_is_reported_as_binary(client: Client) -> None:
    await client.write_file("binary", "/workspace/b.bin", b"\x00\xff\xfe binary")
    result = await client.call_tool("read_file", {"path": "/workspace/b.bin"}, thread="binary")
    assert "binary" in result.content.lower()


async def test_a_symbolic_link_does_not_lead_out_of_the_judged_paths(strict: Client, client: Client) -> None:
    from gateway.errors import InvalidPath

    await client.call_tool("execute", {"command": "ln -s /etc leak; ln -s /etc/passwd leak2"}, thread="links")
    for path in ("/workspace/leak/passwd", "/workspace/leak2"):
        result = await client.call_tool("read_file", {"path": path}, thread="links")
        assert result.is_error
        assert "root:" not in result.content
        with pytest.raises(InvalidPath):
            await client.read_file("links", path)


async def test_the_command_line_prints_exactly_the_agreed_fields(pair: Pair) -> None:
    env = {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}
    printed = airlock("tool", "call", "execute", '{"command": "echo hi"}', "--thread", "cli", "--json", env=env)
    result = json.loads(printed.stdout)
    expected = {
        "thread": "cli",
        "verdict": "allow",
        "outcome": "exited",
        "exit_code": 0,
        "content": "hi\n",
        "is_error": False,
        "evicted": None,
    }
    assert {name: result[name] for name in expected} == expected
    assert {"call_id", "rule", "reason", "duration_ms"} <= result.keys()
    tools = json.loads(airlock("tool", "list", "--json", env=env).stdout)
    assert {tool["name"] for tool in tools} == {
        "ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute", "execute_python",
    }  # fmt: skip


async def test_an_unknown_key_and_no_gateway_are_one_clear_error(pair: Pair) -> None:
    wrong = airlock("tool", "list", "--address", pair.address, "--key", "alk_wrong", check=False)
    assert wrong.returncode == 3
    assert "key is not valid" in wrong.stderr
    nobody = airlock("tool", "list", "--address", "127.0.0.1:1", "--key", "x", check=False)
    assert nobody.returncode == 3
    assert "airlock serve" in nobody.stderr


async def test_the_callers_own_time_limit_is_a_class_and_kills_the_process(client: Client) -> None:
    await client.call_tool("execute", {"command": "true"}, thread="deadline")
    with pytest.raises(DeadlineExceeded):
        await client.call_tool("execute", {"command": "sleep 63"}, thread="deadline", timeout_s=0.5)
    async with asyncio.timeout(1.5):
        while "sleep 63" in (await client.call_tool("execute", {"command": LOOK}, thread="deadline")).content:
            pass


async def test_a_request_that_is_too_large_is_reported_as_that(client: Client) -> None:
    with pytest.raises(TooLarge):
        await client.call_tool("write_file", {"path": "a", "content": "x" * 20_000_000})


async def test_the_schemas_are_json_schema(client: Client) -> None:
    for tool in await client.list_tools():
        for described in tool.parameters["properties"].values():
            assert not {"ge", "le", "gt", "lt"} & described.keys(), tool.name


@pytest.mark.parametrize(
    "arguments_json",
    ['{"a":' * 500 + "1" + "}" * 500, "[" * 100_000, "[]", "nonsense", '{"path": "/etc/\\ud800"}', '{"path": NaN}'],
)
async def test_hostile_json_is_a_result_with_a_verdict(pair: Pair, arguments_json: str) -> None:
    async with grpc.aio.insecure_channel(pair.address) as channel:
        stub = tool_service_pb2_grpc.ToolServiceStub(channel)
        request = tool_service_pb2.CallToolRequest(thread="json", name="read_file", arguments_json=arguments_json)
        answer = await stub.CallTool(request, metadata=(("authorization", f"Bearer {pair.key}"),))
        assert answer.result.verdict == tool_service_pb2.VERDICT_DENY
        assert answer.result.is_error


async def test_half_a_surrogate_pair_in_a_files_content_is_reported_to_the_model(client: Client) -> None:
    result = await client.call_tool("write_file", {"path": "a", "content": "\ud800"}, thread="json")
    assert result.is_error
    assert "surrogate" in result.content


async def test_two_threads_have_users_of_their_own(client: Client, strict: Client) -> None:
    first = await client.call_tool("execute", {"command": "id -u"}, thread="user-a")
    second = await client.call_tool("execute", {"command": "id -u"}, thread="user-b")
    assert first.content != second.content


async def test_a_transfer_whose_peer_stalls_lets_go_of_the_sandbox(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(messages, "STALL_LIMIT_S", 0.05)
    with pytest.raises(DeadlineExceeded, match="nothing moved"):
        await messages.in_time(asyncio.Event().wait())


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_deadline_ends_a_call_and_what_it_started_also_what_ignores_signals(
    pair: Pair, client: Client, streamed: bool
) -> None:
    thread = f"deadline-{streamed}"
    await client.call_tool("execute", {"command": "true"}, thread=thread)  # the sandbox is there
    command = "trap '' TERM INT HUP; n=0; while [ $n -lt 600 ]; do echo . >> ticks; sleep 0.05; n=$((n+1)); done"

    async def ticks() -> int:
        return len(await client.read_file(thread, "/workspace/ticks")) // 2

    with pytest.raises(DeadlineExceeded):
        await client.call_tool(
            "execute",
            {"command": command},
            thread=thread,
            timeout_s=2.0,
            request_id=thread,
            on_output=(lambda *_: None) if streamed else None,
        )
    in_time = await ticks()
    query = f"SELECT outcome FROM tool_calls WHERE request_id = '{thread}' AND outcome IS NOT NULL"
    while not (ended := await asyncio.to_thread(pair.home.rows, query)):
        await asyncio.sleep(0.05)
    assert ended == [("cancelled",)]
    assert await ticks() - in_time < in_time / 2  # two seconds of them; it would linger for three
