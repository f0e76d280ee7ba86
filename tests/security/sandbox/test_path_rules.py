"""A path that the policy forbids to the file tools stays forbidden, whatever name tool code gives to what is there.

Through the whole gateway. Tool code may copy what it can read; what must not happen is that a file tool opens another
file than the one whose path was judged.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.client import Client, ToolResult
from gateway.errors import AirlockError
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served

POLICY = """\
version: 1
rules:
  - id: files
    tools: [ls, read_file, write_file, edit_file, glob, grep]
    paths: [/workspace, /workspace/**]
    effect: allow
    reason: The workspace is the agent's.
  - id: no-secrets
    tools: [read_file, write_file, edit_file, grep]
    paths: [/workspace/secret/**]
    effect: deny
    reason: Secrets are not for agents.
  - id: commands
    tools: [execute]
    effect: allow
    reason: The sandbox holds them.
"""

FORBIDDEN = "forbidden-7Qx"
_READS = 2000
# Exchanges a directory with a link to the secret one, as fast as it can, until it is told to stop.
_EXCHANGE = """
import ctypes, os
libc = ctypes.CDLL(None)
while not os.path.exists("/workspace/stop"):
    for _ in range(200):
        libc.renameat2(-100, b"/workspace/public", -100, b"/workspace/way", 2)
"""


@pytest.fixture(scope="module")
def address_and_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    home = make_home(tmp_path_factory.mktemp("gateway"))
    key = home.add_tenant("rules", POLICY)
    with served(home) as gateway:
        yield gateway.address, key
    assert containers_of(home.instance) == []


@pytest.fixture
async def client(address_and_key: tuple[str, str]) -> AsyncIterator[Client]:
    async with Client(*address_and_key) as airlock:
        await run(
            airlock,
            "rm -rf /workspace/*; mkdir secret public; echo forbidden-7Qx | tee secret/key; echo plain > public/key;"
            " echo plain > public/other; ln secret/key public/hard; ln -s ../secret/key public/soft; ln -s secret way",
        )
        yield airlock


async def run(airlock: Client, command: str) -> str:
    """Run a command by a program of which the policy knows nothing, for commands that name files are judged by them."""
    program = f"import os; os.execvp('sh', ['sh', '-c', {command!r}])"
    line = f"python3 -c {shlex.quote(program)}"
    result = await airlock.call_tool("execute", {"command": line}, thread="paths")
    assert (result.outcome, result.exit_code) == ("exited", 0), result
    return result.content


async def tool(airlock: Client, name: str, **arguments: object) -> ToolResult:
    return await airlock.call_tool(name, arguments, thread="paths")


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/secret/key",
        "secret/key",
        "/workspace/public/../secret/key",
        "/workspace//secret/./key",
        "/workspace/public/hard",
        "/workspace/public/soft",
        "/workspace/way/key",
        "/proc/self/root/workspace/secret/key",
        "/proc/1/root/workspace/secret/key",
        "/proc/self/cwd/secret/key",
        "/dev/fd/../../workspace/secret/key",
        "/workspace/Secret/key",
        "/workspace/secret/key/",
        "/workspace/secret/key/.",
    ],
)
async def test_no_other_name_makes_a_forbidden_file_readable_or_writable(client: Client, path: str) -> None:
    for result in (
        await tool(client, "read_file", path=path),
        await tool(client, "grep", path=path, pattern="."),
        await tool(client, "edit_file", path=path, old_text="forbidden", new_text="x"),
    ):
        assert FORBIDDEN not in f"{result.content}{result.note}{result.reason}", result
        assert result.is_error or result.verdict == "deny", result
    with pytest.raises(AirlockError):
        await client.read_file("paths", path)
    assert await run(client, "cat secret/key") == f"{FORBIDDEN}\n"


async def test_a_hard_link_is_refused_with_the_reason_and_the_way_out(client: Client) -> None:
    result = await tool(client, "read_file", path="public/hard")
    assert result.is_error
    assert "2 names" in result.content
    await run(client, "cp public/other a && ln a b")
    assert (await tool(client, "read_file", path="a")).is_error
    await run(client, "cp a NEW && mv NEW a")
    assert "plain" in (await tool(client, "read_file", path="a")).content


async def test_a_write_goes_to_no_other_name(client: Client) -> None:
    for path in ("/workspace/public/hard", "/workspace/public/soft", "/workspace/way/key", "/workspace/way/new"):
        result = await tool(client, "write_file", path=path, content="overwritten")
        assert result.is_error, result
    assert await run(client, "cat secret/key; ls secret") == f"{FORBIDDEN}\nkey\n"


async def test_searches_of_allowed_directories_show_no_forbidden_content(client: Client) -> None:
    # A search that could meet something forbidden is refused as a whole; one beside it passes over links.
    whole = await tool(client, "grep", path="/workspace", pattern="forbidden|plain")
    assert (whole.verdict, whole.rule) == ("deny", "no-secrets")
    beside = await tool(client, "grep", path="/workspace/public", pattern="forbidden|plain")
    assert not beside.is_error
    assert beside.content.count("plain") == 2
    assert "forbidden" not in beside.content
    named = await tool(client, "glob", path="/workspace", pattern="**/*")
    assert FORBIDDEN not in named.content


async def test_a_directory_that_is_exchanged_with_a_link_all_the_time_never_leads_to_the_forbidden_file(
    client: Client,
) -> None:
    exchanging = asyncio.create_task(
        client.call_tool("execute", {"command": f"python3 -c '{_EXCHANGE}'"}, thread="paths")
    )
    read = refused = 0
    try:
        for n in range(_READS):
            match n % 4:
                case 0:
                    result = await tool(client, "grep", path="public/key", pattern=".")
                case 1:
                    result = await tool(client, "grep", path="public", pattern="forbidden|plain")
                case _:
                    result = await tool(client, "read_file", path="public/key")
            assert FORBIDDEN not in result.content, (n, json.dumps(result.content[:500]))
            if result.is_error:
                refused += 1
            else:
                read += 1
    finally:
        await client.write_file("paths", "/workspace/stop", b"")
        await exchanging
    # Both sides of the race were met, or this would have tried nothing.
    assert read > 0
    assert refused > 0
