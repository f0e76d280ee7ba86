"""MCP servers of agents on a real engine: programs in the thread's sandbox, pinned, judged, bounded and on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.client import AuditQuery, Client
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, Served, make_home, served
from tests.mcp_program import SOURCE

PROGRAM = "/workspace/server.py"
COMMAND = ["python3", PROGRAM]
POLICY = """\
version: 1
limits: {timeout_s: 10}
redaction: {patterns: [{id: ours, pattern: "tok-[0-9]+"}]}
rules:
  - {id: files, tools: [read, write], paths: [/workspace/**], effect: allow, reason: Any file.}
  - {id: commands, tools: [execute], effect: allow, reason: Anything runs.}
  - {id: no-other-programs, tools: [execute], argv: [[other-server]], effect: deny, reason: It is not ours.}
  - {id: hasty, tools: [hasty/*], effect: allow, reason: For the tests.}
  - {id: refused, tools: [refused/*], effect: allow, reason: For the tests.}
  - {id: no-long-names, tools: [notes/count], effect: deny, reason: Nobody counts here.}
  - {id: asks, tools: [notes/add], effect: ask, reason: Somebody looks., when: "args.a == 99"}
  - {id: notes, tools: [notes/*], effect: allow, reason: Notes are harmless.}
"""


def _server(**more: Any) -> dict[str, Any]:
    return {"command": COMMAND, "pins": "first_use", "start_s": 20, "timeout_s": 5, **more}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = make_home(tmp_path_factory.mktemp("mcp"))
    (home.config.parent / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
    servers = {
        "notes": _server(timeout_s=60),
        "hasty": _server(timeout_s=2),
        "refused": _server(command=["other-server"]),
    }
    home.configure(agents={"default": {"mcp": {"servers": servers}}})
    return home


@pytest.fixture(scope="module")
def gateway(home: Home) -> Iterator[Served]:
    with served(home) as gateway:
        yield gateway
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


@pytest.fixture
async def client(home: Home, gateway: Served) -> AsyncIterator[Client]:
    async with Client(gateway.address, home.key) as client:
        yield client


@pytest.fixture
async def thread(client: Client, request: pytest.FixtureRequest) -> str:
    """A thread of the test's own, with the server's program in it."""
    name: str = request.node.name
    await client.write_file(name, PROGRAM, SOURCE.encode())
    return name


async def test_a_tool_of_a_server_is_called_in_the_threads_own_sandbox(client: Client, thread: str) -> None:
    said = await client.call_tool("notes/echo", {"text": "hello"}, thread=thread)
    assert (said.content, said.outcome, said.rule) == ("hello", "completed", "notes")
    there = json.loads((await client.call_tool("notes/where", {}, thread=thread)).content)
    mine = "python3 -c 'import os; print(os.getcwd(), os.getuid())'"
    own = await client.call_tool("execute", {"command": mine}, thread=thread)
    assert f"{there['cwd']} {there['uid']}" == own.content.strip()
    assert not [name for name in there["env"] if "KEY" in name or "TOKEN" in name]


async def test_what_is_not_text_becomes_files_and_errors_are_errors(client: Client, thread: str) -> None:
    picture = await client.call_tool("notes/picture", {}, thread=thread)
    first, image, link, note = picture.content.split("\n", 3)
    assert (first, link) == ("a dot", "[a resource that the server has: more file:///more]")
    assert note == "[note://1]\na note"
    path = image.rpartition(" ")[2].rstrip("]")
    assert await client.read_file(thread, path) == b"\x89PNG\r\n\x1a\n"
    added = await client.call_tool("notes/add", {"a": 2, "b": 40}, thread=thread)
    assert json.loads(added.content) == {"sum": 42}
    failed = await client.call_tool("notes/fail", {}, thread=thread)
    assert (failed.content, failed.outcome, failed.is_error) == ("it cannot be done", "failed", True)


async def test_results_are_evicted_and_redacted_as_all_are(client: Client, thread: str) -> None:
    long = await client.call_tool("notes/long", {}, thread=thread)
    assert long.evicted is not None
    assert long.evicted.size_bytes == 300_000
    assert len(long.content) < 10_000
    secret = await client.call_tool("notes/echo", {"text": "it is tok-12345"}, thread=thread)
    assert "tok-12345" not in secret.content


async def test_policy_judges_each_tool_by_its_name_and_denies_others(client: Client, thread: str) -> None:
    denied = await client.call_tool("notes/count", {}, thread=thread)
    assert (denied.verdict, denied.rule, denied.outcome) == ("deny", "no-long-names", "blocked")
    unknown = await client.call_tool("other/echo", {"text": "x"}, thread=thread)
    assert (unknown.verdict, unknown.rule) == ("deny", "default-deny")


async def test_arguments_that_do_not_fit_the_schema_never_reach_the_server(client: Client, thread: str) -> None:
    for arguments, wrong in (({}, "text"), ({"text": 5}, "string"), ({"text": "a", "more": 1}, "more")):
        refused = await client.call_tool("notes/echo", arguments, thread=thread)
        assert refused.is_error
        assert "do not fit" in refused.content
        assert wrong in refused.content


async def test_progress_is_output_and_a_call_that_takes_too_long_is_cancelled(client: Client, thread: str) -> None:
    pieces: list[bytes] = []
    result = await client.call_tool("hasty/slow", {}, thread=thread, on_output=lambda _, data: pieces.append(data))
    assert "did not answer within 2 s" in result.content
    assert b"1/3 step" in b"".join(pieces)
    assert await client.read_file(thread, "/workspace/cancelled") == b"yes"


async def test_a_server_lives_on_between_calls_and_is_started_again_after_its_sandbox(
    client: Client, thread: str
) -> None:
    await client.call_tool("notes/echo", {"text": "a"}, thread=thread)
    first = await _servers(client, thread)
    await client.call_tool("notes/echo", {"text": "b"}, thread=thread)
    assert await _servers(client, thread) == first
    await client.stop_sandbox(thread)
    assert (await client.call_tool("notes/echo", {"text": "back"}, thread=thread)).content == "back"
    assert len(await _servers(client, thread)) == 1


async def test_a_server_that_ended_says_why_and_is_started_again(client: Client, thread: str) -> None:
    source = SOURCE.replace('if name == "fail":', 'if name == "fail":\n        sys.exit("the disk is on fire")')
    await client.write_file(thread, PROGRAM, source.encode())
    ended = await client.call_tool("notes/fail", {}, thread=thread)
    assert ended.is_error
    assert "the disk is on fire" in ended.content
    assert (await client.call_tool("notes/echo", {"text": "again"}, thread=thread)).content == "again"


async def test_a_call_that_needs_an_approval_is_made_once_it_is_approved(
    client: Client, home: Home, gateway: Served, thread: str
) -> None:
    asked = await client.call_tool("notes/add", {"a": 99}, thread=thread)
    assert (asked.verdict, asked.rule) == ("ask", "asks")
    async with Client(gateway.address, home.make_key("default", "approve")) as approver:
        approval = await approver.approval(asked.approval_id)
        assert (approval.tool, approval.arguments) == ("notes/add", {"a": 99})
        await approver.resolve_approval(asked.approval_id, "once")
    assert json.loads((await client.call_tool("notes/add", {"a": 99}, thread=thread)).content) == {"sum": 99}


async def test_a_caller_that_cancels_cancels_the_call_at_the_server(client: Client, thread: str) -> None:
    begun = asyncio.Event()
    call = client.call_tool("notes/slow", {}, thread=thread, on_output=lambda *_: begun.set())
    task = asyncio.create_task(call)
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(60):
        while (await client.call_tool("execute", {"command": "cat cancelled"}, thread=thread)).content != "yes":
            await asyncio.sleep(0.1)
    assert (await client.call_tool("notes/echo", {"text": "next"}, thread=thread)).content == "next"


async def test_a_program_that_the_policy_does_not_let_run_is_not_started(client: Client, thread: str) -> None:
    refused = await client.call_tool("refused/echo", {"text": "x"}, thread=thread)
    assert refused.is_error
    assert "it was not started" in refused.content
    assert "no-other-programs" in refused.content
    assert await _servers(client, thread) == []


async def test_two_threads_never_share_a_server(client: Client, thread: str) -> None:
    await client.write_file(f"{thread}-2", PROGRAM, SOURCE.encode())
    for name in (thread, f"{thread}-2"):
        assert (await client.call_tool("notes/echo", {"text": name}, thread=name)).content == name
        assert len(await _servers(client, name)) == 1


async def _servers(client: Client, thread: str) -> list[tuple[str, object]]:
    return [
        (one.id, one.started_at)
        for one in (await client.processes(thread, running=True)).processes
        if one.id.startswith("mcp-")
    ]


async def test_calls_at_once_share_the_session(client: Client, thread: str) -> None:
    said = await asyncio.gather(*(client.call_tool("notes/echo", {"text": str(n)}, thread=thread) for n in range(8)))
    assert [one.content for one in said] == [str(n) for n in range(8)]
    assert len(await _servers(client, thread)) == 1


async def test_each_call_and_the_start_are_in_the_audit(
    client: Client, home: Home, gateway: Served, thread: str
) -> None:
    await client.call_tool("notes/echo", {"text": "on record"}, thread=thread)
    async with Client(gateway.address, home.make_key("default", "audit")) as auditor:
        records = await auditor.audit(AuditQuery(thread=thread))
    kinds = {(one.kind, one.tool, one.rule, one.outcome) for one in records}
    assert ("tool_call", "notes/echo", "notes", "completed") in kinds
    assert ("process", "execute", "commands", "completed") in kinds


async def test_tools_are_listed_once_they_are_accepted(client: Client, thread: str) -> None:
    await client.call_tool("notes/echo", {"text": "x"}, thread=thread)
    tools = {one.name: one for one in await client.list_tools()}
    assert tools["notes/echo"].description == "Say it again."
    assert tools["notes/echo"].parameters["required"] == ["text"]


@pytest.mark.parametrize(
    "mode, said",
    [
        ("silent", "did not answer within 2 s"),
        ("endless line", "a message has more than 8 MiB"),
        ("flood", "for one call"),
        ("asks", "more than 100 requests of its own"),
        ("huge", "more than"),
        ("many", "more than 100,000 strings, commas, lists and objects"),
        ("fails", "there is no configuration"),
        ("endless list", "its list of tools has no end"),
        ("changed", "is not what the operator accepted"),
    ],
)
async def test_a_hostile_server_is_bounded_and_the_next_call_gets_a_new_one(
    client: Client, gateway: Served, thread: str, mode: str, said: str
) -> None:
    await client.write_file(thread, "/workspace/mode", mode.encode())
    before = _memory_mib(gateway)
    server = "hasty" if mode == "silent" else "notes"
    failed = await client.call_tool(f"{server}/echo", {"text": "x"}, thread=thread)
    assert failed.is_error
    assert said in failed.content
    assert _memory_mib(gateway) - before < 128
    await client.write_file(thread, "/workspace/mode", b"")
    if mode in ("silent", "changed"):  # it lives, as far as anyone knows
        await client.stop_sandbox(thread)
    assert (await client.call_tool("notes/echo", {"text": "well"}, thread=thread)).content == "well"


def _memory_mib(gateway: Served) -> float:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.parametrize("mode", ["prints", "deep", "wrong id"])
async def test_what_is_no_answer_is_passed_over(client: Client, thread: str, mode: str) -> None:
    await client.write_file(thread, "/workspace/mode", mode.encode())
    assert (await client.call_tool("notes/echo", {"text": "hello"}, thread=thread)).content == "hello"
