import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner, RunState, function_tool
from agents.editor import ApplyPatchOperation
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    SandboxError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Environment
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call

from airlock import Client
from gateway.integrations.openai_agents import AirlockSandboxClient, AirlockSandboxClientOptions

MANIFEST = Manifest(
    entries={"notes.txt": File(content=b"one\n"), "src": Dir(children={"main.py": File(content=b"print(1)\n")})},
    environment=Environment(value={"GREETING": "hello there"}),
)


@pytest.fixture
def client(address: str, api_key: str) -> AirlockSandboxClient:
    return AirlockSandboxClient(address=address, api_key=api_key)


@pytest.fixture
def strict_client(address: str, strict_key: str) -> AirlockSandboxClient:
    return AirlockSandboxClient(address=address, api_key=strict_key)


async def opened(client: AirlockSandboxClient, manifest: Manifest) -> AsyncIterator[SandboxSession]:
    session = await client.create(manifest=manifest)
    async with session:
        yield session
    await client.delete(session)


@pytest.fixture
async def session(client: AirlockSandboxClient) -> AsyncIterator[SandboxSession]:
    async for one in opened(client, MANIFEST):
        yield one


@pytest.fixture
async def strict(strict_client: AirlockSandboxClient) -> AsyncIterator[SandboxSession]:
    async for one in opened(strict_client, Manifest()):
        yield one


def test_an_agent_of_the_page_computes_in_the_sandbox(run_program: Callable[[str], str]) -> None:
    assert run_program("openai-agents") == "The sum is 5050.\n"


async def test_the_manifest_is_in_the_workspace_and_its_variables_in_commands(session: SandboxSession) -> None:
    assert (await session.read(Path("notes.txt"))).read() == b"one\n"
    assert (await session.read(Path("/workspace/src/main.py"))).read() == b"print(1)\n"
    assert (await session.exec("echo $GREETING; python3 src/main.py")).stdout == b"hello there\n1\n"


async def test_a_command_has_both_streams_and_its_exit_code(session: SandboxSession) -> None:
    done = await session.exec("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3)
    assert (await session.exec("printf", "%s|", "a b", "$HOME", shell=False)).stdout == b"a b|$HOME|"
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 60", timeout=1)


async def test_large_output_is_whole(session: SandboxSession) -> None:
    done = await session.exec("python3 -c \"print('x' * 500_000)\"")
    assert (len(done.stdout), done.exit_code) == (500_001, 0)


async def test_files_are_listed_made_written_and_removed(session: SandboxSession) -> None:
    data = bytes(range(256)) * 40_000
    await session.mkdir("made/below", parents=True)
    await session.write(Path("made/below/data.bin"), io.BytesIO(data))
    assert (await session.read(Path("made/below/data.bin"))).read() == data
    assert await session.read_bounded(Path("made/below/data.bin"), max_bytes=300) == data[:300]
    [entry] = await session.ls("made")
    assert (entry.path, entry.is_dir()) == ("/workspace/made/below", True)
    [entry] = await session.ls("made/below")
    assert (entry.path, entry.size, entry.is_dir()) == ("/workspace/made/below/data.bin", len(data), False)
    await session.mv("made/below/data.bin", "moved.bin")
    await session.rm("made", recursive=True)
    assert sorted(one.path for one in await session.ls(".")) == [
        *("/workspace/moved.bin", "/workspace/notes.txt", "/workspace/src")
    ]
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("made/below/data.bin"))


async def test_a_path_outside_the_workspace_is_refused(session: SandboxSession) -> None:
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("../etc/passwd"))
    with pytest.raises(InvalidManifestPathError):
        await session.write(Path("/etc/passwd"), io.BytesIO(b""))
    await session.exec("ln -s /etc/shadow link")
    with pytest.raises(SandboxError):
        await session.read(Path("link"))


async def test_a_patch_and_an_archive_are_applied(session: SandboxSession) -> None:
    await session.apply_patch(
        [
            ApplyPatchOperation(type="update_file", path="notes.txt", diff="@@\n-one\n+two\n"),
            ApplyPatchOperation(type="create_file", path="new/file.txt", diff="+created\n"),
            ApplyPatchOperation(type="delete_file", path="src/main.py"),
        ]
    )
    assert (await session.exec("cat notes.txt new/file.txt; ls src")).stdout == b"two\ncreated"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("hello.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    archive.seek(0)
    await session.extract("unpacked/a.tar", archive)
    assert (await session.read(Path("unpacked/hello.txt"))).read() == b"hello"


async def test_a_long_command_goes_on_and_is_polled(session: SandboxSession) -> None:
    started = await session.pty_exec_start("echo began; sleep 2; echo over", yield_time_s=0.5)
    assert (started.output, started.exit_code) == (b"began\n", None)
    assert started.process_id is not None
    ended = await session.pty_write_stdin(session_id=started.process_id, chars="", yield_time_s=20)
    assert (ended.output, ended.exit_code, ended.process_id) == (b"over\n", 0, None)
    quick = await session.pty_exec_start("exit 3", yield_time_s=20)
    assert (quick.output, quick.exit_code, quick.process_id) == (b"", 3, None)


async def test_a_terminal_takes_input_and_control_characters(session: SandboxSession) -> None:
    shell = await session.pty_exec_start("sh", tty=True, yield_time_s=1)
    assert shell.process_id is not None
    echoed = await session.pty_write_stdin(session_id=shell.process_id, chars="echo $((6*7))\n", yield_time_s=2)
    assert b"42" in echoed.output
    await session.pty_write_stdin(session_id=shell.process_id, chars="sleep 600\n")
    await session.pty_write_stdin(session_id=shell.process_id, chars="\x03")
    ended = await session.pty_write_stdin(session_id=shell.process_id, chars="exit 5\n", yield_time_s=20)
    assert (ended.exit_code, ended.process_id) == (5, None)


async def test_commands_end_with_the_session(client: AirlockSandboxClient, thread: str) -> None:
    options = AirlockSandboxClientOptions(thread=thread)
    async with await client.create(options=options) as session:
        await session.pty_exec_start("sleep 611", yield_time_s=0.3)
        await session.pty_exec_start("sleep 612", tty=True, yield_time_s=0.3)
    async with await client.create(options=options) as session, asyncio.timeout(30):
        while (await session.exec("pgrep -f 'sleep 61[12]'")).exit_code == 0:
            await asyncio.sleep(0.1)


async def test_a_denied_command_has_not_run_and_names_its_rule(strict: SandboxSession) -> None:
    denied = await strict.exec("curl https://example.com; touch ran")
    assert (denied.exit_code, denied.stdout) == (126, b"")
    assert b"rule no-curl: agents do not download" in denied.stderr
    for tty in (False, True):
        update = await strict.pty_exec_start("curl https://example.com; touch ran", tty=tty, yield_time_s=20)
        assert update.exit_code == 126
        assert b"agents do not download" in update.output
    with pytest.raises(WorkspaceReadNotFoundError):
        await strict.read(Path("ran"))


async def test_a_denied_file_operation_names_its_rule(strict: SandboxSession) -> None:
    operations: list[Callable[[], Any]] = [
        lambda: strict.read(Path("secrets/key")),
        lambda: strict.write(Path("secrets/key"), io.BytesIO(b"x")),
        lambda: strict.ls("secrets"),
        lambda: strict.rm("secrets/key"),
        lambda: strict.mkdir("secrets"),
    ]
    for operation in operations:
        with pytest.raises(SandboxError, match=r"no-secrets|secrets are not for agents"):
            await operation()


async def test_a_command_that_needs_an_approval_names_it_and_runs_once_it_is_approved(
    strict: SandboxSession, address: str, approver_key: str
) -> None:
    command = "python3 -c 'print(6 * 7)'"
    waiting = await strict.exec(command)
    assert waiting.exit_code == 126
    approval_id = next(word for word in waiting.stderr.decode().split() if word.startswith("apr_"))
    async with Client(address, approver_key) as approver:
        await approver.resolve_approval(approval_id, "once")
    assert (await strict.exec(command)).stdout == b"42\n"


async def test_a_result_that_a_rule_withholds_is_not_shown_and_others_are(strict: SandboxSession) -> None:
    assert (await strict.pty_exec_start("echo fine; echo err >&2", yield_time_s=20)).output == b"fine\nerr\n"
    withheld = await strict.pty_exec_start("echo CARD-1234", yield_time_s=20)
    once = await strict.exec("echo CARD-1234")
    for output in (withheld.output, once.stdout + once.stderr):
        assert b"no-cards" in output
        assert b"CARD-1234" not in output


async def test_another_user_is_refused(session: SandboxSession) -> None:
    with pytest.raises(NotImplementedError, match="one user"):
        await session.exec("id", user="root")
    with pytest.raises(NotImplementedError, match="one user"):
        await session.read(Path("notes.txt"), user="root")


async def test_a_gateway_that_does_not_answer_is_an_error(api_key: str) -> None:
    lost = AirlockSandboxClient(address="127.0.0.1:9", api_key=api_key)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        await lost.create()


async def test_a_session_is_resumed_on_its_thread_with_its_files(client: AirlockSandboxClient, thread: str) -> None:
    session = await client.create(manifest=MANIFEST, options=AirlockSandboxClientOptions(thread=thread))
    async with session:
        await session.exec("echo changed > notes.txt")
    stored = json.loads(json.dumps(client.serialize_session_state(session.state)))
    assert "alk_" not in json.dumps(stored)
    await client.delete(session)
    async with await client.resume(client.deserialize_session_state(stored)) as resumed:
        assert (await resumed.read(Path("notes.txt"))).read() == b"changed\n"


async def test_a_snapshot_restores_the_files_of_a_session_that_was_deleted(
    client: AirlockSandboxClient, tmp_path: Path
) -> None:
    session = await client.create(manifest=MANIFEST, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with session:
        await session.exec("echo changed > notes.txt; mkdir deep; echo kept > deep/file.txt")
    stored = client.serialize_session_state(session.state)
    await client.delete(session)
    resumed = await client.resume(client.deserialize_session_state(stored))
    async with resumed:
        assert (await resumed.exec("cat notes.txt deep/file.txt")).stdout == b"changed\nkept\n"
    await client.delete(resumed)


async def test_a_run_that_waits_for_an_approval_goes_on_in_the_same_files(client: AirlockSandboxClient) -> None:
    @function_tool(needs_approval=True)
    def deploy() -> str:
        return "deployed"

    def agent(*turns: Any) -> SandboxAgent[Any]:
        model = ScriptedModel([[turn] for turn in turns])
        return SandboxAgent(name="worker", model=model, default_manifest=MANIFEST, tools=[deploy])

    write = function_call("exec_command", {"cmd": "echo built > built.txt"}, call_id="call_1")
    first = agent(write, function_call("deploy", {}, call_id="call_2"))
    config = RunConfig(sandbox=SandboxRunConfig(client=client))
    paused = await Runner.run(first, "build and deploy", run_config=config)
    assert [one.name for one in paused.interruptions] == ["deploy"]

    second = agent(function_call("exec_command", {"cmd": "cat built.txt"}, call_id="call_3"), assistant_message("done"))
    state = await RunState.from_json(second, paused.to_state().to_json())
    state.approve(state.get_interruptions()[0])
    done = await Runner.run(second, state, run_config=config)
    assert done.final_output == "done"
    outputs = [item.output for item in done.new_items if item.type == "tool_call_output_item"]
    assert outputs[-1].endswith("built\n")


async def test_a_lost_gateway_fails_a_command_and_is_no_output(session: SandboxSession) -> None:
    await session._inner._client.aclose()
    with pytest.raises(ExecTransportError):
        await session.exec("true")
