"""A daemon that lies about programs and processes: the gateway neither hangs nor grows nor believes it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.client.remote_shell import RemoteShell
from sandbox.client.replies import PROCESSES_LIMIT
from sandbox.errors import Conflict, DaemonLost, Exhausted, InputNotTaken, NotFound, SandboxError
from sandbox.protocols import ProcessSpec, ProgramResult, ProgramSpec
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Answer, Peer, always, fake_daemon

OUT, ERR = pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR
STDOUT_PATH = "/workspace/.airlock/processes/p.stdout"
HUGE = 2**64 - 1
MIB = 1024 * 1024
PATIENCE_S = 10.0

Ask = Callable[[RemoteProcesses], Awaitable[object]]


async def refused(directory: Path, answer: Answer, ask: Ask, *, said: str | None = None, **settings: Any) -> None:
    """Assert that the call ends soon as DaemonLost and that the daemon is not spoken to again."""
    async with fake_daemon(directory, answer) as daemon:
        processes = RemoteProcesses(daemon.channel, **settings)
        with pytest.raises(DaemonLost, match=said):
            await asyncio.wait_for(ask(processes), PATIENCE_S)
        assert daemon.channel.lost is not None
        asked = len(daemon.requests)
        with pytest.raises(DaemonLost):
            await processes.list()
        assert len(daemon.requests) == asked


def running(**changes: Any) -> pb.Process:
    """Return a process as an honest daemon tells of it, but for the changes."""
    honest: dict[str, Any] = {
        "id": "p",
        "pid": 7,
        "argv": [b"cat"],
        "running": True,
        "started_ns": 1,
        "stdout": pb.ProcessOutput(),
        "stderr": pb.ProcessOutput(),
        **changes,
    }
    return pb.Process(**honest)


def over(**changes: Any) -> pb.Process:
    return running(**{"running": False, "outcome": pb.OUTCOME_EXITED, **changes})


def start(processes: RemoteProcesses, **changes: Any) -> Awaitable[object]:
    return processes.start(ProcessSpec("p", [b"cat", b"--"], **{"stdin": True, **changes}))


def wait(processes: RemoteProcesses) -> Awaitable[object]:
    return processes.wait("p", wait_s=0)


LIES = {
    "another id": running(id="q"),
    "no id": running(id=""),
    "an id that is a path": running(id="../p"),
    "runs and exited": running(outcome=pb.OUTCOME_EXITED),
    "runs with an exit code": running(exit_code=1),
    "runs with a signal": running(signal=9),
    "over with no outcome": over(outcome=0),
    "an unknown outcome": over(outcome=99),
    "exited by a signal": over(signal=9),
    "signalled by none": over(outcome=pb.OUTCOME_SIGNALLED),
    "exit code 256": over(exit_code=256),
    "exit code -1": over(exit_code=-1),
    "signal 65": over(outcome=pb.OUTCOME_SIGNALLED, signal=65),
    "runs without a pid": running(pid=0),
    "an impossible pid": running(pid=2**31),
    "an impossible tree": running(tree=2**32 - 1),
    "started before time": running(started_ns=-1),
    "an impossible duration": running(duration_us=HUGE),
    "arguments past their limit": running(argv=[b"x" * 4097]),
    "empty arguments past their limit": running(argv=[b""] * 4097),
    "an argument with NUL": running(argv=[b"a\0b"]),
    "a terminal of no size": running(terminal=True, stderr=None),
    "a terminal too large": running(terminal=True, stderr=None, size=pb.WindowSize(rows=24, columns=4097)),
    "a terminal and a stderr": running(terminal=True, size=pb.WindowSize(rows=24, columns=80)),
    "an impossible size": running(stdout=pb.ProcessOutput(size_bytes=HUGE)),
    "a ring past the end": running(stdout=pb.ProcessOutput(size_bytes=1, ring_offset=2)),
    "a file past the end": running(stdout=pb.ProcessOutput(size_bytes=1, path=STDOUT_PATH, path_bytes=2)),
    "a file without a path": running(stdout=pb.ProcessOutput(size_bytes=1, path_bytes=1)),
    "a path elsewhere": running(stdout=pb.ProcessOutput(path="/etc/passwd")),
    "a path that climbs": running(stdout=pb.ProcessOutput(path="/workspace/.airlock/processes/../../p.stdout")),
    "another's path": running(stdout=pb.ProcessOutput(path="/workspace/.airlock/processes/q.stdout")),
    "stderr for stdout": running(stdout=pb.ProcessOutput(path="/workspace/.airlock/processes/p.stderr")),
    "a path with an escape": running(stdout=pb.ProcessOutput(path=STDOUT_PATH + "\x1b[2J")),
    "stdout for stderr": running(stderr=pb.ProcessOutput(path=STDOUT_PATH)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_process_that_cannot_be_ends_the_channel(tmp_path: Path, lie: pb.Process) -> None:
    asks: dict[str, Ask] = {
        "wait": wait,
        "write": lambda processes: processes.write("p", b"x", wait_s=0),
        "resize": lambda processes: processes.resize("p", 24, 80),
        "signal": lambda processes: processes.signal("p", 15),
        "remove": lambda processes: processes.remove("p"),
        "start": start,
    }
    for name, ask in asks.items():
        directory = tmp_path / name
        directory.mkdir()
        await refused(directory, always(process=lie), ask)


async def test_the_honest_ones_among_them_are_believed(tmp_path: Path) -> None:
    for number, reply in enumerate((running(), over(), over(exit_code=255))):
        directory = tmp_path / str(number)
        directory.mkdir()
        async with fake_daemon(directory, always(process=reply)) as daemon:
            assert (await RemoteProcesses(daemon.channel).wait("p", wait_s=0)).running == reply.running
            assert daemon.channel.lost is None


@pytest.mark.parametrize(
    "lie",
    [
        running(argv=[]),
        running(argv=[b"rm"]),
        running(argv=[b"cat", b"--", b"more"]),
        running(argv=[b"cat --"]),
        running(stderr=None),
        running(stderr=None, terminal=True, size=pb.WindowSize(rows=24, columns=80)),
    ],
    ids=["no program", "another program", "more arguments", "joined arguments", "merged streams", "a terminal"],
)
async def test_a_start_that_is_not_the_one_asked_for_ends_the_channel(tmp_path: Path, lie: pb.Process) -> None:
    await refused(tmp_path, always(process=lie), start)


async def test_a_start_whose_arguments_are_cut_inside_one_is_the_one_asked_for(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(process=running(argv=[b"cat", b"-"]))) as daemon:
        await start(RemoteProcesses(daemon.channel))
        assert daemon.channel.lost is None


@pytest.mark.parametrize(
    "lie",
    [
        pb.ProcessListReply(processes=[running(id=f"p{number}") for number in range(PROCESSES_LIMIT + 1)]),
        pb.ProcessListReply(processes=[running(), running()]),
        pb.ProcessListReply(processes=[running(id="")]),
        pb.ProcessListReply(processes=[running(id="a/b")]),
        pb.ProcessListReply(processes=[running(id="x" * 65)]),
        pb.ProcessListReply(processes=[running(id="p\n")]),
        pb.ProcessListReply(processes=[running(pid=0)]),
        pb.ProcessListReply(strays=2**32 - 1),
    ],
    ids=["65", "twice", "no id", "a path", "too long", "a newline", "no pid", "strays"],
)
async def test_a_list_that_cannot_be_ends_the_channel(tmp_path: Path, lie: pb.ProcessListReply) -> None:
    await refused(tmp_path, always(process_list=lie), lambda processes: processes.list())


@pytest.mark.parametrize(
    "lie",
    [
        pb.ProcessReadReply(data=b"x" * 101, offset=50, size_bytes=1000),
        pb.ProcessReadReply(data=b"x", offset=49, size_bytes=1000),
        pb.ProcessReadReply(data=b"x", offset=0, size_bytes=1000),
        pb.ProcessReadReply(data=b"xx", offset=50, size_bytes=51),
        pb.ProcessReadReply(data=b"x", offset=HUGE, size_bytes=1000),
        pb.ProcessReadReply(offset=51, size_bytes=40),
        pb.ProcessReadReply(data=b"x", offset=50, size_bytes=HUGE),
        pb.ProcessReadReply(data=b"x", offset=50, size_bytes=1000, end=True),
        pb.ProcessReadReply(offset=50, size_bytes=1000, end=True),
    ],
    ids=["too much", "back", "from 0", "past the end", "far away", "beyond", "impossible", "end too soon", "no end"],
)
async def test_a_page_of_output_that_cannot_be_ends_the_channel(tmp_path: Path, lie: pb.ProcessReadReply) -> None:
    await refused(tmp_path, always(process_read=lie), lambda processes: processes.read("p", offset=50, limit_bytes=100))


@pytest.mark.parametrize(
    "member",
    [
        {"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED)},
        {"entry": pb.Entry(name=b"p", type=pb.ENTRY_TYPE_FILE)},
        {"output": pb.Output(stream=OUT, data=b"x")},
        {"process_list": pb.ProcessListReply()},
        {"failure": pb.Failure(message="no kind")},
    ],
    ids=["exec", "entry", "output", "list", "no kind"],
)
async def test_an_answer_to_another_question_ends_the_channel(tmp_path: Path, member: dict[str, object]) -> None:
    await refused(tmp_path, always(**member), wait)


async def test_a_wait_that_is_never_answered_ends_soon_after_its_time(tmp_path: Path) -> None:
    async def silence(request: pb.Request, peer: Peer) -> None:
        await peer.hung_up()

    for number, ask in enumerate((wait, lambda processes: processes.read("p", offset=0, wait_s=0.1))):
        directory = tmp_path / str(number)
        directory.mkdir()
        await refused(directory, silence, ask, said="did not answer", answer_timeout_s=0.1)


async def test_strays_that_have_a_name_end_the_channel(tmp_path: Path) -> None:
    await refused(tmp_path, always(process=running()), lambda processes: processes.signal("", 9, tree=True))


@pytest.mark.parametrize("kind", [pb.FAILURE_KIND_TOO_LARGE, pb.FAILURE_KIND_CONFLICT])
async def test_input_taken_in_part_is_reported_in_bytes_and_never_more_than_were_sent(
    tmp_path: Path, kind: pb.FailureKind
) -> None:
    for taken_bytes in (0, 3, 5):
        directory = tmp_path / str(taken_bytes)
        directory.mkdir()
        failure = pb.Failure(kind=kind, message="reported", errno=32, taken_bytes=taken_bytes)
        async with fake_daemon(directory, always(failure=failure)) as daemon:
            with pytest.raises(InputNotTaken, match="reported") as raised:
                await RemoteProcesses(daemon.channel).write("p", b"12345", wait_s=0)
            assert daemon.channel.lost is None
        reported = raised.value
        assert (reported.taken_bytes, reported.closed, reported.errno) == (
            taken_bytes,
            kind == pb.FAILURE_KIND_CONFLICT,
            32,
        )
    for taken_bytes in (6, HUGE):
        directory = tmp_path / str(taken_bytes)
        directory.mkdir()
        lie = always(failure=pb.Failure(kind=kind, taken_bytes=taken_bytes))
        await refused(directory, lie, lambda processes: processes.write("p", b"12345", wait_s=0), said="more input")


@pytest.mark.parametrize("kind", [pb.FAILURE_KIND_TOO_LARGE, pb.FAILURE_KIND_INTERNAL])
async def test_input_that_a_call_without_any_took_ends_the_channel(tmp_path: Path, kind: pb.FailureKind) -> None:
    await refused(tmp_path, always(failure=pb.Failure(kind=kind, taken_bytes=1)), wait)


@pytest.mark.parametrize("number", [4096, 2**32 - 1])
async def test_an_errno_that_no_kernel_has_ends_the_channel(tmp_path: Path, number: int) -> None:
    for kind, ask in (
        (pb.FAILURE_KIND_NOT_FOUND, start),
        (pb.FAILURE_KIND_CONFLICT, lambda processes: processes.write("p", b"x", wait_s=0)),
    ):
        directory = tmp_path / str(kind)
        directory.mkdir()
        await refused(directory, always(failure=pb.Failure(kind=kind, errno=number)), ask, said="errno")


@pytest.mark.parametrize("number", [0, 11, 4095])
async def test_a_start_that_found_no_process_says_so_with_its_errno(tmp_path: Path, number: int) -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_EXHAUSTED, message="no process left", errno=number)
    async with fake_daemon(tmp_path, always(failure=failure)) as daemon:
        with pytest.raises(Exhausted, match="no process left") as raised:
            await start(RemoteProcesses(daemon.channel))
        assert daemon.channel.lost is None
    assert raised.value.errno == (number or None)


@pytest.mark.parametrize("kind, error", [(pb.FAILURE_KIND_NOT_FOUND, NotFound), (pb.FAILURE_KIND_CONFLICT, Conflict)])
async def test_a_failure_is_no_breach_and_its_message_is_plain(
    tmp_path: Path, kind: pb.FailureKind, error: type[SandboxError]
) -> None:
    message = "no\x1b[31m such \x00process" + "x" * 10_000
    async with fake_daemon(tmp_path, always(failure=pb.Failure(kind=kind, message=message))) as daemon:
        with pytest.raises(error) as raised:
            await RemoteProcesses(daemon.channel).wait("p", wait_s=0)
        assert daemon.channel.lost is None
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) <= 4096


async def nothing(stream: str, data: bytes) -> None:
    """Take output."""


async def program(channel: Channel, **changes: Any) -> ProgramResult:
    stdin, on_output = changes.pop("stdin", None), changes.pop("on_output", nothing)
    asked = ProgramSpec([b"cat"], **{"timeout_s": 5, "output_limit_bytes": 100, **changes})
    shell = RemoteShell(channel, grace_s=0.3)
    return await asyncio.wait_for(shell.run_program(asked, stdin=stdin, on_output=on_output), PATIENCE_S)


async def lost(directory: Path, answer: Answer, **changes: Any) -> ProgramResult:
    """Assert that a program ends soon as daemon_lost, and the channel with it."""
    async with fake_daemon(directory, answer) as daemon:
        result = await program(daemon.channel, **changes)
        assert result.outcome == "daemon_lost"
        assert "may have run" in result.message
        assert daemon.channel.lost is not None
    return result


def ends(*members: dict[str, object]) -> Answer:
    async def answer(request: pb.Request, peer: Peer) -> None:
        for member in members:
            await peer.reply(**member)

    return answer


ENDED = {"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED)}
BYTE = {"output": pb.Output(stream=OUT, data=b"x")}
STARTED = {"started": pb.Started(pid=7)}


@pytest.mark.parametrize(
    "members",
    [
        [STARTED, STARTED, ENDED],
        [{"output": pb.Output(data=b"x")}],
        [{"output": pb.Output(stream=OUT)}],
        [{"output": pb.Output(stream=9, data=b"x")}],
        [{"output": pb.Output(stream=OUT, data=b"x" * 101)}],
        [{"output": pb.Output(stream=OUT, data=b"x" * 50)}, {"output": pb.Output(stream=ERR, data=b"x" * 51)}],
        [{"chunk": pb.Chunk(data=b"x")}],
        [{"process": running()}],
        [BYTE, ENDED],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, output_bytes=1)}],
        [BYTE, {"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, output_bytes=HUGE)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, output=[pb.Output(stream=OUT, data=b"x")])}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, tail=[pb.Output(stream=OUT, data=b"x")])}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=pb.Evicted(path="/workspace/a"))}],
        [{"exec": pb.ExecReply()}],
        [{"exec": pb.ExecReply(outcome=99)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=256)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=1, signal=9)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_SIGNALLED)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_FAILED_TO_START, errno=4096)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, duration_us=HUGE)}],
        [{"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=1, pids_refused=HUGE)}],
        [{"failure": pb.Failure(message="no kind")}],
    ],
    ids=[
        *("started twice", "no stream", "no bytes", "unknown stream", "too much", "too much in all", "a chunk"),
        *("a process", "uncounted", "lost bytes", "impossible count", "kept", "a tail", "evicted", "no outcome"),
        *("unknown outcome", "exit code", "exited by signal", "signalled by none", "errno", "duration", "refused"),
        "no kind",
    ],
)
async def test_a_program_that_cannot_have_run_so_is_a_lost_daemon(
    tmp_path: Path, members: list[dict[str, object]]
) -> None:
    await lost(tmp_path, ends(*members))


async def test_a_program_without_an_end_is_lost_after_its_time(tmp_path: Path) -> None:
    async def silence(request: pb.Request, peer: Peer) -> None:
        await peer.reply(**STARTED)
        await peer.hung_up()

    result = await lost(tmp_path, silence, timeout_s=0.1)
    assert "did not answer" in result.message


async def test_output_that_drips_for_ever_is_lost_after_its_time(tmp_path: Path) -> None:
    async def drip(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(**BYTE)
            await asyncio.sleep(0.005)

    result = await lost(tmp_path, drip, timeout_s=0.1, output_limit_bytes=MIB)
    assert 0 < result.output_bytes < MIB


async def test_a_daemon_that_takes_no_input_costs_the_call_its_time_and_not_more(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    async def deaf(request: pb.Request, peer: Peer) -> None:
        await asyncio.Event().wait()

    await lost(tmp_path, deaf, timeout_s=0.1, stdin=endless())


async def test_a_daemon_that_hangs_up_on_input_is_lost_at_once(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    async def hang_up(request: pb.Request, peer: Peer) -> None:
        await peer.input()
        raise OSError("gone")

    await lost(tmp_path, hang_up, timeout_s=3600, stdin=endless())


async def test_a_flood_of_output_costs_a_frame_of_memory(tmp_path: Path) -> None:
    flood = {"output": pb.Output(stream=OUT, data=b"x" * MIB)}

    async def answer(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(**flood)

    async with fake_daemon(tmp_path, answer) as daemon:
        tracemalloc.start()
        try:
            result = await program(daemon.channel, output_limit_bytes=128 * MIB)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (result.outcome, result.output_bytes) == ("daemon_lost", 129 * MIB)
    # Both ends are in this process: what the flood is made of, what is under way, what arrived.
    assert peak_bytes < 16 * MIB


def sandbox_of(channel: Channel) -> ChannelSandbox:
    return ChannelSandbox("s1", SandboxSpec("tenant", "thread", "image"), channel, pb.Posture())


@pytest.mark.parametrize(
    "member",
    [
        {"health": pb.HealthReply()},
        {"health": pb.HealthReply(calls=2**32 - 1)},
        {"health": pb.HealthReply(calls=1, processes=65)},
        {"health": pb.HealthReply(calls=1, pids=HUGE)},
        {"health": pb.HealthReply(calls=1, uptime_ms=HUGE)},
        {"health": pb.HealthReply(calls=1, memory_bytes=HUGE)},
        {"health": pb.HealthReply(calls=1, memory_kills=HUGE)},
        {"health": pb.HealthReply(calls=1, pids_refused=HUGE)},
        {"health": pb.HealthReply(calls=1, workspace=pb.DiskCount(size_bytes=HUGE))},
        {"health": pb.HealthReply(calls=1, tmp=pb.DiskCount(files=HUGE))},
        {"entry": pb.Entry(name=b"a", type=pb.ENTRY_TYPE_FILE)},
        {"failure": pb.Failure(kind=pb.FAILURE_KIND_INTERNAL, message="not well\x1b[2J")},
    ],
    ids=[
        "no call",
        "calls",
        "processes",
        "pids",
        "uptime",
        "memory",
        "kills",
        "refused",
        "disk",
        "files",
        "entry",
        "failure",
    ],
)
async def test_health_that_none_can_have_ends_the_channel(tmp_path: Path, member: dict[str, object]) -> None:
    async with fake_daemon(tmp_path, always(**member)) as daemon:
        sandbox = sandbox_of(daemon.channel)
        assert not await sandbox.ping()
        assert not sandbox.alive
