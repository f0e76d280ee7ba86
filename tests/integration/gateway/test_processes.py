"""Programs with streams, and background processes, through the whole gateway: client, policy, sandbox and back."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from airlock.v1 import process_service_pb2 as pb
from gateway.client import Client
from gateway.errors import (
    AirlockError,
    Conflict,
    InputNotTaken,
    InvalidArgument,
    InvalidPath,
    NotFound,
    PermissionDenied,
    ProcessEnded,
    StartFailed,
    TooLarge,
)
from gateway.v1 import process_service_pb2_grpc as grpc_pb
from tests.gateway_process import AIRLOCK, airlock, make_home, served
from tests.integration.gateway.conftest import Pair

MIB = 1024 * 1024
ALIVE = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"


async def alive(client: Client, thread: str) -> str:
    return (await client.call_tool("execute", {"command": ALIVE}, thread=thread)).content


async def gone(client: Client, thread: str, *marks: str) -> None:
    async with asyncio.timeout(10):
        listed = marks[0]
        while any(mark in listed for mark in marks):
            listed = await alive(client, thread)


# --- a program ---


async def test_a_program_gives_both_streams_and_its_exit_code(client: Client) -> None:
    result = await client.run_program(["sh", "-c", "echo out; echo err >&2; exit 3"], thread="run")
    assert (result.outcome, result.exit_code, result.signal, result.errno) == ("exited", 3, None, 0)
    assert (result.stdout, result.stderr, result.output_bytes) == ("out\n", "err\n", 8)
    assert result.call_id.startswith("call_")
    assert result.duration_ms > 0


async def test_arguments_environment_and_directory_arrive_as_they_were_given(client: Client) -> None:
    hostile = ["", " ", "a\nb", "'", '"', "\\", "$(id)", "*", "-n", "é🚀", "A=b", ";"]
    code = "import os, sys; print(repr((sys.argv[1:], os.environ['A'], os.getcwd())))"
    result = await client.run_program(["python3", "-c", code, *hostile], thread="run", env={"A": "x; y"}, cwd="/tmp")
    assert result.stdout == repr((hostile, "x; y", "/tmp")) + "\n"


async def test_bytes_go_in_and_come_out_as_they_are(client: Client) -> None:
    data = bytes(range(256)) * 3 + b"\xff\xfe\x00\xc3\x28"
    result = await client.run_program(["cat"], thread="run", stdin=data)
    assert result.stdout_bytes == data
    nothing = await client.run_program(["cat"], thread="run")
    assert (nothing.outcome, nothing.stdout_bytes) == ("exited", b"")
    assert (await client.run_program(["cat"], thread="run", stdin=b"")).stdout_bytes == b""


async def test_input_may_come_bit_by_bit_and_depend_on_the_output(client: Client) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def answers() -> AsyncIterator[bytes]:
        for question in (b"1\n", b"2\n", b"3\n"):
            yield question
            assert await heard.get() == question

    result = await client.run_program(
        ["cat"], thread="run", stdin=answers(), on_output=lambda _, data: heard.put_nowait(data)
    )
    assert (result.outcome, result.output_bytes, result.stdout_bytes) == ("exited", 6, b"")


async def test_fifty_mebibytes_of_input_arrive(client: Client) -> None:
    piece = os.urandom(MIB)

    async def stdin() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield piece

    result = await client.run_program(["sha256sum"], thread="run", stdin=stdin())
    assert result.stdout.split()[0] == hashlib.sha256(piece * 50).hexdigest()


async def test_a_mebibyte_of_arguments_arrives(client: Client) -> None:
    word = "x'\"\\é" * 10_000
    count = MIB // len(word.encode())
    result = await client.run_program(["printf", "%s", *([word] * count)], thread="run")
    assert result.stdout == word * count
    with pytest.raises(TooLarge, match="standard input"):
        await client.run_program(["printf", "%s", *([word] * (count + 2))], thread="run")


async def test_a_program_that_does_not_read_its_input_still_ends(client: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    async with asyncio.timeout(30):
        result = await client.run_program(["echo", "done"], thread="run", stdin=endless())
    assert (result.outcome, result.stdout) == ("exited", "done\n")


async def test_each_way_a_program_ends_has_a_name(client: Client) -> None:
    killed = await client.run_program(["sh", "-c", "echo before; kill -TERM $$"], thread="run")
    assert (killed.outcome, killed.signal, killed.exit_code, killed.stdout) == ("signalled", 15, None, "before\n")
    slow = await client.run_program(["sh", "-c", "echo before; sleep 71"], thread="run", timeout_s=0.5)
    assert (slow.outcome, slow.exit_code, slow.stdout) == ("timed_out", None, "before\n")
    assert "sleep 71" not in await alive(client, "run")
    loud = await client.run_program(["yes"], thread="run", output_limit_bytes=10_000)
    assert (loud.outcome, len(loud.stdout_bytes) <= 10_000) == ("output_limit", True)
    nowhere = await client.run_program(["true"], thread="run", cwd="/nowhere")
    assert (nowhere.outcome, nowhere.errno) == ("failed_to_start", 2)
    missing = await client.run_program(["no-such-program"], thread="run")
    assert (missing.outcome, missing.errno) == ("failed_to_start", 2)
    assert missing.message
    forbidden = await client.run_program(["/etc/passwd"], thread="run")
    assert (forbidden.outcome, forbidden.errno) == ("failed_to_start", 13)
    for code in (124, 143):
        assert (await client.run_program(["sh", "-c", f"exit {code}"], thread="run")).exit_code == code


async def test_a_client_that_goes_away_ends_the_program_and_what_it_started(client: Client) -> None:
    started = asyncio.Event()
    call = asyncio.create_task(
        client.run_program(
            ["sh", "-c", "setsid sleep 72 & echo up; sleep 73"], thread="gone", on_output=lambda *_: started.set()
        )
    )
    async with asyncio.timeout(30):
        await started.wait()
    assert "sleep 73" in await alive(client, "gone")
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await gone(client, "gone", "sleep 72", "sleep 73")


async def test_a_clients_input_that_fails_is_the_clients_error_and_ends_the_program(client: Client) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await client.run_program(["sh", "-c", "cat > got; sleep 74"], thread="half", stdin=failing())
    await gone(client, "half", "sleep 74")


async def test_a_client_that_dies_in_its_input_does_not_look_like_the_end_of_it(pair: Pair, client: Client) -> None:
    for attempt in range(5):
        async with grpc.aio.insecure_channel(pair.address) as channel:
            call: Any = grpc_pb.ProcessServiceStub(channel).RunProgram(  # type: ignore[no-untyped-call]
                metadata=(("authorization", f"Bearer {pair.key}"),)
            )
            program = pb.Program(thread="dies", argv=["sh", "-c", f"echo up; cat > part; mv part whole{attempt}"])
            await call.write(pb.RunProgramRequest(run=pb.RunProgram(program=program, stdin=True)))
            await call.write(pb.RunProgramRequest(stdin=b"half"))
            assert (await call.read()).stdout == b"up\n"
    await gone(client, "dies", "cat > part")
    assert "whole" not in (await client.call_tool("ls", {}, thread="dies")).content


async def test_a_reader_that_waits_holds_the_program_back(client: Client) -> None:
    taken = 0
    may_go_on = asyncio.Event()

    async def take(_: str, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        await may_go_on.wait()

    code = "import os, sys\nfor n in range(64): os.write(1, b'x' * 1048576); open('count', 'w').write(str(n))"
    call = asyncio.create_task(client.run_program(["python3", "-c", code], thread="slow", on_output=take))
    before, same = "", 0
    async with asyncio.timeout(60):
        while same < 10:  # the count stands still, and the program is not over
            with contextlib.suppress(NotFound):
                now = (await client.read_file("slow", "count")).decode()
                before, same = now, same + 1 if now and now == before else 0
    assert int(before) < 40
    assert not call.done()
    may_go_on.set()
    assert (await call).output_bytes == taken == 64 * MIB


@pytest.mark.parametrize(
    "messages, said",
    [
        ([], "first message"),
        ([pb.RunProgramRequest()], "first message"),
        ([pb.RunProgramRequest(stdin=b"x")], "first message"),
        (["run", pb.RunProgramRequest(stdin=b"x")], "set stdin"),
        (["run stdin", "run stdin"], "only the first"),
        (["run stdin", pb.RunProgramRequest()], "only the first"),
        (["run stdin", pb.RunProgramRequest(stdin=b"x"), None], "without `end`"),
    ],
)
async def test_messages_out_of_turn_are_one_clear_error(pair: Pair, messages: list[Any], said: str) -> None:
    program = pb.Program(thread="turns", argv=["sh", "-c", "cat; sleep 20"])
    named = {word: pb.RunProgramRequest(run=pb.RunProgram(program=program, stdin="stdin" in word)) for word in messages
             if isinstance(word, str)}  # fmt: skip
    async with grpc.aio.insecure_channel(pair.address) as channel:
        call: Any = grpc_pb.ProcessServiceStub(channel).RunProgram(  # type: ignore[no-untyped-call]
            metadata=(("authorization", f"Bearer {pair.key}"),)
        )
        for message in filter(None, messages):
            await call.write(named[message] if isinstance(message, str) else message)
        if not all(messages) or not messages:
            await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async with asyncio.timeout(15):
                while await call.read() is not grpc.aio.EOF:
                    pass
                raise AssertionError(await call.code())
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in str(failed.value.details())


async def test_what_cannot_be_asked_is_refused_before_anything_runs(client: Client) -> None:
    for wrong, kind in (
        (client.run_program([]), InvalidArgument),
        (client.run_program(["ls", "a\0b"]), InvalidArgument),
        (client.run_program(["ls"], env={"A=B": "c"}), InvalidArgument),
        (client.run_program(["ls"], cwd="relative"), InvalidPath),
        (client.run_program(["ls"], timeout_s=301), InvalidArgument),
        (client.run_program(["ls"], timeout_s=0), InvalidArgument),
        (client.run_program(["ls"], thread="\n"), InvalidArgument),
        (client.start_process(["ls"], process_id="a b"), InvalidArgument),
        (client.start_process(["ls"], terminal=True, rows=0), InvalidArgument),
        (client.start_process(["ls"], terminal=True, merge_stderr=True), InvalidArgument),
        (client.signal_process("default", "a", 0), InvalidArgument),
        (client.signal_process("default", "", 15), InvalidArgument),
        (client.signal_process("default", "", 9, tree=True), InvalidArgument),
        (client.write_process("default", "a", b"x" * (MIB + 1)), TooLarge),
    ):
        with pytest.raises(kind):
            await wrong


# --- policy and journal ---


async def test_a_program_is_judged_as_the_command_it_is(strict: Client) -> None:
    assert (await strict.run_program(["echo", "$(id)"])).stdout == "$(id)\n"
    for argv in (["touch", "ran"], ["sh", "-c", "touch ran"], ["sh"], ["env", "touch", "ran"]):
        with pytest.raises(PermissionDenied) as denied:
            await strict.run_program(argv, stdin=b"touch ran")
        assert denied.value.details["rule"]
        with pytest.raises(PermissionDenied):
            await strict.start_process(argv, stdin=True)
    with pytest.raises(PermissionDenied, match="opaque"):
        await strict.run_program(["ls"], env={"LD_PRELOAD": "/workspace/x.so"})
    assert (await strict.processes()).processes == ()
    assert "ran" not in (await strict.run_program(["ls"])).stdout


async def test_the_journal_has_the_line_and_the_outcome_and_not_the_stream(pair: Pair, client: Client) -> None:
    result = await client.run_program(
        ["sh", "-c", "cat; exit 4"], thread="journal", stdin=b"what nobody else says", cwd="/tmp"
    )
    process = await client.start_process(["sleep", "0"], thread="journal")
    with closing(sqlite3.connect(pair.home.config.parent / "state" / "airlock.db")) as database:
        rows = database.execute(
            "select id, state, verdict, outcome, exit_code, arguments from tool_calls where name = 'execute' and "
            "thread_id = (select id from threads where name = 'journal' and tenant = 'default') order by rowid"
        ).fetchall()
        assert "what nobody else says" not in str(database.execute("select * from tool_calls").fetchall())
        query = "select details from audit_records where call_id = ?"
        (audited,) = database.execute(query, (rows[1][0],)).fetchone()
    assert rows[0][:5] == (result.call_id, "finished", "allow", "exited", 4)
    assert "cd -- /tmp && sh -c 'cat; exit 4'" in rows[0][5]
    assert '"stdin":true' in rows[0][5]
    assert rows[1][1:4] == ("finished", "allow", "completed")
    assert '"background":true' in rows[1][5]
    assert process.id in audited


# --- background processes ---


async def output(client: Client, thread: str, process_id: str, **options: Any) -> bytes:
    return b"".join([piece.data async for piece in client.process_output(thread, process_id, **options)])


async def test_a_process_goes_on_after_its_call_and_its_output_can_be_followed(client: Client) -> None:
    code = "echo one; echo two >&2; read line; echo got $line; exit 5"
    process = await client.start_process(["sh", "-c", code], thread="bg", stdin=True, process_id="talk")
    assert (process.id, process.running, process.outcome, process.argv[:2]) == ("talk", True, "", ("sh", "-c"))
    followed = asyncio.create_task(output(client, "bg", "talk", follow=True))
    written = await client.write_process("bg", "talk", b"hello\n", end=True)
    assert written.id == "talk"
    ended = await client.wait_process("bg", "talk", timeout_s=20)
    assert (ended.running, ended.outcome, ended.exit_code) == (False, "exited", 5)
    assert await followed == b"one\ngot hello\n"
    assert await output(client, "bg", "talk", stderr=True) == b"two\n"
    assert await output(client, "bg", "talk", offset=4) == b"got hello\n"
    assert [one.id for one in (await client.processes("bg")).processes] == ["talk"]
    with pytest.raises(Conflict):
        await client.start_process(["true"], thread="bg", process_id="talk")
    assert (await client.remove_process("bg", "talk")).stdout_size_bytes == 14
    assert (await client.processes("bg")).processes == ()
    with pytest.raises(NotFound):
        await client.wait_process("bg", "talk")


async def test_a_terminal_has_a_size_that_can_change(client: Client) -> None:
    code = "stty size; echo $TERM; trap 'stty size' WINCH; echo ready; while [ ! -e end ]; do sleep 0.05; done"
    shell = await client.start_process(["sh", "-c", code], thread="tty", terminal=True, rows=30, columns=100)
    assert (shell.terminal, shell.rows, shell.columns) == (True, 30, 100)
    seen = b""
    async with asyncio.timeout(30):
        async for piece in client.process_output("tty", shell.id, follow=True):
            seen += piece.data
            if b"ready" in seen and b"50 120" not in seen:
                resized = await client.resize_process("tty", shell.id, 50, 120)
                assert (resized.rows, resized.columns) == (50, 120)
            if b"50 120" in seen:
                await client.write_file("tty", "/workspace/end", b"")
    assert seen.startswith(b"30 100\r\nxterm-256color\r\n")


async def test_a_signal_reaches_the_group_or_everything_that_was_started(client: Client) -> None:
    code = "setsid sleep 81 & trap 'echo hup' HUP; echo up; while :; do sleep 0.05; done"
    process = await client.start_process(["sh", "-c", code], thread="signal")
    async with asyncio.timeout(30):
        async for piece in client.process_output("signal", process.id, follow=True):
            if b"up" in piece.data and b"hup" not in piece.data:
                await client.signal_process("signal", process.id, signal.SIGHUP)
            if b"hup" in piece.data:
                break
    assert (await client.wait_process("signal", process.id, timeout_s=0.05)).running
    assert "sleep 81" in await alive(client, "signal")
    await client.signal_process("signal", process.id, signal.SIGKILL, tree=True)
    ended = await client.wait_process("signal", process.id)
    assert (ended.running, ended.outcome, ended.signal) == (False, "signalled", 9)
    await gone(client, "signal", "sleep 81")


async def test_removing_a_process_kills_what_it_started(client: Client) -> None:
    process = await client.start_process(["sh", "-c", "setsid sleep 82 & echo up; sleep 83"], thread="remove")
    async for _ in client.process_output("remove", process.id, follow=True):
        break
    await client.remove_process("remove", process.id)
    await gone(client, "remove", "sleep 82", "sleep 83")


async def test_what_commands_left_behind_is_counted_and_can_be_ended(client: Client) -> None:
    left = "setsid sleep 84 >/dev/null 2>&1 & echo $!"
    await client.call_tool("execute", {"command": left}, thread="strays")
    await client.start_process(["sleep", "85"], thread="strays")
    assert (await client.processes("strays")).strays >= 1
    assert await client.kill_strays("strays") == 0
    await gone(client, "strays", "sleep 84")
    assert "sleep 85" in await alive(client, "strays")
    assert (await client.processes("strays")).strays == 0


async def test_a_process_can_be_given_a_time_limit(client: Client) -> None:
    process = await client.start_process(["sleep", "86"], thread="limit", timeout_s=0.3)
    ended = await client.wait_process("limit", process.id, timeout_s=20)
    assert (ended.outcome, ended.running) == ("timed_out", False)


async def test_more_output_than_memory_holds_is_read_from_the_first_byte(client: Client) -> None:
    process = await client.start_process(["sh", "-c", "seq 1 500000"], thread="much")
    await client.wait_process("much", process.id)
    expected = "".join(f"{n}\n" for n in range(1, 500_001)).encode()
    assert await output(client, "much", process.id) == expected
    known = (await client.processes("much")).processes[0]
    assert known.stdout_size_bytes == len(expected)
    assert await client.read_file("much", known.stdout_path) == expected


async def test_a_process_that_cannot_start_or_is_over_says_which(client: Client) -> None:
    for argv, cwd, number in (
        (["no-such-program"], "", "2"),
        (["true"], "/nowhere", "2"),
        (["/etc/passwd"], "", "13"),
    ):
        with pytest.raises(StartFailed) as caught:
            await client.start_process(argv, thread="fails", cwd=cwd)
        assert caught.value.details == {"outcome": "failed_to_start", "errno": number}
    await client.start_process(["true"], thread="fails", process_id="over", stdin=True)
    ended = await client.wait_process("fails", "over", timeout_s=20)
    assert (ended.running, ended.stdout_closed, ended.stderr_closed, ended.stdout_path_bytes) == (False, True, True, 0)
    with pytest.raises(ProcessEnded) as closed:
        await client.write_process("fails", "over", b"x")
    assert closed.value.details == {"taken_bytes": "0"}
    with pytest.raises(ProcessEnded):
        await client.signal_process("fails", "over", 15)
    await client.start_process(["sleep", "90"], thread="fails", process_id="deaf", stdin=True)
    with pytest.raises(InputNotTaken) as full:
        await client.write_process("fails", "deaf", bytes(MIB), timeout_s=2)
    assert 0 < int(full.value.details["taken_bytes"]) < MIB
    assert (await client.remove_process("fails", "deaf")).outcome == "cancelled"


async def test_looking_for_processes_makes_no_sandbox(client: Client) -> None:
    assert (await client.processes("never used")).processes == ()
    with pytest.raises(NotFound, match="no sandbox"):
        await client.wait_process("never used", "p", timeout_s=1)


async def test_another_tenants_thread_of_the_same_name_has_other_processes(client: Client, strict: Client) -> None:
    process = await client.start_process(["sleep", "87"], thread="shared")
    theirs = {}
    for name, call in {
        "theirs": strict.wait_process("shared", process.id, timeout_s=1),
        "nobody's": strict.wait_process("shared", "proc_nobody", timeout_s=1),
        "another thread's": client.wait_process("other", process.id, timeout_s=1),
    }.items():
        with pytest.raises(NotFound) as missing:
            await call
        theirs[name] = str(missing.value).replace(process.id, "ID").replace("proc_nobody", "ID")
    assert len(set(theirs.values())) == 1
    with pytest.raises(NotFound):
        await strict.write_process("shared", process.id, b"x")
    with pytest.raises(AirlockError):
        await strict.signal_process("shared", process.id, 9)
    assert (await strict.processes("shared")).processes == ()
    assert (await client.processes("shared")).processes[0].running


async def test_the_command_line_lists_shows_and_ends_processes(pair: Pair, client: Client) -> None:
    env = {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}
    code = r"printf 'a\377'; echo [b] >&2; exec sleep 88"
    await client.start_process(["sh", "-c", code], thread="cli", process_id="one")
    options = ("--thread", "cli")
    async with asyncio.timeout(20):
        known = {"stderr_size_bytes": 0}
        while not known["stderr_size_bytes"]:
            listed = await asyncio.to_thread(airlock, "process", "list", *options, "--json", env=env)
            known = json.loads(listed.stdout)["processes"][0]
    assert (known["id"], known["running"]) == ("one", True)
    assert "running" in airlock("process", "list", *options, env=env).stdout
    printed = subprocess.run(
        [*AIRLOCK, "process", "logs", "one", *options], capture_output=True, check=True, env=os.environ | env
    )
    assert printed.stdout == b"a\xff"
    assert airlock("process", "logs", "one", "--stderr", *options, env=env).stdout == "[b]\n"
    pieces = airlock("process", "logs", "one", *options, "--json", env=env).stdout.splitlines()
    assert [json.loads(piece) for piece in pieces] == [{"offset": 0, "base64": "Yf8="}]
    pieces = airlock("process", "logs", "one", "--stderr", *options, "--json", env=env).stdout.splitlines()
    assert [json.loads(piece) for piece in pieces] == [{"offset": 0, "text": "[b]\n"}]
    unknown = airlock("process", "kill", "one", *options, "--signal", "NOSUCH", env=env, check=False)
    assert unknown.returncode == 2
    airlock("process", "kill", "one", *options, "--signal", "sigterm", env=env)
    assert (await client.wait_process("cli", "one", timeout_s=20)).signal == 15
    assert "signalled 15" in airlock("process", "list", *options, env=env).stdout
    missing = airlock("process", "kill", "two", *options, env=env, check=False)
    assert missing.returncode == 3
    assert "two" in missing.stderr
    airlock("process", "remove", "one", *options, env=env)
    assert (await client.processes("cli")).processes == ()
    assert json.loads(airlock("process", "kill-strays", *options, "--json", env=env).stdout) == {"left": 0}


async def test_the_examples_of_the_page_run(pair: Pair) -> None:
    page = (Path(__file__).parents[3] / "docs" / "processes.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    names: dict[str, Any] = {"address": pair.address, "key": pair.key}
    for block in blocks:
        code = compile(block, "processes.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)
        if running is not None:  # None where nothing is awaited
            await running


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


async def test_a_gibibyte_of_output_costs_the_gateway_constant_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = make_home(tmp_path_factory.mktemp("memory"))
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.run_program(["head", "-c", str(64 * MIB), "/dev/zero"], on_output=lambda *_: None)
            before = most = resident_bytes(gateway.process.pid)
            seen = 0

            def take(_: str, data: bytes) -> None:
                nonlocal seen, most
                seen += len(data)
                most = max(most, resident_bytes(gateway.process.pid))

            result = await client.run_program(["head", "-c", str(1024 * MIB), "/dev/zero"], on_output=take)
            assert (result.outcome, result.output_bytes, seen) == ("exited", 1024 * MIB, 1024 * MIB)
            print(f"gateway: {before / MIB:.1f} MiB before, {most / MIB:.1f} MiB at most, {result.duration_ms:.0f} ms")
            assert most - before < 32 * MIB
