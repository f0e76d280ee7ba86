"""Commands and terminals by E2B's SDK."""

from __future__ import annotations

import asyncio

import pytest
from e2b import AsyncSandbox, CommandExitException, PtySize, Sandbox, SandboxException, TimeoutException

from tests.integration.e2b.conftest import Connection
from tests.waiting import eventually


def test_a_command_has_its_streams_its_directory_and_its_variables(sandbox: Sandbox) -> None:
    seen: list[str] = []
    line = 'echo "$GREETING $NAME"; pwd; echo trouble >&2'
    result = sandbox.commands.run(line, envs={"NAME": "you"}, cwd="/tmp", on_stdout=seen.append)
    assert (result.stdout, result.stderr, result.exit_code) == ("hello you\n/tmp\n", "trouble\n", 0)
    assert "".join(seen) == result.stdout


def test_a_relative_directory_is_in_the_workspace(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("commands/here")
    for cwd in ("commands/here", "/home/user/commands/here", "/workspace/commands/here"):
        assert sandbox.commands.run("pwd", cwd=cwd).stdout == "/workspace/commands/here\n"


@pytest.mark.parametrize(
    "line, exit_code, error", [("exit 3", 3, "exit status 3"), ("kill -9 $$", -1, "signal: killed")]
)
def test_a_command_that_fails_says_how(sandbox: Sandbox, line: str, exit_code: int, error: str) -> None:
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run(line)
    assert (failed.value.exit_code, failed.value.error) == (exit_code, error)


def test_large_output_arrives_whole(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero | tr '\\0' y >&2")
    assert (result.stdout, result.stderr) == ("x" * 3_000_000, "y" * 1_000_000)


def test_a_command_in_the_background_reads_what_is_sent(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "one\n")
    command.send_stdin("two\n")
    command.close_stdin()
    assert command.wait().stdout == "one\ntwo\nend\n"


def test_another_client_connects_to_a_command_and_kills_it(sandbox: Sandbox, connection: Connection) -> None:
    started = sandbox.commands.run("echo begun; exec sleep 600", background=True)
    other = Sandbox.connect(sandbox.sandbox_id, **connection)
    (listed,) = [one for one in other.commands.list() if one.pid == started.pid]
    assert listed.args == ["-c", "echo begun; exec sleep 600"]
    followed = other.commands.connect(started.pid)
    assert next(iter(followed)) == ("begun\n", None, None)
    assert other.commands.kill(started.pid)
    for handle in (started, followed):
        with pytest.raises(CommandExitException) as ended:
            handle.wait()
        assert ended.value.error == "signal: killed"
    assert not other.commands.kill(started.pid)
    assert started.pid not in [one.pid for one in other.commands.list()]


def test_a_command_ends_with_its_time_and_not_with_its_client(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("echo $$ > /tmp/timed; exec sleep 600", timeout=2)
    alive = "kill -0 $(cat /tmp/timed) 2>/dev/null || echo gone"
    assert eventually(lambda: "gone" in sandbox.commands.run(alive).stdout, 30)
    left = sandbox.commands.run("exec sleep 600", background=True)
    left.disconnect()
    assert left.pid in [one.pid for one in sandbox.commands.list()]
    assert left.kill()


def test_a_terminal_has_a_size_and_takes_input(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"PS1": "> "})
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=120))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    seen: list[bytes] = []
    assert terminal.wait(on_pty=seen.append).exit_code == 0
    assert b"40 120" in b"".join(seen)


def test_a_command_that_is_not_there_cannot_be_written_to(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="process with pid 12 not found"):
        sandbox.commands.send_stdin(12, "x")


def test_root_is_refused_in_one_sentence(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="a sandbox has no root"):
        sandbox.commands.run("id", user="root")
    with pytest.raises(SandboxException, match="a sandbox has no root"):
        sandbox.files.write("/etc/motd", "x", user="root")
    assert sandbox.commands.run("true", user="user").exit_code == 0


async def test_the_asynchronous_client_runs_commands_at_once(sandbox: Sandbox, connection: Connection) -> None:
    other = await AsyncSandbox.connect(sandbox.sandbox_id, **connection)
    results = await asyncio.gather(*(other.commands.run(f"sleep 0.3; echo {n}") for n in range(8)))
    assert [one.stdout for one in results] == [f"{n}\n" for n in range(8)]
