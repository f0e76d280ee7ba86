"""Streamed output: flow control, order, and the limit that ends a program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.daemon.programs.exec import PAUSE_ABOVE_BYTES, OutputSender
from sandbox.daemon.programs.output import LimitedOutput
from sandbox.daemon.programs.pipes import OutputPipe
from sandbox.v1 import channel_pb2 as wire

OUT, ERR = wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR


class SlowFrames:
    """Takes a frame only when allowed to."""

    def __init__(self) -> None:
        self.sent: list[wire.Reply] = []
        self.allowed = asyncio.Event()

    async def send(self, message: wire.Reply) -> None:
        await self.allowed.wait()
        self.sent.append(message)


class Recorder:
    """A sender over slow frames, and the pauses it requested."""

    def __init__(self) -> None:
        self.frames = SlowFrames()
        self.paused: list[bool] = []
        self.sender = OutputSender(self.frames, [self])  # type: ignore[arg-type,list-item]

    def pause(self) -> None:
        self.paused.append(True)

    def resume(self) -> None:
        self.paused.append(False)


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    yield made
    made.sender.close()


async def test_a_caller_that_does_not_read_pauses_the_program_and_one_that_does_resumes_it(recorder: Recorder) -> None:
    recorder.sender.start(5)
    recorder.sender.add(OUT, bytes(PAUSE_ABOVE_BYTES))
    recorder.sender.add(ERR, b"e")
    assert recorder.paused == [True]
    recorder.frames.allowed.set()
    await recorder.sender.finish()
    assert recorder.paused == [True, False]
    assert [reply.WhichOneof("reply") for reply in recorder.frames.sent] == ["started", "output", "output"]


async def test_pieces_of_one_byte_pause_the_program_long_before_they_are_that_many_bytes(recorder: Recorder) -> None:
    pieces = 0
    while not recorder.paused:
        recorder.sender.add(OUT if pieces % 2 else ERR, b"x")
        pieces += 1
    assert pieces < PAUSE_ABOVE_BYTES // 100


async def test_pieces_of_one_stream_are_joined(recorder: Recorder) -> None:
    for n in range(1000):
        recorder.sender.add(OUT, b"%03d" % n)
    recorder.frames.allowed.set()
    recorder.sender.start(5)
    await recorder.sender.finish()
    (output,) = recorder.frames.sent[1:]
    assert output.output.data == b"".join(b"%03d" % n for n in range(1000))


async def test_a_failure_to_send_ends_the_task(recorder: Recorder) -> None:
    async def fail(_message: wire.Reply) -> None:
        raise BrokenPipeError

    recorder.frames.send = fail  # type: ignore[method-assign]
    sending = recorder.sender.start(5)
    with pytest.raises(BrokenPipeError):
        await sending


@given(
    sizes=st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.integers(1, 50)), max_size=20),
    limit_bytes=st.integers(1, 300),
)
def test_exactly_the_bytes_up_to_the_limit_pass_and_exceeding_it_is_reported_once(
    sizes: list[tuple[wire.OutputStream, int]], limit_bytes: int
) -> None:
    passed: list[bool] = []
    output = LimitedOutput(limit_bytes, lambda: passed.append(True))
    whole = b"".join(bytes([n % 256]) * size for n, (_, size) in enumerate(sizes))
    within = b"".join(
        output.add(stream, bytearray(bytes([n % 256]) * 60), size) for n, (stream, size) in enumerate(sizes)
    )
    assert within == whole[:limit_bytes]
    assert passed == [True] * (len(whole) > limit_bytes)
    reply = wire.ExecReply()
    output.report(reply, streamed=True)
    assert reply.output_bytes == len(whole)


async def test_a_paused_pipe_is_not_read_and_what_waits_in_it_is_taken_after_it_is_resumed() -> None:
    taken = bytearray()
    pipe = OutputPipe(lambda buffer, size: taken.extend(buffer[:size]))
    pipe.pause()
    os.write(pipe.write_fd, b"waiting")
    waiting = pipe.emptied()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not taken
    assert not waiting.done()
    pipe.resume()
    await asyncio.wait_for(waiting, 10)
    assert taken == b"waiting"
    assert pipe.emptied().done()
    pipe.close()


async def test_closing_a_pipe_ends_the_wait_for_it_to_be_emptied() -> None:
    pipe = OutputPipe(lambda _buffer, _size: None)
    pipe.pause()
    os.write(pipe.write_fd, b"waiting")
    waiting = pipe.emptied()
    pipe.close()
    assert waiting.done()
    pipe.resume()
    assert pipe.emptied().done()
