"""RemoteProcesses and health against a daemon that keeps the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.errors import DaemonLost, FileError, InputGap, InvalidArgument, InvalidPath, TooLarge
from sandbox.protocols import Process, ProcessOutput, ProcessPage, ProcessSpec
from sandbox.sandbox import SandboxSpec
from sandbox.usage import Health
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Peer, always, fake_daemon

Ask = Callable[[RemoteProcesses], Awaitable[object]]


def running(**changes: Any) -> pb.Process:
    reported: dict[str, Any] = {
        "id": "p",
        "pid": 7,
        "argv": [b"a"],
        "running": True,
        "stdout": pb.ProcessOutput(),
        "stderr": pb.ProcessOutput(),
        **changes,
    }
    return pb.Process(**reported)


async def test_a_start_says_what_to_run_and_where_output_goes(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(process=running(argv=[b"a", b"\xff"]))) as daemon:
        processes = RemoteProcesses(daemon.channel, env={"TOKEN": "t", "A": "old"}, file_limit_bytes=1000)
        changes = {"env": {"A": "new"}, "cwd": "/tmp//x/", "stdin": True, "timeout_s": 0.0015}
        await processes.start(ProcessSpec("p", [b"a", b"\xff"], **changes))
        asked = daemon.requests[0].process_start
    assert (asked.id, list(asked.argv), asked.cwd) == ("p", [b"a", b"\xff"], "/tmp/x")
    assert dict(asked.env) == {"TOKEN": "t", "A": "new"}
    assert (asked.stdin, asked.terminal, asked.merge_stderr, asked.timeout_ms) == (True, False, False, 2)
    assert (asked.output_directory, asked.file_limit_bytes) == ("/workspace/.airlock/processes", 1000)
    assert not asked.HasField("size")


async def test_a_terminal_is_asked_for_with_its_size(tmp_path: Path) -> None:
    made = running(terminal=True, size=pb.WindowSize(rows=1, columns=4096))
    made.ClearField("stderr")
    async with fake_daemon(tmp_path, always(process=made)) as daemon:
        changes = {"terminal": True, "rows": 1, "columns": 4096}
        process = await RemoteProcesses(daemon.channel).start(ProcessSpec("p", [b"a"], **changes))
        asked = daemon.requests[0].process_start
    assert (asked.size.rows, asked.size.columns, asked.timeout_ms) == (1, 4096, 0)
    assert (process.rows, process.columns, process.stderr) == (1, 4096, None)


async def test_an_ended_process_is_reported_completely(tmp_path: Path) -> None:
    path = "/workspace/.airlock/processes/p.stdout"
    reported = running(
        running=False,
        outcome=pb.OUTCOME_SIGNALLED,
        signal=15,
        started_ns=3,
        duration_us=4,
        tree=2,
        stdout=pb.ProcessOutput(size_bytes=100_000, ring_offset=34_464, path=path, path_bytes=90_000, closed=True),
    )
    async with fake_daemon(tmp_path, always(process=reported)) as daemon:
        process = await RemoteProcesses(daemon.channel).wait("p", wait_s=0)
    assert process == Process(
        id="p",
        pid=7,
        argv=(b"a",),
        running=False,
        outcome="signalled",
        exit_code=None,
        signal=15,
        started_ns=3,
        duration_us=4,
        terminal=False,
        rows=0,
        columns=0,
        stdin_open=False,
        stdout=ProcessOutput(100_000, 34_464, path, 90_000, closed=True),
        stderr=ProcessOutput(0, 0, "", 0, closed=False),
        tree=2,
    )


async def test_all_processes_are_listed_and_strays_counted(tmp_path: Path) -> None:
    reported = pb.ProcessListReply(processes=[running(id="b"), running(id="a")], strays=5)
    async with fake_daemon(tmp_path, always(process_list=reported)) as daemon:
        found = await RemoteProcesses(daemon.channel).list()
    assert ([process.id for process in found.processes], found.strays) == (["b", "a"], 5)


async def test_a_page_of_output_reports_lost_bytes_and_the_end(tmp_path: Path) -> None:
    reported = pb.ProcessReadReply(data=b"\x00\xff", offset=90, size_bytes=92, end=True)
    async with fake_daemon(tmp_path, always(process_read=reported)) as daemon:
        page = await RemoteProcesses(daemon.channel).read("p", stderr=True, offset=10, limit_bytes=50, wait_s=0.5)
        asked = daemon.requests[0].process_read
    assert page == ProcessPage(b"\x00\xff", 90, end=True, size_bytes=92)
    assert (asked.id, asked.stream, asked.offset) == ("p", pb.OUTPUT_STREAM_STDERR, 10)
    assert (asked.limit_bytes, asked.wait_ms) == (50, 500)


@pytest.mark.parametrize("size_bytes, end", [(40, False), (40, True), (50, False)])
async def test_a_page_from_the_end_or_beyond_is_empty(tmp_path: Path, size_bytes: int, end: bool) -> None:
    reported = pb.ProcessReadReply(offset=50, size_bytes=size_bytes, end=end)
    async with fake_daemon(tmp_path, always(process_read=reported)) as daemon:
        page = await RemoteProcesses(daemon.channel).read("p", offset=50)
        assert (page.data, page.offset, page.end) == (b"", 50, end)
        assert daemon.channel.lost is None


async def test_input_a_size_and_a_signal_reach_the_daemon(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(process=running())) as daemon:
        processes = RemoteProcesses(daemon.channel)
        await processes.write("p", b"x" * 2**20, end=True, wait_s=1, offset=0, request_id="one")
        await processes.resize("p", 30, 90)
        assert await processes.signal("p", 15, tree=True) is not None
        await processes.remove("p")
        write, resize, signal, remove = daemon.requests
    assert (len(write.process_write.data), write.process_write.end, write.process_write.wait_ms) == (2**20, True, 1000)
    assert (write.process_write.offset, write.process_write.request_id) == (0, "one")
    assert write.process_write.HasField("offset")
    assert (resize.process_resize.size.rows, resize.process_resize.size.columns) == (30, 90)
    assert (signal.process_signal.signal, signal.process_signal.tree) == (15, True)
    assert remove.process_remove.id == "p"


async def test_a_gap_in_the_input_reports_how_much_was_written(tmp_path: Path) -> None:
    gap = pb.Failure(kind=pb.FAILURE_KIND_INPUT_GAP, message="a gap", taken_bytes=5)
    async with fake_daemon(tmp_path, always(failure=gap)) as daemon:
        processes = RemoteProcesses(daemon.channel)
        with pytest.raises(InputGap) as caught:
            await processes.write("p", b"x", wait_s=0, offset=6)
        assert (caught.value.stdin_taken_bytes, daemon.channel.lost) == (5, None)
        with pytest.raises(DaemonLost):
            await processes.write("p", b"x", wait_s=0, offset=5)


async def test_strays_are_killed_by_an_empty_id(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(process=pb.Process(tree=1))) as daemon:
        assert await RemoteProcesses(daemon.channel).signal("", 9, tree=True) is None
        assert daemon.requests[0].process_signal == pb.ProcessSignalRequest(signal=9, tree=True)


async def test_a_wait_past_a_minute_is_cut_to_one(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(process=running())) as daemon:
        await RemoteProcesses(daemon.channel).wait("p", wait_s=float("inf"))
        assert daemon.requests[0].process_wait.wait_ms == 60_000


async def test_a_caller_that_goes_away_while_it_waits_costs_the_sandbox_nothing(tmp_path: Path) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        if request.process_wait.wait_ms:
            asked.set()
            await peer.hung_up()
            closed.set()
        await peer.reply(process=running())

    async with fake_daemon(tmp_path, answer) as daemon:
        processes = RemoteProcesses(daemon.channel)
        waiting = asyncio.create_task(processes.wait("p", wait_s=60))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(closed.wait(), 10)
        assert (await processes.wait("p", wait_s=0)).running


REFUSED: dict[str, tuple[type[FileError], Ask]] = {
    "no id": (InvalidArgument, lambda made: made.wait("", wait_s=0)),
    "a path for an id": (InvalidArgument, lambda made: made.remove("../p")),
    "an id with a newline": (InvalidArgument, lambda made: made.remove("p\n")),
    "a long id": (InvalidArgument, lambda made: made.remove("x" * 65)),
    "no program": (InvalidArgument, lambda made: made.start(ProcessSpec("p", []))),
    "a NUL": (InvalidArgument, lambda made: made.start(ProcessSpec("p", [b"a\0"]))),
    "a long argument": (TooLarge, lambda made: made.start(ProcessSpec("p", [b"a", b"x" * 131_072]))),
    "many arguments": (TooLarge, lambda made: made.start(ProcessSpec("p", [b"x" * 131_071] * 9))),
    "tiny arguments": (TooLarge, lambda made: made.start(ProcessSpec("p", [b"x"] * 500_000))),
    "a relative directory": (
        InvalidPath,
        lambda made: made.start(ProcessSpec("p", [b"a"], cwd="tmp")),
    ),
    "no time": (InvalidArgument, lambda made: made.start(ProcessSpec("p", [b"a"], timeout_s=0))),
    "eight days": (
        InvalidArgument,
        lambda made: made.start(ProcessSpec("p", [b"a"], timeout_s=691_200)),
    ),
    "no rows": (
        InvalidArgument,
        lambda made: made.start(ProcessSpec("p", [b"a"], rows=0, terminal=True)),
    ),
    "many columns": (InvalidArgument, lambda made: made.resize("p", 24, 4097)),
    "a negative offset": (InvalidArgument, lambda made: made.read("p", offset=-1)),
    "a far offset": (InvalidArgument, lambda made: made.read("p", offset=2**63)),
    "no bytes": (InvalidArgument, lambda made: made.read("p", offset=0, limit_bytes=0)),
    "too many bytes": (InvalidArgument, lambda made: made.read("p", offset=0, limit_bytes=2**20 + 1)),
    "much input": (InvalidArgument, lambda made: made.write("p", b"x" * (2**20 + 1), wait_s=0)),
    "input before the first byte": (InvalidArgument, lambda made: made.write("p", b"", wait_s=0, offset=-1)),
    "a negative wait": (InvalidArgument, lambda made: made.wait("p", wait_s=-1)),
    "no wait": (InvalidArgument, lambda made: made.write("p", b"", wait_s=float("nan"))),
    "signal 0": (InvalidArgument, lambda made: made.signal("p", 0)),
    "signal 65": (InvalidArgument, lambda made: made.signal("p", 65)),
    "TERM for strays": (InvalidArgument, lambda made: made.signal("", 15, tree=True)),
    "KILL for one stray": (InvalidArgument, lambda made: made.signal("", 9)),
}


@pytest.mark.parametrize("error, ask", REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_asked_is_refused_before_the_daemon_hears_of_it(
    tmp_path: Path, error: type[FileError], ask: Ask
) -> None:
    async with fake_daemon(tmp_path, always(process=running())) as daemon:
        with pytest.raises(error):
            await ask(RemoteProcesses(daemon.channel))
        assert daemon.requests == []
        assert daemon.channel.lost is None


def sandbox_of(channel: Channel) -> ChannelSandbox:
    return ChannelSandbox("s1", SandboxSpec("tenant", "thread", "image"), channel, pb.Posture())


async def test_health_is_what_the_daemon_says(tmp_path: Path) -> None:
    reported = pb.HealthReply(
        uptime_ms=1500, calls=2, processes=3, pids=4, memory_bytes=5, memory_kills=6, pids_refused=7
    )
    async with fake_daemon(tmp_path, always(health=reported)) as daemon:
        sandbox = sandbox_of(daemon.channel)
        assert await sandbox.health() == Health(
            uptime_s=1.5, calls=2, processes=3, pids=4, memory_bytes=5, memory_kills=6, pids_refused=7
        )
        assert await sandbox.ping()


async def test_a_daemon_that_is_slow_to_say_how_it_is_does_not_answer_a_ping_and_is_not_lost(tmp_path: Path) -> None:
    async def silence(request: pb.Request, peer: Peer) -> None:
        await peer.hung_up()

    async with fake_daemon(tmp_path, silence) as daemon:
        sandbox = sandbox_of(daemon.channel)
        assert not await asyncio.wait_for(sandbox.ping(), 10)
        assert sandbox.alive
