"""Secrets against a real gateway and a real sandbox: whichever way a result goes, they must not be in it."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client
from tests.gateway_process import Home, make_home, served
from tests.unit.gateway.redaction.secrets import B64, PEM, PEM_BODY

SECRET = B64[:36]
TOKEN = "gh" + "p_" + SECRET
# Reversed, so that no command line holds the secret itself.
SAY = f'python3 -c \'print("{TOKEN[::-1]}"[::-1], end="")\''
RESULTS = """
results:
  - {id: internal, tools: [execute], contains: TOP SECRET, reason: Internal papers stay inside.}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("redaction"))


@pytest.fixture(scope="module")
def address(home: Home) -> Iterator[str]:
    with served(home) as gateway:
        yield gateway.address


@pytest.fixture
async def client(home: Home, address: str) -> AsyncIterator[Client]:
    async with Client(address, home.key) as airlock:
        yield airlock


def leaks(text: object, piece: int = 8) -> bool:
    """Return whether so long a part of the secret is in sight."""
    return any(SECRET[at : at + piece] in repr(text) for at in range(len(SECRET) - piece + 1))


async def written(client: Client, path: str, data: bytes) -> None:
    await client.write_file("t", path, data)


async def test_in_stdout_in_stderr_and_split_over_writes(client: Client) -> None:
    split = (
        "python3 -c 'import os,sys,time; t=\"" + TOKEN[::-1] + '"[::-1]\n'
        "for c in t: os.write(int(sys.argv[1]), c.encode()); time.sleep(.002)' "
    )
    for command in (SAY, f"{SAY} >&2", f"{split} 1", f"{split} 2", f"{SAY}; {SAY} >&2; false"):
        heard: list[bytes] = []
        result = await client.call_tool("execute", {"command": command}, thread="t")
        assert b"ghp_[redacted github-token]" in result.content_bytes
        streamed = await client.call_tool(
            "execute",
            {"command": command},
            thread="t",
            on_output=lambda _, data, heard=heard: heard.append(data),  # type: ignore[misc]
        )
        assert b"ghp_[redacted github-token]" in b"".join(heard)
        assert not leaks((result, streamed, b"".join(heard)))


@pytest.mark.parametrize("back", [0, 3, 5, 20, 39, 40])
async def test_across_the_edges_of_what_is_kept_in_sight(client: Client, back: int) -> None:
    head, tail = "a" * 50 + "\n", "b" * 50 + "\n"
    program = (
        f"h={head!r}; t={tail!r}; s={TOKEN[::-1]!r}[::-1]; "
        f"print((h*40)[:2000-{back}].rstrip() + ' ' + s + ' ' + h*4000 + ' ' + s + ' ' + (t*40)[:2000-{back}], end='')"
    )
    result = await client.call_tool("execute", {"command": f"python3 -c {shlex.quote(program)}"}, thread="t")
    assert result.evicted is not None
    assert not leaks(result, 4)
    page = await client.call_tool("read_file", {"path": result.evicted.path}, thread="t")
    assert "ghp_[redacted github-token]" in page.content
    assert not leaks(page, 4)


async def test_in_files_read_back_by_pages(client: Client) -> None:
    await written(client, "/workspace/pages.txt", f"{'x' * 30} {TOKEN} {'y' * 30}\n{PEM}".encode())
    for offset in range(25, 80):
        page = await client.call_tool("read_file", {"path": "pages.txt", "byte_offset": offset}, thread="t")
        assert not leaks(page, 4), page.content
        assert "MIIE" not in page.content
    for line in range(16):
        page = await client.call_tool("read_file", {"path": "pages.txt", "offset": line, "limit": 1}, thread="t")
        assert "MIIE" not in page.content
        assert not leaks(page, 4)
    exact = await client.read_file("t", "/workspace/pages.txt")
    assert TOKEN.encode() in exact  # a download is the tenant's own service's


async def test_through_grep(client: Client) -> None:
    await written(client, "/workspace/g/key.pem", PEM.encode())
    await written(client, "/workspace/g/token.txt", f"first\nexport T={TOKEN}\n".encode())
    await written(client, "/workspace/g/long.js", f"{'var a=1;' * 1000}{TOKEN}{';b=2' * 1000}\n".encode())
    found = await client.call_tool("grep", {"pattern": "MII|export|a=1;g", "path": "g"}, thread="t")
    assert found.content.count("key.pem") == PEM_BODY.count("MIIE")
    assert "export T=ghp_[redacted" in found.content
    for pattern in (SECRET[20:24], "MII", SECRET[-6:]):
        found = await client.call_tool("grep", {"pattern": pattern, "path": "g"}, thread="t")
        assert not leaks(found.content, 8), found.content
        assert B64[:20] not in found.content


async def test_in_names_and_in_error_texts(client: Client) -> None:
    await client.call_tool("write_file", {"path": f"names/{TOKEN}", "content": "x"}, thread="t")
    for tool, arguments in (
        ("ls", {"path": "names"}),
        ("glob", {"pattern": "**", "path": "names"}),
        ("grep", {"pattern": "x", "path": "names"}),
        ("read_file", {"path": f"{TOKEN}/none"}),
        ("edit_file", {"path": f"names/{TOKEN}", "old_text": "y", "new_text": "z"}),
        ("no_such_tool", {"x": TOKEN}),
    ):
        result = await client.call_tool(tool, arguments, thread="t")
        assert "[redacted github-token]" in result.content + result.note or tool == "no_such_tool"
        assert not leaks(result)


async def test_in_programs_and_background_processes(client: Client) -> None:
    argv = ["sh", "-c", f"{SAY}; echo; echo done; {SAY} >&2"]
    ran = await client.run_program(argv, thread="t")
    assert ran.stdout_bytes.startswith(b"ghp_[redacted github-token]")
    assert ran.stdout_bytes.endswith(b"done\n")
    assert not leaks((ran.stdout_bytes, ran.stderr_bytes), 4)
    await client.start_process(["sh", "-c", f"{SAY}; echo"], thread="t", process_id="said")
    for offset in (0, 1, 4, 5, 20, 39):
        data = b"".join([piece.data async for piece in client.process_output("t", "said", offset=offset, follow=True)])
        assert data == (TOKEN[:4].encode() + b"[redacted github-token]".ljust(36, b"*") + b"\n")[offset:]


async def test_bytes_without_secrets_are_exact(client: Client) -> None:
    ran = await client.run_program(["cat"], thread="t", stdin=bytes(range(256)) * 4000)
    assert ran.stdout_bytes == bytes(range(256)) * 4000


async def test_in_arguments_events_and_journal(tmp_path: Path) -> None:
    turns = [
        Turn(say="I look.", calls=(Call("execute", {"command": f"export T={TOKEN}; echo $T"}),)),
        Turn(say="Done."),
    ]
    async with ScriptedModelServer(turns) as model:
        home = await asyncio.to_thread(make_home, tmp_path / "home")
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        other = home.add_tenant("results", (home.config.parent / "policies" / "default.yaml").read_text() + RESULTS)
        with served(home, {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                run = await airlock.start_run("go", thread="t")
                events = [event async for event in airlock.watch_run(run.id)]
                assert events[-1].payload["status"] == "completed", events[-1].payload
                finished = [event.payload for event in events if event.type == "tool_call_finished"]
                assert "ghp_[redacted github-token]" in finished[0]["content"]
                shown = [
                    event for event in events if event.type in {"tool_call_started", "tool_output", "hook_verdict"}
                ]
                assert not leaks([event.payload for event in [*shown, *events] if event.type != "model_delta"])
            async with Client(gateway.address, other) as airlock:
                heard: list[bytes] = []
                result = await airlock.call_tool(
                    "execute",
                    {"command": "echo TOP; printf 'TOP '; echo SECRET"},
                    on_output=lambda _, d: heard.append(d),
                )
                assert "withheld: rule internal" in result.content
                assert (result.stdout, heard, result.exit_code) == ("", [], 0)
                # Long output: what is in its middle, in a file in the sandbox, counts too, and the file is gone.
                long = 'python3 -c \'print("a\\n" * 60000 + "TOP " + "{}" + "b\\n" * 60000)\''
                result = await airlock.call_tool("execute", {"command": long.format("SECRET")})
                assert "withheld: rule internal" in result.content
                assert (result.evicted, result.stdout) == (None, "")
                result = await airlock.call_tool("execute", {"command": long.format("PUBLIC")})
                assert result.evicted is not None
                assert "withheld" not in result.content
                kept = PurePosixPath(result.evicted.path)
                assert (await airlock.call_tool("read_file", {"path": str(kept)})).content.startswith("a\n")
                listed = await airlock.call_tool("ls", {"path": str(kept.parent)})
                assert [line for line in listed.content.splitlines() if line] == [listed.content.strip()], listed
                assert kept.name in listed.content
        log = (home.config.parent / "serve.log").read_text(encoding="utf-8")
        assert not leaks(log)
        database = next((home.config.parent / "state").glob("*.db"))
        with closing(sqlite3.connect(database)) as rows:
            stored = rows.execute("select name, arguments from tool_calls").fetchall()
        assert any("redacted" in json.dumps(row) for row in stored)
        assert not leaks(stored)
