"""Programs, from their start to their outcome."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client, Sandbox, text
from tests.waiting import eventually

SPILL = "/workspace/.airlock/output/call.txt"


def limit(**fields: int) -> wire.OutputLimit:
    return wire.OutputLimit(
        **({"limit_chars": 80_000, "head_chars": 2_000, "tail_chars": 2_000, "spill_limit_bytes": 1 << 28} | fields),
        spill_path=SPILL,
    )


def test_a_program_that_exits_gives_its_exit_code_and_both_streams_apart(client: Client) -> None:
    reply = client.execute("echo out; echo err >&2; exit 3")
    assert (reply.outcome, reply.exit_code) == (wire.OUTCOME_EXITED, 3)
    streams = {piece.stream: piece.data for piece in reply.output}
    assert streams == {wire.OUTPUT_STREAM_STDOUT: b"out\n", wire.OUTPUT_STREAM_STDERR: b"err\n"}


@pytest.mark.parametrize("code", [124, 137, 143])
def test_exit_codes_that_look_like_signals_are_still_exits(client: Client, code: int) -> None:
    reply = client.execute(f"exit {code}")
    assert (reply.outcome, reply.exit_code) == (wire.OUTCOME_EXITED, code)


def test_a_signal_from_the_program_itself_is_reported(client: Client) -> None:
    reply = client.execute("kill -TERM $$")
    assert (reply.outcome, reply.signal) == (wire.OUTCOME_SIGNALLED, 15)


def test_a_missing_program_fails_to_start_with_its_errno(client: Client) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=[b"/no/such/program"])).exec
    assert (reply.outcome, reply.errno) == (wire.OUTCOME_FAILED_TO_START, 2)


def test_a_missing_working_directory_is_named(client: Client) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=[b"true"], cwd="/no/such"))
    assert reply.failure.kind == wire.FAILURE_KIND_NOT_FOUND
    assert "/no/such" in reply.failure.message


def test_nul_and_invalid_utf8_come_back_as_they_were(client: Client) -> None:
    reply = client.execute(r"printf 'a\000\377\200b'")
    assert text(reply.output) == b"a\x00\xff\x80b"


def test_the_environment_is_the_images_with_the_workspace_as_home(client: Client) -> None:
    reply = client.output('echo "$HOME $PWD $X $AIRLOCK_Y"; id -u; id -g; umask', env={"X": "given"})
    assert reply.split() == ["/workspace", "/workspace", "given", "10001", "10001", "0022"]


def test_a_tool_process_has_no_descriptor_but_its_three(client: Client) -> None:
    names = client.output("python3 -c \"import os; print(sorted(os.listdir('/proc/self/fd')))\"")
    assert names.strip() == "['0', '1', '2', '3']"  # 3 is the listing itself


def test_stdin_reaches_the_program_and_the_connection_serves_another_call(client: Client) -> None:
    client.start([b"/bin/cat"], stdin=True)
    client.send(wire.Input(data=b"x" * 300_000))
    client.send(wire.Input(end=True))
    reply = client.receive()
    assert reply.exec.output_bytes == 300_000
    assert client.execute("true").outcome == wire.OUTCOME_EXITED


def test_unread_stdin_is_not_taken_for_the_next_call(client: Client) -> None:
    client.start([b"/bin/true"], stdin=True)
    assert client.receive().exec.outcome == wire.OUTCOME_EXITED
    client.send(wire.Input(data=b"late"))
    client.send(wire.Input(end=True))
    assert client.output("echo next") == "next\n"


def test_one_mebibyte_of_arguments_works_and_more_is_refused(client: Client) -> None:
    argument = b"a" * 65_536
    reply = client.call(exec=wire.ExecRequest(argv=[b"/bin/sh", b"-c", b"echo $#", b"sh", *[argument] * 16]))
    assert (reply.exec.outcome, text(reply.exec.output)) == (wire.OUTCOME_EXITED, b"16\n")
    reply = client.call(exec=wire.ExecRequest(argv=[b"/bin/true", *[argument] * 16, b"a" * 40_000]))
    assert reply.failure.kind == wire.FAILURE_KIND_TOO_LARGE
    assert "write the data to a file" in reply.failure.message


def test_one_argument_that_the_kernel_refuses_fails_to_start_with_its_errno(client: Client) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=[b"/bin/true", b"a" * (128 * 1024 - 1)])).exec
    assert (reply.outcome, reply.exit_code) == (wire.OUTCOME_EXITED, 0)
    reply = client.call(exec=wire.ExecRequest(argv=[b"/bin/true", b"a" * 128 * 1024])).exec
    assert (reply.outcome, reply.errno) == (wire.OUTCOME_FAILED_TO_START, errno.E2BIG)


def test_output_past_the_limit_is_a_file_with_exactly_the_bytes(client: Client) -> None:
    reply = client.execute("seq 1 40000; echo end >&2", output_limit=limit())
    whole = b"".join(b"%d\n" % n for n in range(1, 40_001)) + b"end\n"
    assert text(reply.output) == whole[:2000]
    assert text(reply.tail) == whole[-2000:]
    assert (reply.evicted.size_bytes, reply.evicted.lines) == (len(whole), 40_001)
    assert reply.evicted.sha256 == hashlib.sha256(whole).hexdigest()
    assert not reply.evicted.incomplete
    page = client.call(read=wire.ReadRequest(path=SPILL)).read
    assert page.data == whole


def test_a_spill_past_its_own_limit_is_incomplete(client: Client) -> None:
    reply = client.execute("seq 1 40000", output_limit=limit(spill_limit_bytes=100_000))
    assert (reply.evicted.size_bytes, reply.evicted.incomplete) == (100_000, True)
    assert text(reply.tail).endswith(b"\n40000\n")


def test_a_full_disk_leaves_the_spill_incomplete_and_the_call_whole(client: Client) -> None:
    request = limit(spill_limit_bytes=1 << 40 >> 6)
    request.spill_path = "/tmp/spill"
    reply = client.execute("head -c 300000000 /dev/zero; echo end", output_limit=request)
    assert reply.outcome == wire.OUTCOME_EXITED
    assert reply.evicted.incomplete
    assert text(reply.tail).endswith(b"end\n")
    client.call(remove=wire.RemoveRequest(path="/tmp/spill"))


def test_a_streamed_call_gets_the_first_characters_up_to_the_limit(client: Client) -> None:
    client.start([b"/bin/sh", b"-c", b"seq 1 40000"], stream=True, output_limit=limit())
    streamed = b""
    while (reply := client.receive()).WhichOneof("reply") != "exec":
        streamed += reply.output.data
    whole = b"".join(b"%d\n" % n for n in range(1, 40_001))
    assert streamed == whole[:80_000]
    assert not reply.exec.output
    assert text(reply.exec.tail) == whole[-2000:]


def test_streamed_output_arrives_while_the_program_runs(client: Client) -> None:
    client.start([b"/bin/sh", b"-c", b"echo first; sleep 30"], stream=True)
    assert client.receive().started.pid > 1
    assert client.receive().output.data == b"first\n"


TREE = """
sleep 321 &
(trap '' TERM; sleep 322; sleep 322) &
setsid sleep 323 &
(setsid sh -c 'sleep 324 & sleep 324' &) &
echo started
wait
"""
SURVIVORS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 32[0-9]' | wc -l"


def test_a_timeout_kills_everything_and_returns_the_partial_output(client: Client) -> None:
    started_s = time.monotonic()
    reply = client.execute(TREE, timeout_ms=300)
    assert time.monotonic() - started_s < 20
    assert (reply.outcome, reply.remaining) == (wire.OUTCOME_TIMED_OUT, 0)
    assert text(reply.output) == b"started\n"
    assert client.output(SURVIVORS).strip() == "0"


def test_hanging_up_kills_everything(sandbox: Sandbox, client: Client) -> None:
    other = sandbox.connect()
    other.start([b"/bin/sh", b"-c", TREE.encode()], stream=True)
    while other.receive().WhichOneof("reply") != "output":
        pass
    assert int(client.output(SURVIVORS)) >= 4
    other.close()
    assert eventually(lambda: int(client.output(SURVIVORS)) == 0, 20)


def stuff(client: Client) -> None:
    while True:
        client.send(wire.Input(data=b"x" * 100_000))


def test_hanging_up_is_noticed_while_stdin_is_stuffed(sandbox: Sandbox, client: Client) -> None:
    other = sandbox.connect()
    other.start([b"/bin/sh", b"-c", b"sleep 325"], stdin=True)
    other.connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        stuff(other)
    other.close()
    assert eventually(lambda: int(client.output(SURVIVORS)) == 0, 20)


def test_a_background_child_that_holds_the_pipe_does_not_hold_the_call(client: Client) -> None:
    started_s = time.monotonic()
    reply = client.execute("sleep 60 & echo done")
    assert time.monotonic() - started_s < 30
    assert text(reply.output) == b"done\n"
    client.execute("kill -9 -1")


def test_a_background_child_lives_on_and_can_go_on_writing(client: Client) -> None:
    client.execute("rm -f /tmp/alive; (for i in 1 2 3 4 5 6; do echo noise; sleep 0.1; done; touch /tmp/alive) & echo")
    alive = wire.StatRequest(path="/tmp/alive")
    assert eventually(lambda: client.call(stat=alive).WhichOneof("reply") == "entry", 20)


def test_a_background_child_that_never_stops_writing_does_not_hold_the_call(client: Client) -> None:
    started_s = time.monotonic()
    reply = client.execute("timeout 60 yes & echo done", output_limit=limit(spill_limit_bytes=1 << 20))
    assert time.monotonic() - started_s < 30
    assert reply.outcome == wire.OUTCOME_EXITED
    client.execute("kill -9 -1")


def test_a_hundred_calls_go_on_at_once(sandbox: Sandbox) -> None:
    started_s = time.monotonic()
    with ThreadPoolExecutor(100) as pool:
        replies = list(pool.map(lambda _: sandbox.connect().execute("sleep 5"), range(100)))
    assert time.monotonic() - started_s < 45, "ten at a time take 50 seconds"
    assert {reply.outcome for reply in replies} == {wire.OUTCOME_EXITED}


def test_a_program_that_the_kernel_kills_for_memory_reports_it(client: Client) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=[b"python3", b"-c", b"x = bytearray(1 << 30)"])).exec
    assert reply.outcome == wire.OUTCOME_OUT_OF_MEMORY
    assert client.execute("true").exit_code == 0


def test_a_reply_divides_its_time_into_the_start_the_run_and_the_rest_of_the_output(client: Client) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=[b"sleep", b"0.2"])).exec
    assert 0 < reply.start_us < reply.end_us <= reply.duration_us
    assert reply.end_us - reply.start_us > 150_000


def test_a_fork_bomb_meets_the_limit_and_the_daemon_stays_well(client: Client, sandbox: Sandbox) -> None:
    bomb = "import os,time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.02)"
    other = sandbox.connect()
    outcomes = set()
    for timeout_s in (3, 10, 60):  # on a busy machine it takes its time to meet the limit
        other.start([b"python3", b"-c", bomb.encode()], timeout_ms=timeout_s * 1000)
        deadline = time.monotonic() + timeout_s
        while wire.OUTCOME_PIDS_LIMIT not in outcomes and time.monotonic() < deadline:
            outcomes.add(client.call(exec=wire.ExecRequest(argv=[b"/bin/true"])).exec.outcome)
        assert client.call(stat=wire.StatRequest(path="/workspace")).WhichOneof("reply") == "entry"
        assert other.receive().exec.outcome == wire.OUTCOME_TIMED_OUT
        if wire.OUTCOME_PIDS_LIMIT in outcomes:
            break
    assert wire.OUTCOME_PIDS_LIMIT in outcomes
    assert int(client.output("ls -d /proc/[0-9]* | wc -l")) < 20


def test_what_the_kernel_refused_for_the_pids_limit_is_counted(client: Client) -> None:
    assert client.execute("true").pids_refused == 0
    forks = "import os,time\nfor n in range(300):\n  try:\n    if not os.fork(): time.sleep(60)\n  except OSError: pass"
    reply = client.call(exec=wire.ExecRequest(argv=[b"python3", b"-c", forks.encode()], timeout_ms=20_000)).exec
    assert reply.outcome == wire.OUTCOME_EXITED
    client.call(process_signal=wire.ProcessSignalRequest(signal=9, tree=True))  # the sleepers
    assert reply.pids_refused >= 300 - 256
    assert reply.errno == 0


def test_a_malformed_or_overlong_frame_closes_that_connection_only(sandbox: Sandbox, client: Client) -> None:
    for hostile in (b"\x00\x00\x00\x04\xff\xff\xff\xff", b"\x7f\xff\xff\xff" + b"x" * 64):
        other = sandbox.connect()
        other.connection.sendall(hostile)
        with contextlib.suppress(ConnectionResetError):
            assert other.connection.recv(1) == b""
    half = sandbox.connect()
    half.connection.sendall(b"\x00\x00\x00\x10half")
    half.connection.shutdown(socket.SHUT_WR)
    assert half.connection.recv(1) == b""
    assert client.execute("true").outcome == wire.OUTCOME_EXITED


def test_an_unknown_call_is_refused_with_a_reason(client: Client) -> None:
    reply = client.call()
    assert reply.failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT


def test_tool_code_that_stops_whatever_it_can_stops_no_other_call(sandbox: Sandbox, client: Client) -> None:
    # Between the change of user and the exec a pending child can be signalled by tool code.
    attack = b"""
import os, signal
while True:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
"""
    attacker = sandbox.connect()
    attacker.start([b"python3", b"-c", attack], stream=True)
    assert attacker.receive().HasField("started")

    def run_true(_number: int) -> wire.Outcome:
        other = sandbox.connect()
        return other.call(exec=wire.ExecRequest(argv=[b"true"], timeout_ms=1_000)).exec.outcome

    with ThreadPoolExecutor(8) as threads:
        outcomes = set(threads.map(run_true, range(40)))
    assert outcomes <= {wire.OUTCOME_EXITED, wire.OUTCOME_TIMED_OUT}
    attacker.close()
    assert eventually(lambda: client.output("echo well") == "well\n", 10)


def test_a_kill_long_before_is_not_taken_for_a_later_end(client: Client, sandbox: Sandbox) -> None:
    other = sandbox.connect()
    other.start([b"sh", b"-c", b"read line; kill -9 $$"], stdin=True, stream=True)
    assert other.receive().HasField("started")
    hog = "python3 -c 'x = bytearray(1 << 30)'"
    assert client.execute(hog).outcome == wire.OUTCOME_OUT_OF_MEMORY
    assert client.execute("sleep 1.2").outcome == wire.OUTCOME_EXITED
    other.send(wire.Input(data=b"now\n"))
    while (reply := other.receive()).WhichOneof("reply") != "exec":
        pass
    assert (reply.exec.outcome, reply.exec.signal) == (wire.OUTCOME_SIGNALLED, 9)
