"""Programs with streams against a daemon that keeps the protocol."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.client.channel import Channel
from sandbox.client.remote_shell import RemoteShell
from sandbox.client.unix_address import UnixAddress
from sandbox.errors import DaemonLost, NotFound
from sandbox.protocols import ProgramResult, ProgramSpec
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Answer, Peer, always, fake_daemon

OUT, ERR = pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR
MIB = 1024 * 1024
PATIENCE_S = 10.0


async def nothing(stream: str, data: bytes) -> None:
    """Take output."""


async def program(channel: Channel, *argv: bytes, **changes: Any) -> ProgramResult:
    stdin, on_output = changes.pop("stdin", None), changes.pop("on_output", nothing)
    asked = ProgramSpec(argv or [b"cat"], **{"timeout_s": 60, "output_limit_bytes": 100, **changes})
    shell = RemoteShell(channel, env={"TOKEN": "t", "A": "old"})
    return await asyncio.wait_for(shell.run_program(asked, stdin=stdin, on_output=on_output), PATIENCE_S)


async def given(peer: Peer) -> list[int]:
    """Read input to its end; return the sizes of its pieces."""
    sizes = []
    while (piece := await peer.input()).WhichOneof("input") == "data":
        sizes.append(len(piece.data))
    return sizes


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * MIB


def exited(output_bytes: int = 0) -> pb.ExecReply:
    return pb.ExecReply(outcome=pb.OUTCOME_EXITED, output_bytes=output_bytes, duration_us=9)


async def test_the_request_says_what_to_run_and_that_everything_is_streamed(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(exec=exited())) as daemon:
        result = await program(daemon.channel, b"a", b"\xff", env={"A": "new"}, cwd="/tmp//x/", timeout_s=1.5)
        asked = daemon.requests[0].exec
    assert result == ProgramResult("exited", exit_code=0, duration_us=9)
    assert (list(asked.argv), dict(asked.env), asked.cwd) == ([b"a", b"\xff"], {"TOKEN": "t", "A": "new"}, "/tmp/x")
    assert (asked.timeout_ms, asked.stdin, asked.stream, asked.stream_limit_bytes) == (1500, False, True, 100)
    assert not asked.HasField("output_limit")


async def test_output_reaches_the_caller_in_order_and_up_to_the_limit(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(started=pb.Started(pid=7))
        await peer.reply(output=pb.Output(stream=OUT, data=b"\x00" * 99))
        await peer.reply(output=pb.Output(stream=ERR, data=b"\xff"))
        await peer.reply(exec=exited(100))

    async def take(stream: str, data: bytes) -> None:
        seen.append((stream, data))

    seen: list[tuple[str, bytes]] = []
    async with fake_daemon(tmp_path, answer) as daemon:
        assert (await program(daemon.channel, on_output=take)).output_bytes == 100
        assert daemon.channel.lost is None
    assert seen == [("stdout", b"\x00" * 99), ("stderr", b"\xff")]


async def test_input_goes_in_pieces_that_fit_a_frame_and_the_connection_serves_the_next_call(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def answer(request: pb.Request, peer: Peer) -> None:
        if request.exec.stdin:
            sizes.extend(await given(peer))
        await peer.reply(exec=exited())

    async def blocks() -> AsyncIterator[bytes]:
        for block in (b"a", b"", b"x" * (3 * MIB + 1)):
            yield block

    async with fake_daemon(tmp_path, answer) as daemon:
        await program(daemon.channel, stdin=blocks())
        await program(daemon.channel)
        assert daemon.connections == 1
    assert max(sizes) <= MIB
    assert sum(sizes) == 3 * MIB + 2
    assert 0 not in sizes


async def test_a_program_that_writes_before_it_reads_on_is_no_deadlock(tmp_path: Path) -> None:
    async def echo(request: pb.Request, peer: Peer) -> None:
        count = 0
        while (piece := await peer.input()).WhichOneof("input") == "data":
            # Nothing more is read until this is taken, and it is more than the sockets hold.
            for _ in range(4):
                await peer.reply(output=pb.Output(stream=OUT, data=piece.data))
                count += len(piece.data)
        await peer.reply(exec=exited(count))

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"x" * MIB

    async with fake_daemon(tmp_path, echo) as daemon:
        result = await program(daemon.channel, stdin=blocks(), output_limit_bytes=64 * MIB)
    assert (result.outcome, result.output_bytes) == ("exited", 32 * MIB)


async def test_a_program_that_ends_without_its_input_ends_the_call_and_the_connection(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(exec=exited())) as daemon:
        assert (await program(daemon.channel, stdin=endless())).outcome == "exited"
        assert (await program(daemon.channel)).outcome == "exited"
        assert daemon.connections == 2
        assert daemon.channel.lost is None


async def test_an_ended_program_does_not_wait_for_the_rest_of_its_input(tmp_path: Path) -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.Event().wait()

    async with fake_daemon(tmp_path, always(exec=exited())) as daemon:
        assert (await program(daemon.channel, stdin=silent())).outcome == "exited"


async def test_while_output_is_not_taken_none_is_read(tmp_path: Path) -> None:
    sent, blocked, go_on = 0, asyncio.Event(), asyncio.Event()

    async def flood(request: pb.Request, peer: Peer) -> None:
        nonlocal sent
        for _ in range(64):
            await peer.reply(output=pb.Output(stream=OUT, data=b"x" * MIB))
            sent += 1
        await peer.reply(exec=exited(64 * MIB))

    async def slow(stream: str, data: bytes) -> None:
        blocked.set()
        await go_on.wait()

    async with fake_daemon(tmp_path, flood) as daemon:
        running = asyncio.ensure_future(program(daemon.channel, on_output=slow, output_limit_bytes=64 * MIB))
        await blocked.wait()
        for _ in range(1000):  # turns of the loop in which it could be sent, were it read
            await asyncio.sleep(0)
        assert sent < 4
        go_on.set()
        assert (await running).output_bytes == 64 * MIB


async def test_time_in_which_the_caller_takes_no_output_is_not_the_daemons(tmp_path: Path) -> None:
    now_s = 0.0

    async def answer(request: pb.Request, peer: Peer) -> None:
        for _ in range(3):
            await peer.reply(output=pb.Output(stream=OUT, data=b"x"))
        await peer.reply(exec=exited(3))

    async def slow(stream: str, data: bytes) -> None:
        nonlocal now_s
        now_s += 3600

    async with fake_daemon(tmp_path, answer) as daemon:
        shell = RemoteShell(daemon.channel, clock=lambda: now_s)
        result = await shell.run_program(
            ProgramSpec([b"yes"], timeout_s=1, output_limit_bytes=9), stdin=None, on_output=slow
        )
    assert result.outcome == "exited"


@pytest.mark.parametrize("error", [KeyError("mine"), NotFound("mine"), DaemonLost("of another sandbox")])
async def test_what_the_callers_own_streams_raise_ends_the_call_and_is_raised(tmp_path: Path, error: Exception) -> None:
    closed = asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        if not request.exec.stdin:
            await peer.reply(output=pb.Output(stream=OUT, data=b"x"))
        await peer.hung_up()
        closed.set()

    async def failing() -> AsyncIterator[bytes]:
        yield b"begun"
        raise error

    async def refuse(stream: str, data: bytes) -> None:
        raise error

    for streams in ({"stdin": failing()}, {"on_output": refuse}):
        closed.clear()
        directory = tmp_path / next(iter(streams))
        directory.mkdir()
        async with fake_daemon(directory, answer) as daemon:
            with pytest.raises(type(error), match=str(error).strip("'")) as raised:
                await program(daemon.channel, **streams)
            assert raised.value is error
            await asyncio.wait_for(closed.wait(), PATIENCE_S)
            assert daemon.channel.lost is None


async def test_cancelling_closes_the_connection_and_stops_the_input(tmp_path: Path) -> None:
    asked, closed, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.input()
        asked.set()
        await peer.hung_up()
        closed.set()

    async def silent() -> AsyncIterator[bytes]:
        try:
            yield b"begun"
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with fake_daemon(tmp_path, answer) as daemon:
        running = asyncio.create_task(program(daemon.channel, stdin=silent()))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        assert stopped.is_set()
        assert daemon.channel.lost is None


@pytest.mark.parametrize(
    "reply, said",
    [
        (pb.ExecReply(outcome=pb.OUTCOME_OUTPUT_LIMIT, output_bytes=101), "more than 100 bytes"),
        (pb.ExecReply(outcome=pb.OUTCOME_PIDS_LIMIT, errno=errno.EAGAIN), "end background processes"),
        (pb.ExecReply(outcome=pb.OUTCOME_OUT_OF_MEMORY), "memory limit"),
        (pb.ExecReply(outcome=pb.OUTCOME_TIMED_OUT), "60 s"),
        (pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=1, pids_refused=1234), "1,234 times"),
        (pb.ExecReply(outcome=pb.OUTCOME_SIGNALLED, signal=11), ""),
        (pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=124), ""),
        (pb.ExecReply(outcome=pb.OUTCOME_FAILED_TO_START, errno=errno.ENOENT), "no such program"),
        (pb.ExecReply(outcome=pb.OUTCOME_FAILED_TO_START, errno=errno.E2BIG), "too long"),
        (pb.ExecReply(outcome=pb.OUTCOME_FAILED_TO_START), "unknown reason"),
    ],
)
async def test_an_outcome_says_what_to_do_where_it_is_not_plain(tmp_path: Path, reply: pb.ExecReply, said: str) -> None:
    async with fake_daemon(tmp_path, always(exec=reply)) as daemon:
        result = await program(daemon.channel)
        assert daemon.channel.lost is None
    assert said in result.message
    assert bool(said) == bool(result.message)
    assert result.errno == (reply.errno or None if result.outcome == "failed_to_start" else None)
    assert result.signal == (reply.signal or None)


async def test_a_program_whose_processes_cannot_be_killed_ends_the_use_of_the_sandbox(tmp_path: Path) -> None:
    reply = pb.ExecReply(outcome=pb.OUTCOME_TIMED_OUT, remaining=2)
    async with fake_daemon(tmp_path, always(exec=reply)) as daemon:
        result = await program(daemon.channel)
        assert (result.outcome, "2 processes could not be killed" in result.message) == ("timed_out", True)
        assert daemon.channel.lost is not None


@pytest.mark.parametrize(
    "argv, changes, said",
    [
        ([b""], {}, "the program to run"),
        ([b"a", b"b\0"], {}, "argument 1 has a NUL"),
        ([b"a", b"x" * 131_072], {}, "argument 1 has 131,072 bytes, and the kernel allows 131,071"),
        ([b"x" * 131_071] * 9, {}, "the arguments take"),
        ([b"x"] * 500_000, {}, "in a message"),
        ([b"a"], {"env": {"A=B": "x"}}, "variable 'A=B'"),
        ([b"a"], {"env": {"": "x"}}, "variable ''"),
        ([b"a"], {"env": {"A": "x\0"}}, "variable 'A'"),
        ([b"a"], {"env": {"A": "\udc80"}}, "not UTF-8"),
        ([b"a"], {"env": {"A": "x" * 131_072}}, "the kernel allows"),
        ([b"a"], {"env": {str(n): "x" * 131_000 for n in range(9)}}, "in a message"),
        ([b"a"], {"cwd": "tmp"}, "not an absolute path"),
        ([b"a"], {"cwd": "/tmp/../etc"}, "'..'"),
    ],
)
async def test_a_program_that_no_kernel_can_take_is_one_that_did_not_start(
    tmp_path: Path, argv: list[bytes], changes: dict[str, Any], said: str
) -> None:
    async with fake_daemon(tmp_path, always(exec=exited())) as daemon:
        result = await program(daemon.channel, *argv, **changes)
        assert (result.outcome, said in result.message) == ("failed_to_start", True), result.message[:300]
        assert daemon.requests == []


async def test_a_request_that_the_daemon_refuses_is_a_program_that_did_not_start(tmp_path: Path) -> None:
    refusal: Answer = always(failure=pb.Failure(kind=pb.FAILURE_KIND_NOT_FOUND, message="no such directory"))
    async with fake_daemon(tmp_path, refusal) as daemon:
        result = await program(daemon.channel)
        assert (result.outcome, result.message) == ("failed_to_start", "no such directory")
        assert (await program(daemon.channel, stdin=endless())).outcome == "failed_to_start"
        assert daemon.channel.lost is None


@pytest.mark.parametrize("changes", [{"timeout_s": 0}, {"timeout_s": 10**6}, {"output_limit_bytes": 0}])
async def test_limits_that_are_none_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        await program(Channel(UnixAddress(tmp_path)), **changes)


@pytest.mark.parametrize(
    "failure, outcome",
    [
        (pb.Failure(kind=pb.FAILURE_KIND_NOT_FOUND, message="/nowhere", errno=errno.ENOENT), "failed_to_start"),
        (pb.Failure(kind=pb.FAILURE_KIND_EXHAUSTED, message="full", errno=errno.EAGAIN), "pids_limit"),
    ],
)
async def test_a_refusal_to_start_keeps_the_kernels_number(tmp_path: Path, failure: pb.Failure, outcome: str) -> None:
    async with fake_daemon(tmp_path, always(failure=failure)) as daemon:
        result = await program(daemon.channel, cwd="/nowhere")
        assert daemon.channel.lost is None
    assert result == ProgramResult(outcome, errno=failure.errno, message=failure.message)
