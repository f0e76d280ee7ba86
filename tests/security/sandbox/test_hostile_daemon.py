"""A daemon that lies, floods, stalls and babbles: the gateway neither hangs nor grows nor believes it."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sandbox.client import remote_fs
from sandbox.client.channel import Channel
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_shell import RemoteShell
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.daemon.frames import MAX_FRAME_BYTES
from sandbox.daemon.programs.output import PIECES_LIMIT
from sandbox.errors import DaemonLost, FileError, TooLarge
from sandbox.protocols import ExecResult, OnOutput
from sandbox.v1 import channel_pb2 as pb
from tests.turns import turns
from tests.unit.sandbox.fake_daemon import Answer, Peer, fake_daemon, frame

FILE = pb.ENTRY_TYPE_FILE
Ask = Callable[[RemoteFS], Awaitable[object]]
PATIENCE_S = 10.0


async def all_of(files: RemoteFS, length: int | None = None) -> bytes:
    return b"".join([data async for data in files.read("/workspace/a", length=length)])


async def refused(directory: Path, answer: Answer, ask: Ask) -> None:
    """Assert that the call ends soon as DaemonLost and that the daemon is not spoken to again."""
    async with fake_daemon(directory, answer) as daemon:
        files = RemoteFS(daemon.channel)
        with pytest.raises(DaemonLost):
            await asyncio.wait_for(ask(files), PATIENCE_S)
        assert daemon.channel.lost is not None
        asked = len(daemon.requests)
        with pytest.raises(DaemonLost):
            await files.stat("/workspace/a")
        assert len(daemon.requests) == asked


def always(**member: object) -> Answer:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(**member)

    return answer


def bytes_of(data: bytes) -> Answer:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.raw(data)
        raise OSError("hang up")

    return answer


def stat(files: RemoteFS) -> Awaitable[object]:
    return files.stat("/workspace/a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        b"\xff\xff\xff\xff" + b"x" * 100,
        struct.pack(">I", 100) + b"cut",
        struct.pack(">I", 4) + b"\xff\xff\xff\xff",
        struct.pack(">I", 0),
    ],
    ids=["nothing", "half a length", "too long", "4 GiB", "cut short", "no protobuf", "empty reply"],
)
async def test_a_broken_frame_ends_the_channel(tmp_path: Path, data: bytes) -> None:
    await refused(tmp_path, bytes_of(data), stat)


@pytest.mark.parametrize(
    "member",
    [
        {"exec": pb.ExecReply(outcome=pb.OUTCOME_EXITED)},
        {"chunk": pb.Chunk(data=b"x")},
        {"output": pb.Output(stream=pb.OUTPUT_STREAM_STDOUT, data=b"x")},
        {"entries": pb.EntriesReply()},
        {"failure": pb.Failure(message="no kind")},
        {"entry": pb.Entry(name=b"/workspace/a")},
        {"entry": pb.Entry(type=FILE, size_bytes=2**64 - 1)},
    ],
    ids=["exec", "chunk", "output", "entries", "no kind", "no type", "impossible size"],
)
async def test_a_reply_that_does_not_fit_the_call_ends_the_channel(tmp_path: Path, member: dict[str, object]) -> None:
    await refused(tmp_path, always(**member), stat)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc/passwd", b"a\0b", b"x" * 256])
async def test_a_name_that_no_file_can_have_ends_the_channel(tmp_path: Path, name: bytes) -> None:
    reply = pb.EntriesReply(entries=[pb.Entry(name=name, type=FILE)], total=1)
    await refused(tmp_path, always(entries=reply), lambda files: files.ls("/workspace"))


@pytest.mark.parametrize(
    "path",
    [b"/etc/passwd", b"/workspacex", b"a", b"", b"/workspace/../etc", b"/workspace/a\0b", b"/workspace//a"],
)
async def test_a_match_outside_the_searched_directory_ends_the_channel(tmp_path: Path, path: bytes) -> None:
    found = pb.EntriesReply(entries=[pb.Entry(name=path, type=FILE)], total=1)
    matched = pb.GrepReply(matches=[pb.GrepMatch(path=path, line=1, text=b"x")])
    for kind, reply in (("entries", found), ("grep", matched)):
        directory = tmp_path / kind
        directory.mkdir()
        ask: Ask = (
            (lambda files: files.glob("/workspace", "*"))
            if kind == "entries"
            else (lambda files: files.grep("/workspace", "x"))
        )
        await refused(directory, always(**{kind: reply}), ask)


async def test_more_than_was_asked_for_ends_the_channel(tmp_path: Path) -> None:
    entries = pb.EntriesReply(entries=[pb.Entry(name=b"a", type=FILE)] * 3, total=3)
    lines = pb.ReadLinesReply(data=b"x" * 11, lines=1)
    too_many_lines = pb.ReadLinesReply(data=b"x", lines=5)
    matches = pb.GrepReply(matches=[pb.GrepMatch(path=b"/workspace/a", line=1)] * 3)
    asks: list[tuple[dict[str, object], Ask]] = [
        ({"entries": entries}, lambda files: files.ls("/workspace", limit=2)),
        ({"read_lines": lines}, lambda files: files.read_lines("/workspace/a", limit_bytes=10)),
        ({"read_lines": too_many_lines}, lambda files: files.read_lines("/workspace/a", limit=4)),
        ({"grep": matches}, lambda files: files.grep("/workspace", "x", limit=2)),
        ({"read": pb.ReadReply(data=b"xxx")}, lambda files: all_of(files, 2)),
    ]
    for number, (member, ask) in enumerate(asks):
        directory = tmp_path / str(number)
        directory.mkdir()
        await refused(directory, always(**member), ask)


async def test_a_total_that_is_too_small_is_not_believed(tmp_path: Path) -> None:
    reply = pb.EntriesReply(entries=[pb.Entry(name=b"a", type=FILE), pb.Entry(name=b"b", type=FILE)], total=0)
    async with fake_daemon(tmp_path, always(entries=reply)) as daemon:
        assert (await RemoteFS(daemon.channel).ls("/workspace")).total == 2


async def test_a_failure_s_message_is_cut_and_has_no_control_characters(tmp_path: Path) -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_NOT_FOUND, message="\x1b[2Jgone\0\x9b" + "x" * 100_000)
    async with fake_daemon(tmp_path, always(failure=failure)) as daemon:
        with pytest.raises(FileError) as raised:
            await RemoteFS(daemon.channel).stat("/workspace/a")
    assert str(raised.value).startswith("?[2Jgone??x")
    assert len(str(raised.value)) <= 4096


async def test_a_silent_daemon_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fs, "_ANSWER_TIMEOUT_S", 0.05)

    async def silent(request: pb.Request, peer: Peer) -> None:
        await peer.hung_up()

    await refused(tmp_path, silent, all_of)


async def test_a_frame_that_drips_does_not_hold_a_call_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fs, "_ANSWER_TIMEOUT_S", 0.2)

    async def drip(request: pb.Request, peer: Peer) -> None:
        await peer.raw(struct.pack(">I", 1000))
        while True:
            await peer.raw(b"x")
            await asyncio.sleep(0.01)

    await refused(tmp_path, drip, all_of)


async def test_chunks_that_drip_do_not_hold_a_read_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fs, "_ANSWER_TIMEOUT_S", 0.2)

    async def drip(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(chunk=pb.Chunk(data=b"x"))
            await asyncio.sleep(0.01)

    await refused(tmp_path, drip, all_of)


@pytest.mark.parametrize("data", [b"", b"x" * (512 * 1024 + 1)], ids=["empty", "too large"])
async def test_a_chunk_of_a_wrong_size_ends_the_channel(tmp_path: Path, data: bytes) -> None:
    async def flood(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(chunk=pb.Chunk(data=data))

    await refused(tmp_path, flood, all_of)


async def test_the_event_loop_runs_while_a_file_comes_in_tiny_chunks(tmp_path: Path) -> None:
    async def at_once(request: pb.Request, peer: Peer) -> None:
        await peer.raw(500 * frame(chunk=pb.Chunk(data=b"x")) + frame(read=pb.ReadReply(data=b"end")))

    async with fake_daemon(tmp_path, at_once) as daemon, turns() as counted:
        async for _ in RemoteFS(daemon.channel).read("/workspace/a"):
            counted.seen()
    assert counted.most <= 64


async def test_chunks_that_no_disk_gives_end_the_channel(tmp_path: Path) -> None:
    async def flood(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.raw(100 * frame(chunk=pb.Chunk(data=b"x" * 100)))

    got = 0

    async def count(files: RemoteFS) -> None:
        nonlocal got
        async for _ in files.read("/workspace/a"):
            got += 1

    await refused(tmp_path, flood, count)
    assert got < 1100


async def test_an_endless_read_is_given_to_the_caller_piece_by_piece_and_has_an_end(tmp_path: Path) -> None:
    async def flood(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(chunk=pb.Chunk(data=b"x" * 262144))

    async with fake_daemon(tmp_path, flood) as daemon:
        files = RemoteFS(daemon.channel, file_limit_bytes=64 * 1024 * 1024)
        got_bytes = 0

        async def count() -> None:
            nonlocal got_bytes
            async for data in files.read("/workspace/a"):
                got_bytes += len(data)

        tracemalloc.start()
        with pytest.raises(TooLarge, match="in ranges"):
            await count()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert got_bytes == 64 * 1024 * 1024
    assert peak_bytes < 8 * 1024 * 1024


async def test_a_daemon_that_takes_no_input_does_not_hold_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_fs, "_ANSWER_TIMEOUT_S", 0.1)
    release = asyncio.Event()

    async def deaf(request: pb.Request, peer: Peer) -> None:
        await release.wait()

    try:
        await refused(tmp_path, deaf, lambda files: files.write("/workspace/a", b"x" * 50_000_000))
    finally:
        release.set()


async def test_a_write_that_is_confirmed_before_it_was_sent_is_not_believed(tmp_path: Path) -> None:
    async def early(request: pb.Request, peer: Peer) -> None:
        await peer.reply(entry=pb.Entry(type=FILE))
        await peer.hung_up()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    await refused(tmp_path, early, lambda files: files.write("/workspace/a", endless()))


async def test_a_daemon_that_answers_unasked_is_not_heard(tmp_path: Path) -> None:
    counter = itertools.count()

    async def twice(request: pb.Request, peer: Peer) -> None:
        # The second reply would answer the next call if the connection were used again.
        await peer.reply(entry=pb.Entry(type=FILE, size_bytes=next(counter)))
        await peer.reply(entry=pb.Entry(type=FILE, size_bytes=666))

    async with fake_daemon(tmp_path, twice) as daemon:
        for expected in range(5):
            assert (await RemoteFS(daemon.channel).stat("/workspace/a")).size_bytes == expected


async def test_a_socket_replaced_by_a_link_to_another_sandbox_s_is_not_followed(tmp_path: Path) -> None:
    victim, attacker = tmp_path / "victim", tmp_path / "attacker"
    victim.mkdir()
    attacker.mkdir()
    async with fake_daemon(victim, always(entry=pb.Entry(type=FILE))) as other:
        (attacker / SOCKET_NAME).symlink_to(victim / SOCKET_NAME)
        channel = Channel(UnixAddress(attacker))
        with pytest.raises(DaemonLost):
            await RemoteFS(channel).stat("/workspace/a")
        channel.close()
        assert other.requests == []


async def test_what_is_no_socket_is_not_spoken_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SOCKET_NAME)
    channel = Channel(UnixAddress(tmp_path))
    with pytest.raises(DaemonLost, match="not a socket"):
        await RemoteFS(channel).stat("/workspace/a")
    channel.close()


# --- commands ---------------------------------------------------------------------------------------------------------


async def run(directory: Path, answer: Answer, on_output: OnOutput | None = None) -> ExecResult:
    async with fake_daemon(directory, answer) as daemon:
        shell = RemoteShell(daemon.channel, grace_s=0.2)
        running = shell.execute(
            "true",
            timeout_s=0.1,
            call_id="c1",
            limit_chars=1000,
            head_chars=10,
            tail_chars=10,
            on_output=on_output,
        )
        result = await asyncio.wait_for(running, PATIENCE_S)
        if result.outcome == "daemon_lost":
            assert daemon.channel.lost is not None
        return result


def evicted(**changes: object) -> pb.Evicted:
    honest: dict[str, object] = {
        "path": "/workspace/.airlock/output/c1.txt",
        "size_bytes": 5000,
        "lines": 7,
        "sha256": "a" * 64,
    }
    return pb.Evicted(**{**honest, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reply",
    [
        pb.ExecReply(),
        pb.ExecReply(outcome=99),  # type: ignore[arg-type]
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=256),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, exit_code=-1),
        pb.ExecReply(outcome=pb.OUTCOME_SIGNALLED, signal=65),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, output_bytes=2**64 - 1),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, output=[pb.Output(data=b"x")]),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(path="/etc/shadow")),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(size_bytes=2**40)),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(lines=5001)),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(sha256="A" * 64)),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(sha256="a" * 63 + "\n")),
        pb.ExecReply(
            outcome=pb.OUTCOME_EXITED,
            evicted=evicted(),
            tail=[pb.Output(stream=pb.OUTPUT_STREAM_STDOUT, data=b"x" * 60_000)] * 18,
        ),
    ],
)
async def test_an_end_that_no_program_has_is_a_lost_daemon(tmp_path: Path, reply: pb.ExecReply) -> None:
    assert (await run(tmp_path, always(exec=reply))).outcome == "daemon_lost"


async def test_a_head_that_is_longer_than_asked_is_cut(tmp_path: Path) -> None:
    head = [pb.Output(stream=pb.OUTPUT_STREAM_STDOUT, data=b"x" * 1000)]
    result = await run(tmp_path, always(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(), output=head)))
    assert [len(piece.data) for piece in result.output] == [10]


@pytest.mark.parametrize("data", [b"x" * 65536, b"\x80" * 65536], ids=["text", "continuation bytes"])
async def test_output_without_end_is_cut_off_and_not_kept(tmp_path: Path, data: bytes) -> None:
    async def flood(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(output=pb.Output(stream=pb.OUTPUT_STREAM_STDOUT, data=data))

    seen_bytes = 0

    def count(_: object, piece: bytes) -> None:
        nonlocal seen_bytes
        seen_bytes += len(piece)

    result = await run(tmp_path, flood, count)
    assert result.outcome == "daemon_lost"
    assert seen_bytes < 2 * 1024 * 1024


async def run_long(channel: Channel, on_output: OnOutput | None = None) -> ExecResult:
    return await RemoteShell(channel).execute(
        "true", timeout_s=60, call_id="c1", limit_chars=80_000, head_chars=10, tail_chars=10, on_output=on_output
    )


def alternating(pieces: int) -> list[pb.Output]:
    streams = pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR
    return [pb.Output(stream=streams[number % 2], data=b"x") for number in range(pieces)]


async def test_the_event_loop_runs_while_output_comes_byte_by_byte(tmp_path: Path) -> None:
    async def at_once(request: pb.Request, peer: Peer) -> None:
        output = frame(output=pb.Output(stream=pb.OUTPUT_STREAM_STDOUT, data=b"x"))
        await peer.raw(1000 * output + frame(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED)))

    async with fake_daemon(tmp_path, at_once) as daemon, turns() as counted:
        result = await run_long(daemon.channel, lambda stream, data: counted.seen())
    assert [len(piece.data) for piece in result.output] == [1000]
    assert counted.most <= 64


async def test_the_event_loop_runs_while_a_reply_of_many_pieces_is_read(tmp_path: Path) -> None:
    reply = frame(exec=pb.ExecReply(outcome=pb.OUTCOME_EXITED, output=alternating(20_000)))
    before = 0

    async def at_once(request: pb.Request, peer: Peer) -> None:
        nonlocal before
        await peer.raw(reply)
        before = counted.count

    async with fake_daemon(tmp_path, at_once) as daemon, turns() as counted:
        result = await run_long(daemon.channel)
    assert len(result.output) == 20_000
    assert counted.count - before >= 20  # of a thousand pieces each


@pytest.mark.parametrize(
    "reply",
    [
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, output=alternating(PIECES_LIMIT + 1)),
        pb.ExecReply(outcome=pb.OUTCOME_EXITED, evicted=evicted(), tail=alternating(41)),
    ],
    ids=["output", "tail"],
)
async def test_more_pieces_than_a_daemon_keeps_are_a_lost_daemon(tmp_path: Path, reply: pb.ExecReply) -> None:
    async with fake_daemon(tmp_path, always(exec=reply)) as daemon:
        result = await run_long(daemon.channel)
        assert result.outcome == "daemon_lost"
        assert "more" in result.message
        assert daemon.channel.lost is not None


@pytest.mark.parametrize(
    "member",
    [
        {"started": pb.Started(pid=1)},
        {"output": pb.Output(stream=pb.OUTPUT_STREAM_STDOUT)},
        {"chunk": pb.Chunk(data=b"x")},
    ],
    ids=["started again and again", "output without bytes", "a file's bytes"],
)
async def test_frames_out_of_turn_are_a_lost_daemon(tmp_path: Path, member: dict[str, object]) -> None:
    async def flood(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(**member)

    assert (await run(tmp_path, flood, lambda stream, data: None)).outcome == "daemon_lost"


async def test_output_that_was_not_requested_is_a_lost_daemon(tmp_path: Path) -> None:
    piece = pb.Output(stream=pb.OUTPUT_STREAM_STDOUT, data=b"x")
    assert (await run(tmp_path, always(output=piece))).outcome == "daemon_lost"


async def test_a_command_that_never_ends_is_given_up_after_its_time_and_a_grace(tmp_path: Path) -> None:
    async def drip(request: pb.Request, peer: Peer) -> None:
        while True:
            await peer.reply(output=pb.Output(stream=pb.OUTPUT_STREAM_STDERR, data=b"."))
            await asyncio.sleep(0.005)

    result = await run(tmp_path, drip, lambda stream, data: None)
    assert result.outcome == "daemon_lost"
    assert "did not answer" in result.message
