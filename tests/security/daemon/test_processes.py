"""Background processes: each connection finds them, reads them, steers them, and ends them with all they started."""

from __future__ import annotations

import itertools
import select
import statistics
import time
from collections.abc import Iterator

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client, Sandbox
from tests.waiting import eventually

DIRECTORY = "/workspace/.airlock/processes"
STDOUT, STDERR = wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def no_processes(sandbox: Sandbox) -> Iterator[None]:
    """Every test begins without processes and ends so."""
    yield
    cleaner = sandbox.connect()
    for process in listed(cleaner).processes:
        cleaner.call(process_remove=wire.ProcessRemoveRequest(id=process.id))
    cleaner.call(process_signal=wire.ProcessSignalRequest(signal=9, tree=True))
    assert (len(listed(cleaner).processes), listed(cleaner).strays) == (0, 0)


def new_id() -> str:
    return f"process-{next(_numbers)}"


def start(client: Client, command: str, **fields: object) -> wire.Process:
    request = wire.ProcessStartRequest(
        **({"id": new_id(), "argv": [b"/bin/sh", b"-c", command.encode()]} | fields)  # type: ignore[arg-type]
    )
    reply = client.call(process_start=request)
    assert reply.WhichOneof("reply") == "process", reply
    return reply.process


def listed(client: Client) -> wire.ProcessListReply:
    reply = client.call(process_list=wire.ProcessListRequest())
    assert reply.WhichOneof("reply") == "process_list", reply
    return reply.process_list


def page(client: Client, process: wire.Process, offset: int = 0, **fields: object) -> wire.ProcessReadReply:
    request = wire.ProcessReadRequest(
        **({"id": process.id, "stream": STDOUT, "offset": offset, "limit_bytes": 1 << 20, "wait_ms": 20_000} | fields)
    )
    reply = client.call(process_read=request)
    assert reply.WhichOneof("reply") == "process_read", reply
    return reply.process_read


def follow(client: Client, process: wire.Process, until: bytes | None = None, **fields: object) -> bytes:
    """Return the output, up to its end or up to where it has `until`; nothing of it may be lost."""
    data = b""
    while until is None or until not in data:
        got = page(client, process, len(data), **fields)
        assert got.offset == len(data)
        data += got.data
        if got.end:
            assert until is None, data
            return data
        assert got.data, f"nothing came for 20 s after {data[-500:]!r}"
    return data


def write(client: Client, process: wire.Process, data: bytes, **fields: object) -> wire.Reply:
    request = wire.ProcessWriteRequest(id=process.id, data=data, **({"wait_ms": 20_000} | fields))
    return client.call(process_write=request)


def send_signal(client: Client, process: wire.Process, number: int, *, tree: bool = False) -> wire.Reply:
    return client.call(process_signal=wire.ProcessSignalRequest(id=process.id, signal=number, tree=tree))


def wait(client: Client, process: wire.Process, wait_ms: int = 20_000) -> wire.Process:
    reply = client.call(process_wait=wire.ProcessWaitRequest(id=process.id, wait_ms=wait_ms))
    assert reply.WhichOneof("reply") == "process", reply
    return reply.process


def remove(client: Client, process: wire.Process) -> wire.Process:
    reply = client.call(process_remove=wire.ProcessRemoveRequest(id=process.id))
    assert reply.WhichOneof("reply") == "process", reply
    return reply.process


def kill_strays(client: Client) -> wire.Reply:
    return client.call(process_signal=wire.ProcessSignalRequest(signal=9, tree=True))


def test_a_process_runs_on_and_reports_its_end(client: Client) -> None:
    process = start(client, "echo out; echo err >&2; exit 3")
    assert process.pid > 1
    ended = wait(client, process)
    assert (ended.running, ended.outcome, ended.exit_code) == (False, wire.OUTCOME_EXITED, 3)
    assert follow(client, process) == b"out\n"
    assert follow(client, process, stream=STDERR) == b"err\n"
    assert ended.started_ns > 1_600_000_000 * 10**9
    assert ended.duration_us > 0
    (again,) = listed(client).processes
    assert again.duration_us == ended.duration_us


def test_who_hears_of_the_end_has_all_that_was_written(client: Client) -> None:
    for _ in range(20):
        process = start(client, "head -c 3000000 /dev/zero", output_directory=DIRECTORY, file_limit_bytes=4_000_000)
        ended = wait(client, process)
        assert (ended.running, ended.stdout.size_bytes, ended.stdout.closed) == (False, 3_000_000, True)
        assert page(client, process, 3_000_000, wait_ms=0).end
        remove(client, process)


def test_the_pace_of_others_takes_nothing_away_from_who_has_ended(client: Client) -> None:
    for _ in range(48):
        start(client, "yes")
    for _ in range(5):
        process = start(client, "head -c 3000000 /dev/zero")
        ended = wait(client, process, 60_000)
        assert (ended.running, ended.stdout.size_bytes, ended.stdout.closed) == (False, 3_000_000, True)
        remove(client, process)


def test_a_list_never_reports_an_end_before_the_output_is_complete(client: Client) -> None:
    found = wire.Process()

    def has_ended() -> bool:
        found.CopyFrom(listed(client).processes[0])
        assert found.running == (found.outcome == wire.OUTCOME_UNSPECIFIED)
        return not found.running

    for terminal in (False, True) * 5:
        process = start(client, "head -c 3000000 /dev/zero", terminal=terminal)
        assert eventually(has_ended, 20)
        assert (found.outcome, found.stdout.size_bytes, found.stdout.closed) == (wire.OUTCOME_EXITED, 3_000_000, True)
        remove(client, process)


def test_a_child_that_goes_on_writing_holds_the_end_back_for_a_moment_only(client: Client) -> None:
    for terminal in (False, True):
        process = start(client, "trap '' HUP; yes & exit 4", terminal=terminal)
        ended = wait(client, process)
        assert (ended.running, ended.exit_code, ended.stdout.closed, ended.tree) == (False, 4, False, 1)


def test_a_process_outlives_the_connection_and_the_next_one_finds_all_of_it(sandbox: Sandbox) -> None:
    first = sandbox.connect()
    process = start(first, "echo before; read line; echo after $line", stdin=True)
    assert follow(first, process, b"before\n") == b"before\n"
    first.close()
    second = sandbox.connect()
    (found,) = listed(second).processes
    assert (found.id, found.pid, found.running, found.tree) == (process.id, process.pid, True, 1)
    assert list(found.argv) == [b"/bin/sh", b"-c", b"echo before; read line; echo after $line"]
    write(second, found, b"the restart\n")
    assert follow(second, found) == b"before\nafter the restart\n"


def test_a_page_is_waited_for_and_others_are_served_meanwhile(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "read line; echo $line", stdin=True)
    reader = sandbox.connect()
    request = wire.ProcessReadRequest(id=process.id, stream=STDOUT, limit_bytes=100, wait_ms=60_000)
    reader.send(wire.Request(process_read=request))
    assert eventually(lambda: client.call(health=wire.HealthRequest()).health.calls == 2, 10)
    write(client, process, b"now\n")
    assert reader.receive().process_read.data == b"now\n"


def test_a_page_that_is_not_waited_for_is_empty(client: Client) -> None:
    process = start(client, "sleep 100")
    got = page(client, process, wait_ms=0)
    assert (got.data, got.end, got.size_bytes) == (b"", False, 0)
    assert page(client, process, offset=10, wait_ms=50).offset == 10


def test_pages_are_no_longer_than_asked_and_go_on_by_offset(client: Client) -> None:
    process = start(client, "printf 0123456789")
    wait(client, process)
    pages = [page(client, process, offset, limit_bytes=4) for offset in (0, 4, 8)]
    assert [got.data for got in pages] == [b"0123", b"4567", b"89"]
    assert [got.end for got in pages] == [False, False, True]


def test_stderr_can_come_in_order_with_stdout(client: Client) -> None:
    process = start(client, "for i in 1 2 3; do echo o$i; echo e$i >&2; done", merge_stderr=True)
    assert follow(client, process) == b"o1\ne1\no2\ne2\no3\ne3\n"
    assert not wait(client, process).HasField("stderr")
    failure = client.call(
        process_read=wire.ProcessReadRequest(id=process.id, stream=STDERR, limit_bytes=1, wait_ms=0)
    ).failure
    assert failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert "no stderr of its own" in failure.message


def test_a_child_that_holds_the_pipe_goes_on_being_collected(client: Client) -> None:
    process = start(client, "exec 3<&0; (read line <&3; echo late) & echo early", stdin=True)
    assert follow(client, process, b"early\n") == b"early\n"
    ended = wait(client, process)
    assert (ended.running, ended.stdout.closed, ended.tree) == (False, False, 1)
    write(client, process, b"\n")
    assert follow(client, process) == b"early\nlate\n"
    assert listed(client).processes[0].stdout.closed


def test_stdin_streams_and_its_end_is_passed_on(client: Client) -> None:
    process = start(client, "cat | sha256sum", stdin=True)
    import hashlib

    digest = hashlib.sha256()
    for index in range(8):
        data = bytes([index]) * (1 << 20)
        digest.update(data)
        assert write(client, process, data, end=index == 7).process.stdin_open == (index < 7)
    assert follow(client, process).split()[0].decode() == digest.hexdigest()


def test_what_found_no_room_is_reported_in_bytes(client: Client) -> None:
    process = start(client, "read line; sleep 0.2; cat", stdin=True, ring_bytes=1 << 20)
    data = b"\n" + b"x" * (1 << 19)
    failure = write(client, process, data, wait_ms=50, end=True).failure
    assert failure.kind == wire.FAILURE_KIND_TOO_LARGE
    taken = failure.taken_bytes
    assert 0 < taken < len(data)
    assert failure.message.startswith(f"{taken} of {len(data)} bytes")
    assert write(client, process, data[taken:], end=True).WhichOneof("reply") == "process"
    assert follow(client, process) == data[1:]


def test_a_write_may_be_made_again_by_its_id_or_its_offset(client: Client) -> None:
    process = start(client, "cat", stdin=True)
    assert write(client, process, b"one ", request_id="a").process.stdin_taken_bytes == 4
    for _ in range(2):
        assert write(client, process, b"two ", request_id="b").process.stdin_taken_bytes == 8
    assert write(client, process, b"one ", request_id="a").process.stdin_taken_bytes == 8
    assert write(client, process, b"two and three", offset=4).process.stdin_taken_bytes == 17
    failure = write(client, process, b"x", offset=18).failure
    assert (failure.kind, failure.taken_bytes) == (wire.FAILURE_KIND_INPUT_GAP, 17)
    assert "18" in failure.message
    assert write(client, process, b"x", request_id="a").failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert write(client, process, b"x", request_id="a" * 129).failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    for _ in range(2):
        assert not write(client, process, b"\n", end=True, request_id="c").process.stdin_open
    assert follow(client, process) == b"one two and three\n"


def test_what_found_no_room_goes_on_with_the_same_write(client: Client) -> None:
    process = start(client, "read line; sleep 0.2; cat", stdin=True, ring_bytes=1 << 20)
    data = b"\n" + bytes(range(32, 127)) * 5_000
    failure = write(client, process, data, wait_ms=50, end=True, request_id="a").failure
    assert 0 < failure.taken_bytes < len(data)
    assert write(client, process, data, end=True, request_id="a").process.stdin_taken_bytes == len(data)
    assert follow(client, process) == data[1:]


def test_the_end_of_a_terminals_input_is_typed_once(client: Client) -> None:
    process = start(client, "cat; echo over; cat; echo out", **TERMINAL)
    for _ in range(3):
        assert write(client, process, b"text\n", end=True, request_id="a").process.stdin_taken_bytes == 6
    follow(client, process, b"over")
    write(client, process, b"", end=True)
    assert follow(client, process) == b"text\r\ntext\r\nover\r\nout\r\n"


def test_writing_without_a_reader_is_a_conflict(client: Client) -> None:
    process = start(client, "true", stdin=True)
    assert not wait(client, process).stdin_open
    failure = write(client, process, b"x").failure
    assert (failure.kind, failure.errno, failure.taken_bytes) == (wire.FAILURE_KIND_CONFLICT, 32, 0)
    failure = write(client, start(client, "sleep 100"), b"x").failure
    assert failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert "without stdin" in failure.message


def test_writers_take_turns_and_no_one_cuts_into_another(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "sleep 0.2; cat", stdin=True, ring_bytes=1 << 20)
    others = [sandbox.connect() for _ in range(4)]
    for index, other in enumerate(others):
        request = wire.ProcessWriteRequest(id=process.id, data=b"%d" % index * 200_000, wait_ms=20_000)
        other.send(wire.Request(process_write=request))
    assert {other.receive().WhichOneof("reply") for other in others} == {"process"}
    write(client, process, b"", end=True)
    pieces = [(value, len(list(run))) for value, run in itertools.groupby(follow(client, process))]
    assert sorted(pieces) == [(ord(str(index)), 200_000) for index in range(4)]


TERMINAL = {"terminal": True}


def test_a_terminal_is_one_and_has_its_size_and_kind(client: Client) -> None:
    process = start(
        client, "test -t 0 && test -t 1 && test -t 2 && tty && echo $TERM && stty size", **TERMINAL,
        size=wire.WindowSize(rows=50, columns=132),
    )  # fmt: skip
    assert follow(client, process) == b"/dev/pts/0\r\nxterm-256color\r\n50 132\r\n"
    ended = wait(client, process)
    assert (ended.exit_code, ended.terminal, ended.size.rows, ended.size.columns) == (0, True, 50, 132)
    assert not ended.HasField("stderr")
    process = start(client, "echo $TERM; stty size", **TERMINAL, env={"TERM": "dumb"})
    assert follow(client, process) == b"dumb\r\n24 80\r\n"


def test_a_terminal_echoes_and_a_shell_has_job_control(client: Client) -> None:
    process = start(client, "", argv=[b"/bin/bash", b"--norc", b"-i"], **TERMINAL, env={"PS1": "> "})
    follow(client, process, b"> ")
    write(client, process, b"echo $((6*7)); jobs; set -o | grep monitor\n")
    seen = follow(client, process, b"monitor        \ton")
    assert b"echo $((6*7))" in seen
    assert b"\r42\r\n" in seen
    write(client, process, b"exit 5\n")
    assert wait(client, process).exit_code == 5


def test_a_resize_reaches_the_foreground(client: Client) -> None:
    process = start(client, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done", **TERMINAL)
    follow(client, process, b"ready")
    resize = wire.ProcessResizeRequest(id=process.id, size=wire.WindowSize(rows=33, columns=99))
    assert client.call(process_resize=resize).process.size.columns == 99
    follow(client, process, b"33 99\r\n")
    failure = client.call(process_resize=wire.ProcessResizeRequest(id=start(client, "true").id, size=resize.size))
    assert failure.failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT


def test_control_c_typed_interrupts(client: Client) -> None:
    process = start(client, "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done", **TERMINAL)
    follow(client, process, b"ready")
    write(client, process, b"\x03")
    assert wait(client, process).exit_code == 7
    assert b"caught" in follow(client, process)


def test_the_end_of_a_terminals_input_is_typed(client: Client) -> None:
    process = start(client, "cat; echo over", **TERMINAL)
    assert write(client, process, b"text\n", end=True).process.stdin_open
    assert follow(client, process) == b"text\r\ntext\r\nover\r\n"
    assert not listed(client).processes[0].stdin_open
    process = start(client, "stty eof ^X; echo ready; cat; echo over", **TERMINAL)
    follow(client, process, b"ready")
    write(client, process, b"", end=True)
    assert follow(client, process).endswith(b"over\r\n")


def test_a_program_that_lets_go_of_its_terminal_can_come_back_to_it(client: Client) -> None:
    command = "exec </dev/null >/dev/null 2>&1; sleep 0.2; echo back >/dev/tty"
    assert follow(client, start(client, command, **TERMINAL)) == b"back\r\n"


def test_everything_a_terminal_was_given_arrives_before_its_end(client: Client) -> None:
    process = start(client, "stty -opost; seq 1 20000", **TERMINAL, ring_bytes=1 << 20)
    assert follow(client, process) == b"".join(b"%d\n" % number for number in range(1, 20_001))


def test_a_signal_goes_to_the_process_group_only(client: Client) -> None:
    process = start(client, "setsid sh -c 'echo ready; sleep 100; true' & sleep 100 & wait")
    follow(client, process, b"ready")
    assert eventually(lambda: listed(client).processes[0].tree == 4, 10)
    assert send_signal(client, process, 15).process.id == process.id
    ended = wait(client, process)
    assert (ended.outcome, ended.signal) == (wire.OUTCOME_SIGNALLED, 15)
    assert eventually(lambda: listed(client).processes[0].tree == 2, 10)
    failure = send_signal(client, process, 15).failure
    assert failure.kind == wire.FAILURE_KIND_CONFLICT
    assert "has ended" in failure.message


def test_a_signal_to_the_tree_reaches_every_session(client: Client) -> None:
    # The second setsid forks: a signal just then would miss its child.
    process = start(
        client, "setsid sleep 100 & (setsid setsid sh -c 'echo ready; exec sleep 100' &) & sleep 100 & wait"
    )
    follow(client, process, b"ready")
    assert eventually(lambda: listed(client).processes[0].tree == 4, 10)
    send_signal(client, process, 15, tree=True)
    assert eventually(lambda: listed(client).processes[0].tree == 0, 10)
    process = start(client, "trap '' TERM; setsid sh -c 'sleep 100; sleep 100' & sleep 100; sleep 100")
    assert eventually(lambda: listed(client).processes[1].tree == 4, 10)
    reply = send_signal(client, process, 9, tree=True).process
    assert (reply.tree, wait(client, process).signal) == (0, 9)


def test_a_stopped_process_goes_on_when_it_is_continued(client: Client) -> None:
    process = start(client, "read line; echo $line", stdin=True)
    send_signal(client, process, 19)
    write(client, process, b"x\n")
    assert wait(client, process, 100).running
    send_signal(client, process, 18)
    assert follow(client, process) == b"x\n"


def test_a_wait_that_is_over_first_says_that_it_still_runs(client: Client) -> None:
    process = start(client, "sleep 100 & wait")
    assert eventually(lambda: listed(client).processes[0].tree == 2, 10)
    waited = wait(client, process, 20)
    assert (waited.running, waited.outcome, waited.tree) == (True, wire.OUTCOME_UNSPECIFIED, 2)


def test_everybody_who_waits_hears_of_the_end(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "read line", stdin=True)
    waiting = [sandbox.connect() for _ in range(5)]
    for other in waiting:
        other.send(wire.Request(process_wait=wire.ProcessWaitRequest(id=process.id, wait_ms=60_000)))
    write(client, process, b"\n")
    assert [other.receive().process.running for other in waiting] == [False] * 5


def test_two_who_remove_at_once_are_both_answered(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "yes & yes")
    others = [sandbox.connect() for _ in range(4)]
    for other in others:
        other.send(wire.Request(process_remove=wire.ProcessRemoveRequest(id=process.id)))
    replies = [other.receive() for other in others]
    assert "process" in {reply.WhichOneof("reply") for reply in replies}
    assert {reply.failure.kind for reply in replies if reply.HasField("failure")} <= {wire.FAILURE_KIND_NOT_FOUND}
    assert not listed(client).processes


def test_removing_kills_the_tree_and_gives_back_the_id(client: Client) -> None:
    process = start(client, "echo said; setsid sleep 100 & (setsid sleep 100 &) ; sleep 100")
    assert eventually(lambda: listed(client).processes[0].tree == 4, 10)
    removed = remove(client, process)
    assert (removed.running, removed.outcome, removed.tree) == (False, wire.OUTCOME_CANCELLED, 0)
    assert (removed.stdout.size_bytes, removed.stdout.closed) == (5, True)
    assert (len(listed(client).processes), listed(client).strays) == (0, 0)
    for request in (
        {"process_wait": wire.ProcessWaitRequest(id=process.id)},
        {"process_remove": wire.ProcessRemoveRequest(id=process.id)},
        {"process_read": wire.ProcessReadRequest(id=process.id, stream=STDOUT, limit_bytes=1)},
    ):
        failure = client.call(**request).failure
        assert failure.kind == wire.FAILURE_KIND_NOT_FOUND
        assert process.id in failure.message
    assert start(client, "true", id=process.id).pid != process.pid


def test_two_who_remove_at_once_both_get_an_answer(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "sleep 100")
    others = [sandbox.connect() for _ in range(4)]
    for other in others:
        other.send(wire.Request(process_remove=wire.ProcessRemoveRequest(id=process.id)))
    replies = [other.receive() for other in others]
    assert "process" in {reply.WhichOneof("reply") for reply in replies}
    for reply in replies:
        assert reply.WhichOneof("reply") == "process" or reply.failure.kind == wire.FAILURE_KIND_NOT_FOUND


def test_removing_ends_the_wait_of_a_reader(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "sleep 100")
    reader = sandbox.connect()
    request = wire.ProcessReadRequest(id=process.id, stream=STDOUT, limit_bytes=1, wait_ms=60_000)
    reader.send(wire.Request(process_read=request))
    remove(client, process)
    assert reader.receive().process_read.end


def test_a_time_limit_kills_the_tree(client: Client) -> None:
    process = start(client, "setsid sleep 100 & echo started; sleep 100", timeout_ms=300)
    ended = wait(client, process)
    assert (ended.running, ended.outcome, ended.signal) == (False, wire.OUTCOME_TIMED_OUT, 0)
    assert eventually(lambda: listed(client).processes[0].tree == 0, 10)
    assert follow(client, process) == b"started\n"


def test_a_time_limit_reaches_what_the_first_process_left_behind(client: Client) -> None:
    process = start(client, "setsid sleep 100 & exit 4", timeout_ms=500)
    assert wait(client, process).exit_code == 4
    assert eventually(lambda: listed(client).processes[0].tree == 0, 10)
    assert wait(client, process).outcome == wire.OUTCOME_EXITED


def test_output_past_the_ring_is_in_a_file_from_its_first_byte(client: Client) -> None:
    process = start(
        client, "seq 1 40000; echo small >&2", output_directory=DIRECTORY, file_limit_bytes=1 << 30, ring_bytes=4096
    )
    whole = b"".join(b"%d\n" % number for number in range(1, 40_001))
    assert follow(client, process, limit_bytes=50_000) == whole
    ended = wait(client, process)
    path = f"{DIRECTORY}/{process.id}.stdout"
    assert (ended.stdout.path, ended.stdout.path_bytes, ended.stdout.size_bytes) == (path, len(whole), len(whole))
    assert ended.stdout.ring_offset == len(whole) - 4096
    assert (ended.stderr.path, ended.stderr.size_bytes) == ("", 6)
    assert client.call(read=wire.ReadRequest(path=path)).read.data == whole
    remove(client, process)
    assert client.call(stat=wire.StatRequest(path=path)).entry.size_bytes == len(whole)
    assert client.output("cd /workspace; cat .airlock/.gitignore; stat -c %u:%g:%a " + path) == "*\n10001:10001:644\n"


def test_without_a_file_old_output_is_lost_and_the_offset_says_so(client: Client) -> None:
    process = start(client, "seq 1 40000", ring_bytes=1000)
    ended = wait(client, process)
    assert eventually(lambda: listed(client).processes[0].stdout.closed, 10)
    whole = b"".join(b"%d\n" % number for number in range(1, 40_001))
    got = page(client, ended)
    assert (got.offset, got.data, got.end) == (len(whole) - 1000, whole[-1000:], True)


def test_a_file_ends_at_its_limit_and_the_newest_output_is_still_there(client: Client) -> None:
    process = start(
        client, "seq 1 40000", ring_bytes=1000, output_directory=DIRECTORY, file_limit_bytes=50_000
    )  # fmt: skip
    whole = b"".join(b"%d\n" % number for number in range(1, 40_001))
    wait(client, process)
    assert eventually(lambda: listed(client).processes[0].stdout.closed, 10)
    got = page(client, process, 10, wait_ms=0)
    assert (got.offset, got.data) == (10, whole[10:50_000])
    got = page(client, process, 50_000)
    assert (got.offset, got.data, got.end) == (len(whole) - 1000, whole[-1000:], True)
    assert listed(client).processes[0].stdout.path_bytes == 50_000


def test_a_full_disk_ends_the_file_and_not_the_program(client: Client) -> None:
    command = "head -c 300000000 /dev/zero; echo end"
    process = start(client, command, output_directory="/tmp/full", file_limit_bytes=1 << 33)
    ended = wait(client, process)
    assert (ended.outcome, ended.exit_code) == (wire.OUTCOME_EXITED, 0)
    assert eventually(lambda: listed(client).processes[0].stdout.closed, 10)
    stdout = listed(client).processes[0].stdout
    assert stdout.size_bytes == 300_000_004
    assert 0 < stdout.path_bytes < stdout.size_bytes
    assert page(client, process, stdout.size_bytes - 4).data == b"end\n"
    client.call(remove=wire.RemoveRequest(path="/tmp/full", recursive=True))


TAMPERING = {
    "removed": "rm FILE",
    "truncated": ": > FILE",
    "replaced": "rm FILE; seq 1 90000 > FILE",
    "a link": "rm FILE; ln -s /etc/passwd FILE",
    "a hard link": "rm FILE; seq 1 90000 > /workspace/other; ln /workspace/other FILE",
    "a pipe": "rm FILE; mkfifo FILE",
    "a directory": "rm FILE; mkdir FILE",
    "unreadable": "chmod 0 FILE",
    "its directory a link": "rm -rf /workspace/moved; mv DIR /workspace/moved; ln -s /workspace/moved DIR",
}


@pytest.mark.parametrize("what", TAMPERING)
def test_a_file_that_tool_code_tampered_with_is_lost_output_and_no_more(client: Client, what: str) -> None:
    client.execute("rm -rf /workspace/tampered")
    process = start(
        client, "seq 1 20000; read line; echo $line", stdin=True,
        output_directory="/workspace/tampered", file_limit_bytes=1 << 30, ring_bytes=1000,
    )  # fmt: skip
    whole = b"".join(b"%d\n" % number for number in range(1, 20_001))
    assert follow(client, process, b"\n20000\n") == whole
    path = f"/workspace/tampered/{process.id}.stdout"
    reply = client.execute(TAMPERING[what].replace("FILE", path).replace("DIR", "/workspace/tampered"))
    assert reply.exit_code == 0, reply
    got = page(client, process, limit_bytes=500)
    assert (got.offset, got.data) == (len(whole) - 1000, whole[-1000:-500])
    write(client, process, b"later\n", end=True)
    assert page(client, process, len(whole)).data == b"later\n"
    assert wait(client, process).exit_code == 0


@pytest.mark.parametrize("plant", ["ln -s /workspace/victim DIR", "mkdir DIR; ln -s /workspace/victim FILE"])
def test_a_link_planted_for_the_file_is_not_written_through(client: Client, plant: str) -> None:
    client.execute("rm -rf /workspace/planted /workspace/victim; echo old > /workspace/victim")
    process_id = new_id()
    directory = "/workspace/planted"
    client.execute(plant.replace("DIR", directory).replace("FILE", f"{directory}/{process_id}.stdout"))
    process = start(client, "seq 1 20000", id=process_id, output_directory=directory, file_limit_bytes=1 << 20)
    wait(client, process)
    assert client.output("cat /workspace/victim") == "old\n"


def test_a_program_without_a_reader_is_neither_delayed_nor_kept_in_memory(sandbox: Sandbox, client: Client) -> None:
    before = daemon_memory_bytes(sandbox)
    many = [start(client, "head -c 20000000 /dev/zero; echo end", ring_bytes=65_536) for _ in range(16)]
    for process in many:
        assert wait(client, process, 60_000).exit_code == 0
    assert eventually(lambda: all(process.stdout.closed for process in listed(client).processes), 20)
    for process in listed(client).processes:
        assert process.stdout.size_bytes == 20_000_004
    assert daemon_memory_bytes(sandbox) - before < 16 * (65_536 + 64 * 1024) + (4 << 20)


def daemon_memory_bytes(sandbox: Sandbox) -> int:
    """Return the anonymous memory of the server, as the host sees it."""
    processes = sandbox.container.top(ps_args="-o pid,args")["Processes"]
    pid = processes[1][0]
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    pytest.fail("the server has no memory")


def test_sixty_four_run_at_once_and_the_next_one_reads_what_to_do(client: Client) -> None:
    many = [start(client, "sleep 100") for _ in range(64)]
    reply = client.call(process_start=wire.ProcessStartRequest(id="one-more", argv=[b"/bin/true"]))
    assert reply.failure.kind == wire.FAILURE_KIND_CONFLICT
    assert "end or remove one" in reply.failure.message
    assert client.call(health=wire.HealthRequest()).health.processes == 64
    send_signal(client, many[10], 9)
    wait(client, many[10])
    start(client, "sleep 100")
    ids = [process.id for process in listed(client).processes]
    assert len(ids) == 64
    assert many[10].id not in ids
    assert ids[:3] == [process.id for process in many[:3]]


def test_a_forgotten_process_leaves_its_children_as_strays_that_can_go_on_writing(client: Client) -> None:
    client.execute("rm -f /tmp/alive; mkfifo /tmp/release")
    process = start(client, "(read x < /tmp/release; echo noise; echo noise; touch /tmp/alive; sleep 100) & exit 0")
    wait(client, process)
    for _ in range(64):
        wait(client, start(client, "true"))
    assert process.id not in [other.id for other in listed(client).processes]
    client.execute("echo > /tmp/release; rm /tmp/release")
    assert eventually(lambda: client.call(stat=wire.StatRequest(path="/tmp/alive")).HasField("entry"), 10)
    assert listed(client).strays >= 1
    kill_strays(client)
    assert listed(client).strays == 0


def test_an_id_in_use_is_a_conflict_also_when_it_has_ended(client: Client) -> None:
    process = start(client, "true")
    wait(client, process)
    reply = client.call(process_start=wire.ProcessStartRequest(id=process.id, argv=[b"/bin/true"]))
    assert reply.failure.kind == wire.FAILURE_KIND_CONFLICT
    assert "is in use" in reply.failure.message


def test_of_two_who_want_one_id_at_once_one_gets_it(sandbox: Sandbox, client: Client) -> None:
    others = [sandbox.connect() for _ in range(8)]
    for other in others:
        request = wire.ProcessStartRequest(id="wanted", argv=[b"/bin/sleep", b"100"])
        other.send(wire.Request(process_start=request))
    replies = [other.receive() for other in others]
    assert [reply.WhichOneof("reply") for reply in replies].count("process") == 1
    assert {reply.failure.kind for reply in replies if reply.HasField("failure")} == {wire.FAILURE_KIND_CONFLICT}
    assert listed(client).processes[0].tree == 1


def test_a_process_that_the_kernel_killed_for_memory_reports_it(client: Client) -> None:
    process = start(client, "", argv=[b"python3", b"-c", b"x = bytearray(1 << 30)"])
    assert wait(client, process).outcome == wire.OUTCOME_OUT_OF_MEMORY
    process = start(client, "python3 -c 'x = bytearray(1 << 30)'; exit $?")
    assert wait(client, process).outcome == wire.OUTCOME_OUT_OF_MEMORY
    process = start(client, "sleep 100")
    send_signal(client, process, 9)
    ended = wait(client, process)
    assert (ended.outcome, ended.signal) == (wire.OUTCOME_SIGNALLED, 9)


@pytest.mark.parametrize(
    "argv, kind, errno",
    [
        ([b"/no/such/program"], wire.FAILURE_KIND_NOT_FOUND, 2),
        ([b"/etc/passwd"], wire.FAILURE_KIND_PERMISSION_DENIED, 13),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_what_cannot_start_is_a_failure_and_leaves_the_id_free(
    client: Client, argv: list[bytes], kind: int, errno: int, *, terminal: bool
) -> None:
    reply = client.call(process_start=wire.ProcessStartRequest(id="fails", argv=argv, terminal=terminal))
    assert (reply.failure.kind, reply.failure.errno) == (kind, errno)
    assert argv[0].decode() in reply.failure.message
    assert not listed(client).processes


def test_the_caller_that_hangs_up_during_a_start_leaves_the_id_free_or_the_process_listed(sandbox: Sandbox) -> None:
    for index in range(20):
        hasty = sandbox.connect()
        request = wire.ProcessStartRequest(id=f"hasty-{index}", argv=[b"/bin/sleep", b"100"])
        hasty.send(wire.Request(process_start=request))
        hasty.close()
    client = sandbox.connect()
    assert eventually(lambda: client.call(health=wire.HealthRequest()).health.calls == 1, 10)
    survived = {process.id for process in listed(client).processes}
    for index in range(20):
        reply = client.call(process_remove=wire.ProcessRemoveRequest(id=f"hasty-{index}"))
        assert reply.WhichOneof("reply") == ("process" if f"hasty-{index}" in survived else "failure")
    assert listed(client).strays == 0
    assert start(client, "true", id="hasty-0").id == "hasty-0"


BAD = [
    ({"process_start": {"id": "", "argv": [b"/bin/true"]}}, "id"),
    ({"process_start": {"id": "a" * 65, "argv": [b"/bin/true"]}}, "id"),
    ({"process_start": {"id": "../x", "argv": [b"/bin/true"]}}, "id"),
    ({"process_start": {"id": "ä", "argv": [b"/bin/true"]}}, "id"),
    ({"process_start": {"id": "a"}}, "argv"),
    ({"process_start": {"id": "a", "argv": [b"a\0b"]}}, "argv"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "env": {"A=B": ""}}}, "env"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "cwd": "relative"}}, "cwd"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "ring_bytes": (1 << 20) + 1}}, "ring_bytes"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "timeout_ms": 2**32 - 1}}, "timeout_ms"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "file_limit_bytes": 2**63}}, "file_limit_bytes"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "output_directory": "/tmp"}}, "file_limit_bytes"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "terminal": True, "size": {"rows": 1}}}, "size"),
    ({"process_start": {"id": "a", "argv": [b"/bin/true"], "terminal": True, "size": {"rows": 4097}}}, "size"),
    ({"process_read": {"id": "a", "stream": 1}}, "limit_bytes"),
    ({"process_read": {"id": "a", "stream": 1, "limit_bytes": (1 << 20) + 1}}, "limit_bytes"),
    ({"process_read": {"id": "a", "limit_bytes": 1}}, "stream"),
    ({"process_read": {"id": "a", "stream": 7, "limit_bytes": 1}}, "stream"),
    ({"process_read": {"id": "a", "stream": 1, "limit_bytes": 1, "offset": 2**63}}, "offset"),
    ({"process_read": {"id": "a", "stream": 1, "limit_bytes": 1, "wait_ms": 60_001}}, "wait_ms"),
    ({"process_write": {"id": "a", "wait_ms": 60_001}}, "wait_ms"),
    ({"process_wait": {"id": "a", "wait_ms": 60_001}}, "wait_ms"),
    ({"process_wait": {"id": "a b"}}, "id"),
    ({"process_signal": {"id": "a"}}, "signal"),
    ({"process_signal": {"id": "a", "signal": 65}}, "signal"),
    ({"process_signal": {"signal": 15, "tree": True}}, "strays"),
    ({"process_signal": {"signal": 9}}, "strays"),
]


@pytest.mark.parametrize("request_fields, names", BAD, ids=[f"{n}-{names}" for n, (_, names) in enumerate(BAD)])
def test_a_bad_field_is_named(client: Client, request_fields: dict[str, object], names: str) -> None:
    failure = client.call(**request_fields).failure
    assert failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert names in failure.message
    assert not listed(client).processes


def test_other_bad_requests_are_reported_by_kind(client: Client) -> None:
    argv = [b"/bin/true"]
    for request, kind in (
        ({"id": "a", "argv": argv, "output_directory": "x", "file_limit_bytes": 1}, wire.FAILURE_KIND_INVALID_PATH),
        ({"id": "a", "argv": [b"x" * 20_000] * 55}, wire.FAILURE_KIND_TOO_LARGE),
        ({"id": "a", "argv": argv, "cwd": "/no/such"}, wire.FAILURE_KIND_NOT_FOUND),
    ):
        assert client.call(process_start=wire.ProcessStartRequest(**request)).failure.kind == kind
    process = start(client, "sleep 100", **TERMINAL)
    reply = client.call(process_resize=wire.ProcessResizeRequest(id=process.id))
    assert reply.failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    failure = write(client, process, b"x" * ((1 << 20) + 1)).failure
    assert failure.kind == wire.FAILURE_KIND_TOO_LARGE
    assert failure.message.startswith("0 of ")


def test_long_arguments_are_shown_by_their_beginning(client: Client) -> None:
    process = start(client, "", argv=[b"/bin/true", *[b"x" * 1000] * 100])
    assert sum(map(len, process.argv)) == 4096
    assert list(process.argv[:2]) == [b"/bin/true", b"x" * 1000]


def test_what_exec_left_behind_is_counted_and_can_be_killed_while_the_rest_lives(
    sandbox: Sandbox, client: Client
) -> None:
    kept = start(client, "setsid sleep 100 & sleep 100 & wait")
    running = sandbox.connect()
    running.start([b"/bin/sh", b"-c", b"echo runs; sleep 100"], stream=True)
    while running.receive().WhichOneof("reply") != "output":
        pass
    assert eventually(lambda: listed(client).processes[0].tree == 3, 10)
    client.execute("sleep 100 & setsid sleep 100 & (setsid sh -c 'trap \"\" TERM; sleep 100; sleep 100' &) & true")
    assert eventually(lambda: listed(client).strays == 4, 10)
    assert kill_strays(client).process == wire.Process()
    assert (listed(client).strays, listed(client).processes[0].tree) == (0, 3)
    assert wait(client, kept, 0).running
    running.send(wire.Request())  # a byte that is not read before the call ends
    assert client.output("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'echo runs' || true").strip() != "0"


_FULL_S = 120  # on a machine that does much else, bombs grow slowly
FORK_BOMB = "import os,time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.001)"


def test_a_fork_bomb_left_behind_can_be_killed_when_nothing_can_be_started_any_more(client: Client) -> None:
    bomb = f"python3 -c '{FORK_BOMB}'"
    for left_behind in (f"setsid {bomb} &", f"{bomb} &", f"(setsid {bomb} & setsid {bomb} &) &"):
        client.execute(left_behind)
        assert eventually(
            lambda: client.call(exec=wire.ExecRequest(argv=[b"/bin/true"])).exec.outcome == wire.OUTCOME_PIDS_LIMIT,
            _FULL_S,
        )
        health = client.call(health=wire.HealthRequest()).health
        assert health.pids > 200
        assert health.pids_refused > 0
        assert listed(client).strays > 200
        assert kill_strays(client).process.tree == 0
        assert listed(client).strays == 0
        assert client.execute("true").outcome == wire.OUTCOME_EXITED


def test_a_start_at_the_pids_limit_is_a_failure_with_advice(client: Client) -> None:
    bomb = start(client, "", argv=[b"python3", b"-c", FORK_BOMB.encode()])
    reply = wire.Reply()

    def is_refused() -> bool:
        reply.CopyFrom(client.call(process_start=wire.ProcessStartRequest(id=new_id(), argv=[b"/bin/true"])))
        return reply.HasField("failure") and reply.failure.errno == 11

    assert eventually(is_refused, _FULL_S)
    assert reply.failure.kind == wire.FAILURE_KIND_EXHAUSTED
    assert "no process left" in reply.failure.message
    removed = remove(client, bomb)
    assert (removed.running, removed.tree) == (False, 0)
    assert client.execute("true").outcome == wire.OUTCOME_EXITED


def test_health_is_reported_within_a_second_while_tool_code_does_its_worst(sandbox: Sandbox, client: Client) -> None:
    idle = client.call(health=wire.HealthRequest()).health
    assert (idle.calls, idle.processes) == (1, 0)
    assert 0 < idle.memory_bytes <= 512 << 20
    assert idle.pids > 0
    for _ in range(8):
        start(client, "yes", output_directory=DIRECTORY, file_limit_bytes=10 << 20)
    start(client, "while :; do head -c 600000000 /dev/zero | tail; done")
    bomb = start(client, "", argv=[b"python3", b"-c", FORK_BOMB.encode()])
    took_s = []
    for _ in range(50):
        started_s = time.monotonic()
        health = client.call(health=wire.HealthRequest()).health
        took_s.append(time.monotonic() - started_s)
    # A busy machine may be late now and then; a daemon that waits behind tool code is late every time.
    assert statistics.median(took_s) < 1, took_s
    assert health.uptime_ms >= idle.uptime_ms
    assert health.processes >= 8
    # First of all, or each of the others would have to be found among the bomb's.
    assert remove(client, bomb).tree == 0


def test_health_does_not_wait_for_calls_that_fill_every_slot(sandbox: Sandbox, client: Client) -> None:
    process = start(client, "read line", stdin=True)
    blocked = [sandbox.connect() for _ in range(256)]
    for other in blocked:
        # The Input never comes: a call that lasts and needs no process.
        other.send(wire.Request(write=wire.WriteRequest(path="/tmp/never-written")))
    assert eventually(lambda: client.call(health=wire.HealthRequest()).health.calls == 257, 20)
    late = sandbox.connect()
    late.send(wire.Request(stat=wire.StatRequest(path="/tmp")))
    assert eventually(lambda: client.call(health=wire.HealthRequest()).health.calls == 258, 20)
    assert listed(client).processes[0].id == process.id
    blocked[0].close()
    assert late.receive().WhichOneof("reply") == "entry"


def test_calls_that_wait_leave_connections_for_others(sandbox: Sandbox, client: Client) -> None:
    silent = start(client, "sleep 60")
    waiting = wire.ProcessReadRequest(id=silent.id, stream=wire.OUTPUT_STREAM_STDOUT, limit_bytes=1, wait_ms=60_000)
    others = [sandbox.connect() for _ in range(160)]
    for other in others:
        other.send(wire.Request(process_read=waiting))
    # Which of them came too late is for the order in which the daemon got to read them.
    answered, _, _ = select.select([other.connection for other in others], [], [], 60)
    refused = next(other for other in others if other.connection in answered)
    assert refused.receive().failure.kind == wire.FAILURE_KIND_EXHAUSTED
    assert client.output("echo well") == "well\n"
    assert remove(client, silent).id == silent.id
