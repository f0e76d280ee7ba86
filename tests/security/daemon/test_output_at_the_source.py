"""Output in any amount: streamed with flow control or evicted, exact to the byte, in constant memory."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client, Sandbox, text
from tests.security.daemon.server_memory import ServerMemory
from tests.waiting import eventually

MIB = 1024 * 1024
GIB = 1024 * MIB
DIRECTORY = "/workspace/.airlock/output"
OUT, ERR = wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR

# Counts what it has written in a file, so that a test sees how far it came.
COUNTING_WRITER = b"""
import os
progress = os.open("/tmp/progress", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
for n in range(512):
    os.write(1, bytes([n % 256]) * 65536)
    os.pwrite(progress, b"%9d" % ((n + 1) * 65536), 0)
"""
# A child that is deaf to SIGTERM and one that left session and parents; the marks are looked for afterwards.
FLOOD_WITH_CHILDREN = """
(trap '' TERM; while :; do sleep 401; done) &
(setsid sh -c 'sleep 402 &' &)
while :; do echo flood flood flood flood; done
"""
SURVIVORS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^40[12]$'; true"


def limit(name: str, **fields: int) -> wire.OutputLimit:
    return wire.OutputLimit(
        **({"limit_chars": 80_000, "head_chars": 2_000, "tail_chars": 2_000, "spill_limit_bytes": 64 * MIB} | fields),
        spill_path=f"{DIRECTORY}/{name}",
    )


def frames(client: Client) -> Iterator[wire.Reply]:
    """Yield the frames of a call, the final one last."""
    while (reply := client.receive()).WhichOneof("reply") in {"started", "output"}:
        yield reply
    yield reply


def streamed(client: Client) -> tuple[dict[int, bytes], wire.ExecReply]:
    """Return what each stream carried, and the end."""
    kept: dict[int, bytearray] = {OUT: bytearray(), ERR: bytearray()}
    for reply in frames(client):
        if reply.WhichOneof("reply") == "output":
            kept[reply.output.stream] += reply.output.data
    assert reply.WhichOneof("reply") == "exec", reply
    return {stream: bytes(data) for stream, data in kept.items()}, reply.exec


def run_streamed(client: Client, command: str, limit_bytes: int = GIB) -> tuple[dict[int, bytes], wire.ExecReply]:
    client.start([b"/bin/sh", b"-c", command.encode()], stream=True, stream_limit_bytes=limit_bytes)
    return streamed(client)


def test_a_stream_carries_every_byte_of_both_streams_in_order(client: Client) -> None:
    kept, end = run_streamed(client, "seq 1 300000; seq 1 200000 >&2; printf 'a\\000\\377'; exit 9")
    assert kept[OUT] == b"".join(b"%d\n" % n for n in range(1, 300_001)) + b"a\0\xff"
    assert kept[ERR] == b"".join(b"%d\n" % n for n in range(1, 200_001))
    assert (end.outcome, end.exit_code, end.output_bytes) == (wire.OUTCOME_EXITED, 9, len(kept[OUT]) + len(kept[ERR]))
    assert not end.output
    assert not end.HasField("evicted")


def test_a_reader_that_stops_holds_the_program_back_and_loses_nothing(sandbox: Sandbox, client: Client) -> None:
    other = sandbox.connect()
    client.call(remove=wire.RemoveRequest(path="/tmp/progress"))
    other.start([b"python3", b"-c", COUNTING_WRITER], stream=True, stream_limit_bytes=GIB)

    def progress() -> int:
        page = client.call(read=wire.ReadRequest(path="/tmp/progress"))
        return int(page.read.data or b"0")

    seen = [0]

    def stands_still() -> bool:
        seen.append(progress())
        return len(seen) > 50 and seen[-1] == seen[-50] > 0

    assert eventually(stands_still, 30)
    # The pipe, the queue of the server, the socket: each holds about a mebibyte at most.
    assert seen[-1] < 4 * MIB
    kept, end = streamed(other)
    assert kept[OUT] == b"".join(bytes([n % 256]) * 65536 for n in range(512))
    assert (end.outcome, end.output_bytes) == (wire.OUTCOME_EXITED, 512 * 65536)


def test_past_its_limit_a_program_dies_with_all_it_started_and_the_bytes_up_to_it_have_come(client: Client) -> None:
    kept, end = run_streamed(client, FLOOD_WITH_CHILDREN, 1_000_000)
    assert end.outcome == wire.OUTCOME_OUTPUT_LIMIT
    assert end.remaining == 0
    assert kept[OUT] == (b"flood flood flood flood\n" * 50_000)[:1_000_000]
    assert client.output(SURVIVORS).strip() == "0"


@pytest.mark.parametrize(
    "size, outcome",
    [(99_999, wire.OUTCOME_EXITED), (100_000, wire.OUTCOME_EXITED), (100_001, wire.OUTCOME_OUTPUT_LIMIT)],
)
def test_the_limit_counts_both_streams_and_is_exact_even_for_a_program_that_is_over(
    client: Client, size: int, outcome: int
) -> None:
    kept, end = run_streamed(client, f"head -c 60000 /dev/zero >&2; head -c {size - 60_000} /dev/zero", 100_000)
    assert end.outcome == outcome
    assert len(kept[OUT]) + len(kept[ERR]) == min(size, 100_000)


def test_a_timeout_kills_without_a_reader_and_the_call_ends_once_there_is_one(sandbox: Sandbox, client: Client) -> None:
    other = sandbox.connect()
    other.start([b"/bin/sh", b"-c", FLOOD_WITH_CHILDREN.encode()], stream=True, stream_limit_bytes=GIB, timeout_ms=500)
    assert eventually(lambda: int(client.output(SURVIVORS)) >= 2, 10)
    assert eventually(lambda: int(client.output(SURVIVORS)) == 0, 10)
    kept, end = streamed(other)
    assert (end.outcome, end.remaining, end.output_bytes) == (wire.OUTCOME_TIMED_OUT, 0, len(kept[OUT]))
    assert kept[OUT] == (b"flood flood flood flood\n" * (len(kept[OUT]) // 24 + 1))[: len(kept[OUT])]


def test_hanging_up_on_a_paused_program_kills_it(sandbox: Sandbox, client: Client) -> None:
    other = sandbox.connect()
    other.start([b"/bin/sh", b"-c", FLOOD_WITH_CHILDREN.encode()], stream=True, stream_limit_bytes=GIB)
    assert eventually(lambda: int(client.output(SURVIVORS)) >= 2, 10)
    other.close()
    assert eventually(lambda: int(client.output(SURVIVORS)) == 0, 10)


def test_hanging_up_before_the_end_is_read_kills_what_a_program_that_is_over_left(
    sandbox: Sandbox, client: Client
) -> None:
    other = sandbox.connect()
    command = b"(setsid sleep 402 >/dev/null 2>&1 &); head -c 400000 /dev/zero; : > /tmp/over"
    client.call(remove=wire.RemoveRequest(path="/tmp/over"))
    # More than the socket holds, and no more than is queued before the program is held back.
    other.start([b"/bin/sh", b"-c", command], stream=True, stream_limit_bytes=GIB)
    assert eventually(lambda: client.call(stat=wire.StatRequest(path="/tmp/over")).WhichOneof("reply") == "entry", 10)
    assert int(client.output(SURVIVORS)) == 1
    other.close()
    assert eventually(lambda: int(client.output(SURVIVORS)) == 0, 10)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"stream_limit_bytes": 1}, "set stream"),
        ({"stream_limit_bytes": 1, "stream": True, "output_limit": wire.OutputLimit()}, "exclude each other"),
        ({"stream_limit_bytes": 1 << 41, "stream": True}, "1 TiB"),
        ({"output_limit": wire.OutputLimit(spill_quota_bytes=1 << 41)}, "spill_quota_bytes"),
    ],
)
def test_fields_that_do_not_go_together_are_reported(client: Client, fields: dict[str, object], message: str) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=[b"true"], **fields))
    assert reply.failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert message in reply.failure.message


def test_a_gibibyte_that_is_evicted_costs_constant_memory_and_is_described_exactly(
    sandbox: Sandbox, client: Client
) -> None:
    with ServerMemory(sandbox) as memory:
        reply = client.execute(
            "head -c 1G /dev/zero; echo; echo end; exit 7", output_limit=limit("big.txt"), timeout_ms=120_000
        )
    assert (reply.outcome, reply.exit_code, reply.output_bytes) == (wire.OUTCOME_EXITED, 7, GIB + 5)
    assert (reply.evicted.size_bytes, reply.evicted.lines, reply.evicted.incomplete) == (64 * MIB, 1, True)
    assert reply.evicted.sha256 == hashlib.sha256(bytes(64 * MIB)).hexdigest()
    assert text(reply.output) == bytes(2000)
    assert text(reply.tail) == bytes(1995) + b"\nend\n"
    assert client.call(stat=wire.StatRequest(path=f"{DIRECTORY}/big.txt")).entry.size_bytes == 64 * MIB
    assert memory.growth_bytes < 32 * MIB
    client.call(remove=wire.RemoveRequest(path=f"{DIRECTORY}/big.txt"))


def test_256_mebibytes_that_are_streamed_cost_constant_memory(sandbox: Sandbox, client: Client) -> None:
    size = 0
    with ServerMemory(sandbox) as memory:
        client.start([b"/bin/sh", b"-c", b"head -c 256M /dev/zero; exit 7"], stream=True, stream_limit_bytes=GIB)
        for reply in frames(client):
            size += len(reply.output.data)
    assert (reply.exec.outcome, reply.exec.exit_code, size) == (wire.OUTCOME_EXITED, 7, 256 * MIB)
    assert memory.growth_bytes < 32 * MIB


def test_a_program_that_writes_byte_by_byte_to_both_streams_is_paused_in_time(sandbox: Sandbox, client: Client) -> None:
    other = sandbox.connect()
    script = b"import os\nfor n in range(60_000):\n  os.write(1, b'o'); os.write(2, b'e')\nopen('/tmp/alternated', 'w')"
    with ServerMemory(sandbox) as memory:
        other.start([b"python3", b"-c", script], stream=True, stream_limit_bytes=GIB)
        over = wire.StatRequest(path="/tmp/alternated")
        assert eventually(lambda: client.call(stat=over).WhichOneof("reply") == "entry", 60)
        kept, end = streamed(other)
    assert kept == {OUT: b"o" * 60_000, ERR: b"e" * 60_000}
    assert end.outcome == wire.OUTCOME_EXITED
    assert memory.growth_bytes < 32 * MIB


@pytest.mark.parametrize("stream", [True, False])
def test_fifty_mebibytes_go_through_a_program_that_writes_while_it_reads(client: Client, stream: bool) -> None:
    pieces = [bytes([n]) * MIB for n in range(50)]

    def give() -> None:
        for piece in pieces:
            client.send(wire.Input(data=piece))
        client.send(wire.Input(end=True))

    fields = {"stream_limit_bytes": GIB} if stream else {"output_limit": limit("cat.txt")}
    client.start([b"/bin/cat"], stdin=True, stream=stream, timeout_ms=60_000, **fields)
    giving = threading.Thread(target=give)
    giving.start()
    kept, end = streamed(client)
    giving.join()
    assert (end.outcome, end.output_bytes) == (wire.OUTCOME_EXITED, 50 * MIB)
    whole = b"".join(pieces)
    if stream:
        assert kept[OUT] == whole
    else:
        assert (end.evicted.sha256, end.evicted.incomplete) == (hashlib.sha256(whole).hexdigest(), False)
        client.call(remove=wire.RemoveRequest(path=f"{DIRECTORY}/cat.txt"))
