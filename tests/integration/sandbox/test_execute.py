"""Commands in a live sandbox: how they end, what comes back, and that nothing they started stays."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import LIMITS, run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A child, one that is deaf to TERM, one in a session of its own, and one whose parents are gone.
FAMILY = """
sleep 1234 &
(trap '' TERM INT HUP; sleep 1234) &
setsid sleep 1234 &
setsid sh -c 'setsid sleep 1234 & ' &
echo started
sleep 1234
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    made = await engine.create(spec("execute"))
    yield made
    await engine.remove(made.id)


async def remaining(sandbox: Sandbox) -> int:
    return text(await run(sandbox.shell, "ps -eo args")).count("sleep 1234")


async def none_left_within(sandbox: Sandbox, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while await remaining(sandbox):
        if time.monotonic() > deadline_s:
            return False
    return True


@pytest.mark.parametrize("command, code", [("true", 0), ("exit 7", 7), ("no-such-program", 127)])
async def test_an_exit_code_is_reported(sandbox: Sandbox, command: str, code: int) -> None:
    result = await run(sandbox.shell, command)
    assert (result.outcome, result.exit_code) == ("exited", code)


async def test_a_signal_is_reported(sandbox: Sandbox) -> None:
    result = await run(sandbox.shell, "kill -SEGV $$")
    assert (result.outcome, result.signal, result.exit_code) == ("signalled", 11, None)


async def test_a_command_runs_in_the_workspace_as_an_unprivileged_user(sandbox: Sandbox) -> None:
    said = text(await run(sandbox.shell, "pwd; id -u; echo $HOME; cat"))
    assert said == f"/workspace\n{sandbox.posture.tool_uid}\n/workspace\n"


async def test_the_streams_are_kept_apart_and_bytes_stay_bytes(sandbox: Sandbox) -> None:
    result = await run(sandbox.shell, r"printf 'a\377\000b'; sleep 0.05; printf err >&2")
    assert [(piece.stream, piece.data) for piece in result.output] == [("stdout", b"a\xff\0b"), ("stderr", b"err")]


async def test_output_streams_while_the_command_runs(sandbox: Sandbox) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    running = asyncio.create_task(
        sandbox.shell.execute(
            "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second",
            timeout_s=20,
            call_id="stream",
            limit_chars=1000,
            head_chars=10,
            tail_chars=10,
            on_output=lambda _, data: arrived.put_nowait(data),
        )
    )
    assert await asyncio.wait_for(arrived.get(), 10) == b"first\n"
    await sandbox.files.write("/workspace/go", b"")
    assert text(await running) == "first\nsecond\n"


async def test_a_timeout_kills_everything_the_command_started_and_returns_what_it_said(sandbox: Sandbox) -> None:
    result = await run(sandbox.shell, FAMILY, timeout_s=0.5)
    assert result.outcome == "timed_out"
    assert text(result) == "started\n"
    assert await none_left_within(sandbox, 20.0)


async def test_cancelling_the_call_kills_everything_the_command_started(sandbox: Sandbox) -> None:
    started = asyncio.Event()
    running = asyncio.create_task(
        sandbox.shell.execute(
            FAMILY,
            timeout_s=60,
            call_id="cancel",
            limit_chars=1000,
            head_chars=10,
            tail_chars=10,
            on_output=lambda _, data: started.set(),
        )
    )
    await asyncio.wait_for(started.wait(), 10)
    assert await remaining(sandbox) >= 4
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await none_left_within(sandbox, 20.0)
    assert sandbox.alive


async def test_a_child_that_keeps_the_output_open_does_not_hold_the_call(sandbox: Sandbox) -> None:
    before_s = time.monotonic()
    result = await run(sandbox.shell, "sleep 60 & echo done")
    assert (result.outcome, text(result)) == ("exited", "done\n")
    assert time.monotonic() - before_s < 30
    await run(sandbox.shell, "kill -9 -1")


async def test_a_command_out_of_memory_is_distinguished_from_one_that_was_killed(sandbox: Sandbox) -> None:
    result = await run(sandbox.shell, "python3 -c \"b = b'x' * 10**9\"")
    assert result.outcome == "out_of_memory"
    assert (await run(sandbox.shell, "kill -9 $$")).outcome == "signalled"
    assert text(await run(sandbox.shell, "echo alive")) == "alive\n"


async def test_a_fork_bomb_ends_with_the_call_s_time_and_the_sandbox_lives_on(sandbox: Sandbox) -> None:
    result = await run(sandbox.shell, "b() { b | b & }; while :; do b; done", timeout_s=1)
    assert result.outcome in {"timed_out", "exited"}
    # A shell that could not fork ends by itself, and what it had put into the background lives on.
    await sandbox.processes.signal("", signal.SIGKILL, tree=True)
    assert text(await run(sandbox.shell, "echo alive")) == "alive\n"


async def test_output_past_the_limit_stays_in_the_sandbox_whole(sandbox: Sandbox) -> None:
    whole = "".join(f"line {number}\n" for number in range(20_000)).encode()
    command = "python3 -c \"for i in range(20000): print(f'line {i}')\""
    result = await run(sandbox.shell, command, call_id="big-1")
    assert result.evicted is not None
    assert result.evicted.path == "/workspace/.airlock/output/big-1.txt"
    assert result.evicted.size_bytes == result.output_bytes == len(whole)
    assert result.evicted.lines == 20_000
    assert result.evicted.sha256 == hashlib.sha256(whole).hexdigest()
    assert not result.evicted.incomplete
    assert b"".join(piece.data for piece in result.output) == whole[:2000]
    assert b"".join(piece.data for piece in result.tail) == whole[-2000:]
    assert b"".join([data async for data in sandbox.files.read(result.evicted.path)]) == whole
    (match,) = (await sandbox.files.grep(result.evicted.path, "^line 12345$")).matches
    assert match.line == 12346


async def test_a_hundred_commands_at_once_do_not_wait_for_each_other(engine: DockerEngine) -> None:
    wide = await engine.create(dataclasses.replace(spec("wide"), limits=dataclasses.replace(LIMITS, pids=512)))
    before_s = time.monotonic()
    calls = (run(wide.shell, "sleep 5", timeout_s=40, call_id=f"c{number}") for number in range(100))
    assert {result.outcome for result in await asyncio.gather(*calls)} == {"exited"}
    assert time.monotonic() - before_s < 45, "ten at a time take 50 seconds"
    await engine.remove(wide.id)
