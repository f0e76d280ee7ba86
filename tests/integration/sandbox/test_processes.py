"""Programs with streams and background processes of a live sandbox, from the gateway's end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
import pytest_asyncio

from sandbox.client.channel import Channel
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.engines.engine import Engine
from sandbox.errors import Conflict, InvalidArgument, NotFound
from sandbox.protocols import Process, ProcessSpec, ProgramResult, ProgramSpec
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024
PATIENCE_S = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: Engine) -> AsyncIterator[Sandbox]:
    made = await engine.create(spec("processes"))
    yield made
    await engine.remove(made.id)


class Output:
    """What a program wrote."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()

    async def take(self, stream: str, data: bytes) -> None:
        (self.stdout if stream == "stdout" else self.stderr).extend(data)


async def program(sandbox: Sandbox, *argv: bytes, **changes: Any) -> tuple[ProgramResult, Output]:
    output = Output()
    stdin, on_output = changes.pop("stdin", None), changes.pop("on_output", output.take)
    asked = ProgramSpec(argv, **{"timeout_s": PATIENCE_S, "output_limit_bytes": 64 * MIB, **changes})
    ran = sandbox.shell.run_program(asked, stdin=stdin, on_output=on_output)
    return await asyncio.wait_for(ran, 2 * PATIENCE_S), output


async def pieces(data: bytes, count: int = 1) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield data


async def start(processes: RemoteProcesses, process_id: str, *argv: bytes, **changes: Any) -> Process:
    return await processes.start(ProcessSpec(process_id, argv, **changes))


async def followed(processes: RemoteProcesses, process_id: str, *, stderr: bool = False) -> bytes:
    """Read a stream to its end."""
    data = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            page = await processes.read(process_id, stderr=stderr, offset=len(data), wait_s=5)
            assert page.offset == len(data)
            data += page.data
            if page.end:
                return bytes(data)


async def read_until(processes: RemoteProcesses, process_id: str, wanted: bytes) -> bytes:
    data = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in data:
            data += (await processes.read(process_id, offset=len(data), wait_s=5)).data
    return bytes(data)


async def test_a_program_has_streams_of_bytes_an_environment_and_a_directory(sandbox: Sandbox) -> None:
    result, output = await program(
        sandbox,
        b"/bin/sh",
        b"-c",
        b'pwd; printf "$KEY"; printf "\\377\\000" >&2; cat; exit 7',
        env={"KEY": "välue"},
        cwd="/tmp",
        stdin=pieces(b"\x00in\xff"),
    )
    assert (result.outcome, result.exit_code, result.signal) == ("exited", 7, None)
    assert bytes(output.stdout) == "/tmp\nvälue".encode() + b"\x00in\xff"
    assert bytes(output.stderr) == b"\xff\x00"
    assert result.output_bytes == len(output.stdout) + len(output.stderr)


async def test_a_program_that_writes_while_it_reads_gets_fifty_mebibytes_and_gives_them_back(sandbox: Sandbox) -> None:
    result, output = await program(sandbox, b"cat", stdin=pieces(b"0123456789abcdef" * 65536, 50))
    assert (result.outcome, result.exit_code) == ("exited", 0)
    assert result.output_bytes == len(output.stdout) == 50 * MIB


async def test_a_program_that_leaves_its_input_unread_ends_the_call(sandbox: Sandbox) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    result, _ = await program(sandbox, b"/bin/sh", b"-c", b"exit 3", stdin=endless())
    assert (result.outcome, result.exit_code) == ("exited", 3)
    result, output = await program(sandbox, b"head", b"-c", b"5", stdin=endless())
    assert (result.outcome, result.exit_code, bytes(output.stdout)) == ("exited", 0, b"xxxxx")
    assert sandbox.alive


async def test_a_program_waits_for_the_reader_of_its_output(sandbox: Sandbox) -> None:
    blocked, go_on, seen = asyncio.Event(), asyncio.Event(), 0

    async def slow(stream: str, data: bytes) -> None:
        nonlocal seen
        blocked.set()
        await go_on.wait()
        seen += len(data)

    script = b"head -c 16777216 /dev/zero; : > /workspace/all-written"
    running = asyncio.ensure_future(program(sandbox, b"/bin/sh", b"-c", script, on_output=slow))
    await blocked.wait()
    # In the time that four times as much takes to pass by, it would be through.
    other, _ = await program(sandbox, b"head", b"-c", b"67108864", b"/dev/zero")
    assert other.output_bytes == 64 * MIB
    with pytest.raises(NotFound):
        await sandbox.files.stat("/workspace/all-written")
    go_on.set()
    result, _ = await running
    assert (result.outcome, seen, result.output_bytes) == ("exited", 16 * MIB, 16 * MIB)


async def test_a_program_that_writes_too_much_is_killed_and_what_came_before_arrives(sandbox: Sandbox) -> None:
    result, output = await program(sandbox, b"yes", output_limit_bytes=3 * MIB)
    assert result.outcome == "output_limit"
    assert "3,145,728 bytes" in result.message
    assert len(output.stdout) <= 3 * MIB
    assert text(await run(sandbox.shell, "pgrep -x yes; true")) == ""


async def test_a_time_limit_ends_a_program_and_what_it_started(sandbox: Sandbox) -> None:
    script = b"echo begun; setsid sleep 4711 & trap '' TERM; sleep 4711"
    result, output = await program(sandbox, b"/bin/sh", b"-c", script, timeout_s=0.5)
    assert result.outcome == "timed_out"
    assert "0.5 s" in result.message
    assert bytes(output.stdout) == b"begun\n"
    assert text(await run(sandbox.shell, "pgrep -f 'sleep 471[1]'; true")) == ""


async def test_cancelling_a_program_kills_what_it_started(sandbox: Sandbox) -> None:
    begun = asyncio.Event()

    async def note(stream: str, data: bytes) -> None:
        begun.set()

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    script = b"setsid sleep 4712 & echo begun; cat; sleep 4712"
    running = asyncio.ensure_future(program(sandbox, b"/bin/sh", b"-c", script, on_output=note, stdin=silent()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gone = "while pgrep -f 'sleep 471[2]' >/dev/null; do sleep 0.02; done; echo gone"
    assert text(await run(sandbox.shell, gone)) == "gone\n"
    assert sandbox.alive


@pytest.mark.parametrize(
    "argv, number, said",
    [
        ((b"no-such-program",), errno.ENOENT, "no such program"),
        ((b"/etc/passwd",), errno.EACCES, "may not be executed"),
        ((b"/workspace",), errno.EACCES, "may not be executed"),
    ],
)
async def test_a_program_that_cannot_start_has_an_errno(
    sandbox: Sandbox, argv: tuple[bytes, ...], number: int, said: str
) -> None:
    result, _ = await program(sandbox, *argv)
    assert (result.outcome, result.errno) == ("failed_to_start", number)
    assert said in result.message


async def test_about_a_mebibyte_of_arguments_works_and_more_is_refused(sandbox: Sandbox) -> None:
    argument = b"x" * (128 * 1024 - 1)
    script = b'for a; do printf %s "$a"; done | wc -c'
    result, output = await program(sandbox, b"/bin/sh", b"-c", script, b"sh", *[argument] * 8)
    assert (result.outcome, int(output.stdout)) == ("exited", 8 * len(argument))
    result, _ = await program(sandbox, b"echo", *[argument] * 9)
    assert (result.outcome, "and the limit is" in result.message) == ("failed_to_start", True)
    result, _ = await program(sandbox, b"echo", argument + b"x")
    assert (result.outcome, "the kernel allows 131,071" in result.message) == ("failed_to_start", True)
    assert sandbox.alive


async def test_a_process_is_started_listed_read_written_to_and_removed(sandbox: Sandbox) -> None:
    processes = sandbox.processes
    made = await start(processes, "echoes", b"/bin/sh", b"-c", b"echo err >&2; exec cat", stdin=True)
    assert (made.id, made.running, made.outcome, made.stdin_open, made.terminal) == ("echoes", True, None, True, False)
    assert made.argv == (b"/bin/sh", b"-c", b"echo err >&2; exec cat")
    with pytest.raises(Conflict):
        await start(processes, "echoes", b"true")
    (listed,) = [item for item in (await processes.list()).processes if item.id == "echoes"]
    assert listed.tree == 1
    await processes.write("echoes", b"one\n", wait_s=5)
    assert await read_until(processes, "echoes", b"one\n") == b"one\n"
    await processes.write("echoes", b"two\x00\xff", end=True, wait_s=5)
    assert await followed(processes, "echoes") == b"one\ntwo\x00\xff"
    assert await followed(processes, "echoes", stderr=True) == b"err\n"
    ended = await processes.wait("echoes", wait_s=30)
    assert (ended.running, ended.outcome, ended.exit_code) == (False, "exited", 0)
    assert ended.stderr is not None
    assert (ended.stdout.size_bytes, ended.stderr.size_bytes, ended.stdout.closed) == (9, 4, True)
    assert (await processes.remove("echoes")).id == "echoes"
    with pytest.raises(NotFound, match="echoes"):
        await processes.wait("echoes", wait_s=0)


async def test_output_that_memory_does_not_hold_is_in_a_file_and_read_by_offset(sandbox: Sandbox) -> None:
    processes = sandbox.processes
    await start(processes, "counts", b"seq", b"1", b"200000")
    whole = b"".join(b"%d\n" % number for number in range(1, 200_001))
    assert await followed(processes, "counts") == whole
    ended = await processes.wait("counts", wait_s=30)
    assert ended.stdout.path == "/workspace/.airlock/processes/counts.stdout"
    assert ended.stdout.size_bytes == ended.stdout.path_bytes == len(whole)
    assert ended.stdout.ring_offset > 0
    page = await processes.read("counts", offset=1000, limit_bytes=10)
    assert (page.data, page.offset, page.end, page.size_bytes) == (whole[1000:1010], 1000, False, len(whole))
    beyond = await processes.read("counts", offset=10**12)
    assert (beyond.data, beyond.end) == (b"", True)
    await processes.remove("counts")
    (match,) = (await sandbox.files.grep("/workspace/.airlock/processes/counts.stdout", "^123456$")).matches
    assert match.line == 123_456


async def test_a_terminal_has_a_type_a_size_and_an_end_of_file(sandbox: Sandbox) -> None:
    processes = sandbox.processes
    script = b'test -t 0 && echo "$TERM"; stty size; read line; stty size; read line || echo over'
    made = await start(processes, "shows", b"/bin/sh", b"-c", script, terminal=True, rows=33, columns=101)
    assert (made.terminal, made.rows, made.columns, made.stderr) == (True, 33, 101, None)
    assert b"xterm-256color\r\n33 101\r\n" in await read_until(processes, "shows", b"101")
    resized = await processes.resize("shows", 40, 120)
    assert (resized.rows, resized.columns) == (40, 120)
    await processes.write("shows", b"\n", wait_s=5)
    await read_until(processes, "shows", b"40 120")
    await processes.write("shows", b"", end=True, wait_s=5)
    assert (await followed(processes, "shows")).endswith(b"over\r\n")
    await processes.remove("shows")


async def test_signals_reach_the_group_or_the_whole_tree(sandbox: Sandbox) -> None:
    processes = sandbox.processes
    # It is ready when the child has a session of its own, and the shell has no other child.
    script = b"setsid /bin/sh -c 'echo ready; exec sleep 4713' & wait"
    await start(processes, "falls", b"/bin/sh", b"-c", script)
    await read_until(processes, "falls", b"ready\n")
    await processes.signal("falls", SIGTERM)
    ended = await processes.wait("falls", wait_s=30)
    assert (ended.outcome, ended.signal, ended.exit_code) == ("signalled", SIGTERM, None)
    assert ended.tree == 1
    assert not ended.stdout.closed
    await processes.signal("falls", SIGKILL, tree=True)
    assert await followed(processes, "falls") == b"ready\n"
    assert (await processes.remove("falls")).outcome == "signalled"


async def test_a_process_past_its_time_limit_is_over_with_all_it_started(sandbox: Sandbox) -> None:
    processes = sandbox.processes
    await start(processes, "late", b"/bin/sh", b"-c", b"setsid sleep 4714 & sleep 4714", timeout_s=0.3)
    ended = await processes.wait("late", wait_s=30)
    assert ended.outcome == "timed_out"
    assert await followed(processes, "late") == b""
    assert text(await run(sandbox.shell, "pgrep -f 'sleep 471[4]'; true")) == ""
    await processes.remove("late")


async def test_what_commands_left_behind_is_counted_and_can_be_killed(sandbox: Sandbox) -> None:
    await run(sandbox.shell, "setsid sleep 4715 >/dev/null 2>&1 &")
    assert (await sandbox.processes.list()).strays >= 1
    assert await sandbox.processes.signal("", SIGKILL, tree=True) is None
    assert (await sandbox.processes.list()).strays == 0


async def test_a_gateway_that_was_started_again_finds_the_processes_and_their_output(
    sandbox: Sandbox, engine: Any
) -> None:
    await start(sandbox.processes, "stays", b"/bin/sh", b"-c", b"echo before; cat", stdin=True)
    directory = engine.channel_root / sandbox.id
    assert (directory / SOCKET_NAME).is_socket()
    channel = Channel(UnixAddress(directory))
    again = RemoteProcesses(channel)
    try:
        assert "stays" in [item.id for item in (await again.list()).processes]
        await again.write("stays", b"after\n", end=True, wait_s=5)
        assert await followed(again, "stays") == b"before\nafter\n"
        assert (await again.remove("stays")).exit_code == 0
    finally:
        channel.close()


async def test_a_wait_ends_in_time_and_reports_what_a_process_does_not_have(sandbox: Sandbox) -> None:
    processes = sandbox.processes
    await start(processes, "idles", b"sleep", b"4716", merge_stderr=True)
    assert (await processes.wait("idles", wait_s=0.05)).running
    page = await processes.read("idles", offset=0, wait_s=0.05)
    assert (page.data, page.end) == (b"", False)
    for asked in (
        processes.read("idles", offset=0, stderr=True),
        processes.write("idles", b"x", wait_s=1),
        processes.resize("idles", 24, 80),
    ):
        with pytest.raises(InvalidArgument, match="idles"):
            await asked
    assert (await processes.remove("idles")).outcome == "cancelled"
    assert sandbox.alive


async def test_a_command_that_reaches_the_process_limit_says_so(sandbox: Sandbox) -> None:
    script = "i=0; while [ $i -lt 100 ]; do sleep 4717 & i=$((i+1)); done; exit 0"
    result = await run(sandbox.shell, f"{script} || exit 9")
    assert result.outcome == "exited"
    assert result.exit_code != 0
    assert "for its limit of processes" in result.message
    # The way out that it names works while there is no process to be had.
    assert await sandbox.processes.signal("", SIGKILL, tree=True) is None
    assert (await run(sandbox.shell, "/bin/true")).exit_code == 0


async def test_the_daemon_says_how_it_is(sandbox: Sandbox) -> None:
    await start(sandbox.processes, "counted", b"sleep", b"4718")
    health = await sandbox.health()
    assert health.uptime_s > 0
    assert (health.calls, health.processes) == (1, 1)
    assert health.pids >= 3
    assert health.memory_bytes > MIB
    await sandbox.processes.remove("counted")
    assert (await sandbox.health()).processes == 0
