"""Between the check and the use: what was judged happens, whoever changes files, policies or answers meanwhile."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from gateway.client import AirlockError, Client, ToolResult
from tests.gateway_process import Home, make_home, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

CANARY = "CANARY-51c9"
_RULES = """
version: 1
rules:
  - {id: any, tools: [execute], effect: EFFECT, reason: this version says so}
  - {id: all-files, tools: [read, write], paths: [/workspace/**], effect: allow, reason: the workspace}
  - {id: secrets, tools: [read, write], paths: [/workspace/secret/**], effect: deny, reason: not for agents}
"""
ALLOWED, ASKED = _RULES.replace("EFFECT", "allow"), _RULES.replace("EFFECT", "ask")


@dataclass(frozen=True)
class Range:
    """A gateway, a client of a tenant with the rules above, and one that answers approvals."""

    home: Home
    client: Client
    approver: Client

    def apply(self, policy: str) -> None:
        """Put another version in force, as an operator does."""
        (self.home.config.parent / "policies" / "racing.yaml").write_text(policy, encoding="utf-8")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Range]:
    home = make_home(tmp_path_factory.mktemp("races"))
    key = home.add_tenant("racing", ALLOWED)
    approver_key = home.make_key("racing", "approve")
    with served(home) as gateway:
        async with (
            Client(gateway.address, key) as client,
            Client(gateway.address, approver_key) as approver,
        ):
            yield Range(home, client, approver)


async def _said(place: Range, version: str, verdict: str) -> None:
    """Wait until another version than `version` says something."""
    async with asyncio.timeout(30):
        while True:
            result = await place.client.call_tool("execute", {"command": "true"}, thread="versions")
            if result.policy_version != version and result.verdict == verdict:
                return
            await asyncio.sleep(0.05)


async def test_a_link_that_comes_and_goes_leads_no_file_tool_to_what_is_denied(place: Range) -> None:
    client = place.client
    # A program of which the policy knows nothing: nobody tells from its text what it does to files.
    program = f"""
import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs("secret"); os.makedirs("out/d")
for path, text in (("secret/key", "{CANARY}"), ("out/f", "harmless"), ("out/d/key", "harmless")):
    open(path, "w").write(text)
os.symlink("../secret/key", "out/l"); os.symlink("../secret", "out/m")
print("ready", flush=True)
while not os.path.exists("out/stop"):
    for one, other in ((b"out/f", b"out/l"), (b"out/d", b"out/m")):
        libc.renameat2(-100, one, -100, other, 2)  # they change places
print(open("secret/key").read())
"""
    swapping = asyncio.create_task(
        client.call_tool("execute", {"command": f"python3 -c {shlex.quote(program)}", "timeout_s": 60})
    )
    seen: set[str] = set()

    async def try_(tool: str, **arguments: str) -> None:
        result = await client.call_tool(tool, arguments)
        seen.add(result.outcome)
        assert CANARY not in result.content, (tool, arguments)

    async with asyncio.timeout(30):
        while (await client.call_tool("ls", {"path": "/workspace/out"})).content.count("name") < 4:
            await asyncio.sleep(0.05)
    for number in range(60):
        await asyncio.gather(
            try_("read_file", path="/workspace/out/f"),
            try_("read_file", path="/workspace/out/d/key"),
            try_("grep", path="/workspace/out/d", pattern="CANARY"),
            try_("write_file", path="/workspace/out/d/key", content=f"written {number}"),
            try_("edit_file", path="/workspace/out/d/key", old_text="CANARY", new_text="stolen"),
        )
    await client.write_file("default", "/workspace/out/stop", b"")
    ended = await swapping
    assert ended.content == f"ready\n{CANARY}\n", ended  # it ran all the time, and the secret is as it was
    assert {"completed", "failed"} <= seen


async def test_each_call_is_judged_by_one_version_while_versions_change(place: Range) -> None:
    results: list[ToolResult] = []
    done = asyncio.Event()

    async def call_on(thread: str) -> None:
        while not done.is_set():
            results.append(await place.client.call_tool("execute", {"command": f"echo {thread}"}, thread=thread))

    callers = [asyncio.create_task(call_on(f"versions-{number}")) for number in range(3)]
    version = (await place.client.call_tool("execute", {"command": "true"}, thread="versions")).policy_version
    for policy, verdict in ((ASKED, "ask"), (ALLOWED, "allow")) * 2:
        place.apply(policy)
        await _said(place, version, verdict)
        version = (await place.client.call_tool("execute", {"command": "true"}, thread="versions")).policy_version
    done.set()
    await asyncio.gather(*callers)
    by_version = {(result.policy_version, result.verdict, result.outcome) for result in results}
    assert len({version for version, _, _ in by_version}) == 2
    assert len(by_version) == 2, by_version  # one verdict a version, and what was asked about did not run
    assert {(verdict, outcome) for _, verdict, outcome in by_version} == {("allow", "exited"), ("ask", "waiting")}


async def test_one_approval_is_one_execution_for_the_first_caller(place: Range) -> None:
    version = (await place.client.call_tool("execute", {"command": "true"}, thread="versions")).policy_version
    place.apply(ASKED)
    await _said(place, version, "ask")
    command = {"command": "echo once >> ran"}
    asked = await place.client.call_tool("execute", command, thread="once")
    assert (asked.verdict, asked.outcome) == ("ask", "waiting")

    async def resolve(answer: str) -> str:
        try:
            return (await place.approver.resolve_approval(asked.approval_id, answer)).status  # type: ignore[arg-type]
        except AirlockError as error:
            return type(error).__name__

    # Said again by the same key it is the same answer; another one comes too late.
    assert await asyncio.gather(*(resolve("once") for _ in range(8))) == ["approved"] * 8
    assert await resolve("deny") == "AlreadyResolved"
    again = await asyncio.gather(*(place.client.call_tool("execute", command, thread="once") for _ in range(8)))
    assert [result.outcome for result in again].count("exited") == 1
    assert await place.client.read_file("once", "/workspace/ran") == b"once\n"
    other = await place.client.call_tool("execute", {"command": "echo twice >> ran"}, thread="once")
    assert other.outcome == "waiting"
    place.apply(ALLOWED)
    await _said(place, asked.policy_version, "allow")
