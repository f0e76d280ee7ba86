"""RemoteShell against a daemon that keeps the protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.remote_shell import RemoteShell
from sandbox.client.unix_address import UnixAddress
from sandbox.daemon.programs.output import PIECES_LIMIT, KeptOutput
from sandbox.daemon.programs.spill import Spill
from sandbox.protocols import ExecResult, OutputPiece
from sandbox.sandbox import SandboxLimits, SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Peer, always, fake_daemon

OUT, ERR = pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR


async def run(channel: Channel, command: str = "true", **changes: Any) -> ExecResult:
    asked: dict[str, Any] = {
        "timeout_s": 5,
        "call_id": "c1",
        "limit_chars": 100,
        "head_chars": 4,
        "tail_chars": 4,
        **changes,
    }
    return await RemoteShell(channel, env={"TOKEN": "t"}).execute(command, **asked)


async def test_the_request_says_what_to_run_and_where_the_rest_of_the_output_goes(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=3))

    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel, "exit 3", timeout_s=1.5)
        asked = daemon.requests[0].exec
    assert (result.outcome, result.exit_code, result.signal) == ("exited", 3, None)
    assert list(asked.argv) == [b"/bin/sh", b"-c", b"exit 3"]
    assert asked.timeout_ms == 1500
    assert dict(asked.env) == {"TOKEN": "t"}
    assert not asked.stream
    assert asked.output_limit.spill_path == "/workspace/.airlock/output/c1.txt"


async def test_streamed_output_reaches_the_caller_in_order_and_the_result_has_it_joined(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(started=pb.Started(pid=7))
        for stream, data in ((OUT, b"a"), (OUT, b"b"), (ERR, b"\xff\x00"), (OUT, b"c")):
            await peer.reply(output=pb.Output(stream=stream, data=data))
        await peer.reply(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED, output_bytes=5))

    seen: list[tuple[str, bytes]] = []
    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel, on_output=lambda stream, data: seen.append((stream, data)))
    assert seen == [("stdout", b"a"), ("stdout", b"b"), ("stderr", b"\xff\x00"), ("stdout", b"c")]
    assert result.output == (
        OutputPiece("stdout", b"ab"),
        OutputPiece("stderr", b"\xff\x00"),
        OutputPiece("stdout", b"c"),
    )


@pytest.mark.parametrize("data, tail_chars", [(b"x", 4), (b"\x80", 200)], ids=["whole", "tail of continuations"])
async def test_a_program_that_alternates_byte_by_byte_gets_all_that_its_daemon_keeps(
    tmp_path: Path, data: bytes, tail_chars: int
) -> None:
    pieces = [(OUT if n % 2 else ERR, data) for n in range(PIECES_LIMIT - 1)]
    sent = pb.ExecReply(outcome=pb.OUTCOME_EXITED)

    async def answer(request: pb.Request, peer: Peer) -> None:
        limit = request.exec.output_limit
        kept = KeptOutput(limit, lambda: Spill(limit.spill_path, 10**6, str(tmp_path)))
        for stream, piece in pieces:
            kept.add(stream, bytearray(piece), len(piece))
        kept.report(sent, streamed=False)
        await peer.reply(exec=sent)

    limit_chars = 80_000 if data.isascii() else 1000
    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel, timeout_s=60, limit_chars=limit_chars, tail_chars=tail_chars)
    names = {OUT: "stdout", ERR: "stderr"}
    assert result.outcome == "exited"
    assert (result.evicted is None) == data.isascii()
    for got, kept_pieces in ((result.output, sent.output), (result.tail, sent.tail)):
        assert [(piece.stream, piece.data) for piece in got] == [(names[one.stream], one.data) for one in kept_pieces]


async def test_output_that_was_streamed_and_then_evicted_keeps_its_head_only(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(output=pb.Output(stream=OUT, data="añ".encode()))
        await peer.reply(output=pb.Output(stream=ERR, data="öxyz".encode()))
        limit = request.exec.output_limit
        evicted = pb.Evicted(path=limit.spill_path, size_bytes=500, lines=2, sha256="0" * 64)
        tail = [pb.Output(stream=OUT, data=b"last")]
        await peer.reply(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted, tail=tail, output_bytes=500))

    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel, on_output=lambda stream, data: None)
    assert result.output == (OutputPiece("stdout", "añ".encode()), OutputPiece("stderr", "öx".encode()))
    assert result.tail == (OutputPiece("stdout", b"last"),)
    assert result.evicted is not None
    assert result.evicted.lines == 2


async def test_a_program_that_could_not_be_started_says_why(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(exec=pb.ExecReply(outcome=pb.OUTCOME_FAILED_TO_START, errno=2))

    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel)
    assert result.outcome == "failed_to_start"
    assert "No such file or directory (errno 2)" in result.message


async def test_a_request_that_the_daemon_refuses_is_a_command_that_did_not_start(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(failure=pb.Failure(kind=pb.FAILURE_KIND_INVALID_ARGUMENT, message="head is too large"))

    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel)
        assert daemon.channel.lost is None
    assert (result.outcome, result.message) == ("failed_to_start", "head is too large")


async def test_a_daemon_lost_on_the_way_is_an_outcome_with_what_was_seen_until_then(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(output=pb.Output(stream=OUT, data=b"so far"))
        raise OSError("the container died")

    async with fake_daemon(tmp_path, answer) as daemon:
        result = await run(daemon.channel, on_output=lambda stream, data: None)
        assert daemon.channel.lost is not None
    assert result.outcome == "daemon_lost"
    assert result.output == (OutputPiece("stdout", b"so far"),)
    assert "may have run" in result.message


async def test_cancelling_closes_the_connection(tmp_path: Path) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        asked.set()
        await peer.hung_up()
        closed.set()

    async with fake_daemon(tmp_path, answer) as daemon:
        running = asyncio.create_task(run(daemon.channel, "sleep 60"))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(closed.wait(), 5)
        assert daemon.channel.lost is None


@pytest.mark.parametrize("call_id", ["", "../x", "a/b", "a.b", "x" * 65, "a\n"])
async def test_a_call_id_that_could_be_a_path_is_refused(tmp_path: Path, call_id: str) -> None:
    with pytest.raises(ValueError, match="call id"):
        await run(Channel(UnixAddress(tmp_path)), call_id=call_id)


@pytest.mark.parametrize("command", ["a\0b", "x" * 200_000])
async def test_a_command_that_no_shell_can_take_is_one_that_did_not_start(tmp_path: Path, command: str) -> None:
    assert (await run(Channel(UnixAddress(tmp_path)), command)).outcome == "failed_to_start"


async def test_the_request_has_the_quota_of_all_evicted_output(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED))) as daemon:
        limits = SandboxLimits(workspace_bytes=1000)
        sandbox = ChannelSandbox("s", SandboxSpec("t", "t", "i", limits=limits), daemon.channel, pb.Posture())
        await sandbox.shell.execute("true", timeout_s=1, call_id="c", limit_chars=9, head_chars=1, tail_chars=1)
        large = ChannelSandbox("s", SandboxSpec("t", "t", "i"), daemon.channel, pb.Posture())
        await large.shell.execute("true", timeout_s=1, call_id="c", limit_chars=9, head_chars=1, tail_chars=1)
        asked = [request.exec.output_limit for request in daemon.requests]
    assert [(limit.spill_limit_bytes, limit.spill_quota_bytes) for limit in asked] == [
        (500, 500),
        (256 * 1024 * 1024, 1024 * 1024 * 1024),
    ]


async def test_a_command_that_failed_for_want_of_processes_says_so(tmp_path: Path) -> None:
    failed = pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=2, pids_refused=7)
    fine = pb.ExecReply(outcome=pb.OUTCOME_EXITED, pids_refused=7)
    said = []
    for reply in (failed, fine, pb.ExecReply(outcome=pb.OUTCOME_PIDS_LIMIT)):
        directory = tmp_path / str(len(said))
        directory.mkdir()
        async with fake_daemon(directory, always(exec=reply)) as daemon:
            said.append((await run(daemon.channel)).message)
    assert "refused a process or thread 7 times" in said[0]
    assert said[1] == ""
    assert "end background processes" in said[2]


async def test_a_command_whose_processes_cannot_be_killed_ends_the_use_of_the_sandbox(tmp_path: Path) -> None:
    reply = pb.ExecReply(outcome=pb.OUTCOME_TIMED_OUT, remaining=3)
    async with fake_daemon(tmp_path, always(exec=reply)) as daemon:
        result = await run(daemon.channel)
        assert (result.outcome, "3 processes could not be killed" in result.message) == ("timed_out", True)
        assert daemon.channel.lost is not None
        assert "3 processes" in str(daemon.channel.lost)


async def test_a_command_cannot_end_at_a_limit_that_it_was_not_given(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, always(exec=pb.ExecReply(outcome=pb.OUTCOME_OUTPUT_LIMIT))) as daemon:
        assert (await run(daemon.channel)).outcome == "daemon_lost"
