"""What is in a workspace, over the wire: listed, described, removed and made, each as policy and the kernel let it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import grpc.aio
import pytest

from airlock.v1 import workspace_service_pb2 as pb
from gateway.client import Client, Conflict, InvalidArgument, InvalidPath, NotADirectory, NotFound, PermissionDenied
from gateway.v1.workspace_service_pb2_grpc import WorkspaceServiceStub
from tests.gateway_process import airlock
from tests.integration.gateway.conftest import Pair


async def filled(client: Client, thread: str) -> None:
    """Make the same small tree in a thread's workspace."""
    command = (
        "mkdir -p tree/deep && cd tree && printf 12345 > b.py && chmod 750 b.py && touch a.txt deep/c.py && "
        "ln -sf b.py link && mkfifo -m 600 pipe || true"
    )
    assert (await client.call_tool("execute", {"command": command}, thread=thread)).exit_code == 0


async def test_a_directory_is_listed_by_name_with_what_is_there(client: Client) -> None:
    await filled(client, "tree")
    found = [entry async for entry in client.list_files("tree", "tree")]
    assert [(entry.name, entry.kind) for entry in found] == [
        ("a.txt", "file"),
        ("b.py", "file"),
        ("deep", "directory"),
        ("link", "symlink"),
        ("pipe", "other"),
    ]
    program = found[1]
    assert (program.size_bytes, program.mode) == (5, 0o750)
    assert program == await client.stat_file("tree", "/workspace/tree/b.py")
    assert abs((program.modified_at - found[0].modified_at).total_seconds()) < 3600
    assert "tree" in [entry.name async for entry in client.list_files("tree")]


async def test_a_pattern_lists_what_matches_by_its_path_below_the_directory(client: Client) -> None:
    await filled(client, "tree")
    assert [one.name async for one in client.list_files("tree", "tree", pattern="**/*.py")] == ["b.py", "deep/c.py"]
    assert [one.name async for one in client.list_files("tree", "tree", pattern="*.py")] == ["b.py"]


async def test_a_list_comes_in_pages_whose_tokens_are_for_one_directory(client: Client, pair: Pair) -> None:
    names = [f"{number:03}" for number in range(25)]
    await client.call_tool(
        "execute", {"command": "mkdir -p many other; seq -f many/%03g 0 24 | xargs touch"}, thread="pages"
    )
    request = pb.ListFilesRequest(thread="pages", path="many", page_size=10)
    pages: list[list[str]] = []
    tokens: list[str] = []
    async with grpc.aio.insecure_channel(pair.address) as channel:
        stub = WorkspaceServiceStub(channel)
        key = (("authorization", f"Bearer {pair.key}"),)
        while not pages or request.page_token:
            page = await stub.ListFiles(request, metadata=key)
            pages.append([entry.name for entry in page.files])
            request.page_token = page.next_page_token
            tokens.append(page.next_page_token)
        request.page_token, request.path = tokens[0], "other"
        with pytest.raises(grpc.aio.AioRpcError, match="does not belong to this query"):
            await stub.ListFiles(request, metadata=key)
    assert pages == [names[:10], names[10:20], names[20:]]


async def test_a_name_that_is_no_text_is_shown_by_its_bytes(client: Client) -> None:
    program = "import os; os.makedirs('bytes', exist_ok=True); open(b'bytes/a\\xff', 'w').close()"
    assert (await client.run_program(["python3", "-c", program], thread="tree")).exit_code == 0
    assert [entry.name async for entry in client.list_files("tree", "bytes")] == ["a\\xff"]


async def test_missing_and_forbidden_are_distinguished(client: Client) -> None:
    await filled(client, "tree")
    await client.call_tool("execute", {"command": "mkdir -p shut && touch shut/in && chmod 0 shut"}, thread="tree")
    with pytest.raises(NotFound):
        await client.stat_file("tree", "nothing")
    with pytest.raises(PermissionDenied):
        await client.stat_file("tree", "shut/in")
    with pytest.raises(NotADirectory):
        await client.stat_file("tree", "tree/b.py/in")
    with pytest.raises(NotADirectory):
        await anext(client.list_files("tree", "tree/b.py"))
    link = await client.stat_file("tree", "tree/link")
    assert link.kind == "symlink"
    with pytest.raises(InvalidPath):
        await client.stat_file("tree", "a\0b")
    root = await client.stat_file("tree", ".")
    assert (root.name, root.kind) == ("workspace", "directory")
    with pytest.raises(InvalidArgument):
        await anext(client.list_files("tree", pattern="p" * 5000))


async def test_files_and_trees_are_removed(client: Client) -> None:
    await filled(client, "removed")
    await client.remove_file("removed", "tree/link")
    assert await client.read_file("removed", "tree/b.py") == b"12345"
    await client.remove_file("removed", "tree/b.py")
    with pytest.raises(NotFound):
        await client.remove_file("removed", "tree/b.py")
    await client.remove_file("removed", "tree/b.py", missing_ok=True)
    with pytest.raises(Conflict):
        await client.remove_file("removed", "tree")
    await client.remove_file("removed", "tree", recursive=True)
    with pytest.raises(NotFound):
        await client.stat_file("removed", "tree")


async def test_a_directory_is_made_with_its_parents_and_again(client: Client) -> None:
    for _ in range(2):
        await client.make_directory("made", "x/y/z")
    assert (await client.stat_file("made", "/workspace/x/y/z")).kind == "directory"
    await client.write_file("made", "file", b"")
    with pytest.raises((NotADirectory, Conflict)):
        await client.make_directory("made", "file/in")


async def test_the_policy_judges_each_by_its_path_and_names_the_rule(strict: Client) -> None:
    await strict.make_directory("t", "/workspace/open")
    calls = [
        lambda: strict.stat_file("t", "/etc/passwd"),
        lambda: anext(strict.list_files("t", "/tmp")),
        lambda: strict.make_directory("t", "/tmp/x"),
        lambda: strict.remove_file("t", "/tmp/x", missing_ok=True),
    ]
    for call in calls:
        with pytest.raises(PermissionDenied) as refused:
            await call()
        assert refused.value.details["rule"] == "default-deny"
    with pytest.raises(PermissionDenied) as refused:
        await strict.remove_file("t", "/workspace/secret/key", missing_ok=True)
    assert refused.value.details["rule"] == "no-secrets"
    # What is below may be secret; a part that has none may go.
    with pytest.raises(PermissionDenied) as refused:
        await strict.remove_file("t", "/workspace", recursive=True)
    assert refused.value.details["rule"] == "no-secrets"
    await strict.remove_file("t", "/workspace/open", recursive=True)


async def test_the_command_line_lists_describes_removes_and_makes(client: Client, pair: Pair, tmp_path: Path) -> None:
    made = airlock(
        "key", "create", "--tenant", "default", "--scope", "files", "--config", str(pair.home.config), "--json"
    )
    env = {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": json.loads(made.stdout)["key"]}

    def files(*line: str) -> str:
        return airlock("files", *line, "--thread", "line", env=env).stdout

    await client.write_file("line", "box/a.txt", b"0123456789")
    files("mkdir", "box/sub")
    listed = json.loads(files("ls", "box", "--json"))
    assert next((one["name"], one["kind"], one["size_bytes"]) for one in listed) == ("a.txt", "file", 10)
    assert [one["name"] for one in listed] == ["a.txt", "sub"]
    assert [one["name"] for one in json.loads(files("ls", "/workspace/box/*.txt", "--json"))] == ["a.txt"]
    assert files("ls", "box").splitlines()[1].split()[-1] == "sub/"
    assert files("ls", "box").split()[:2] == ["10", "a.txt"]
    assert files("ls", "-l", "box").split()[1] == files("stat", "box/a.txt").split()[1] == "10"
    reported = json.loads(files("stat", "box", "--json"))
    assert (reported["kind"], stat.S_IMODE(int(reported["mode"], 8))) == ("directory", int(reported["mode"], 8))
    copied = tmp_path / "part"
    files("read", "box/a.txt", str(copied), "--offset", "3", "--limit-bytes", "4")
    assert copied.read_bytes() == b"3456"
    files("rm", "-r", "box")
    assert airlock("files", "stat", "box", "--thread", "line", env=env, check=False).returncode == 3
