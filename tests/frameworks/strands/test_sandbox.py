from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from strands.sandbox import ExecutionResult, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError

from airlock import Client, errors
from airlock.background_loop import shared_loop
from gateway.integrations.strands import AirlockSandbox


@pytest.fixture
def sandbox(address: str, api_key: str, thread: str) -> AirlockSandbox:
    return AirlockSandbox(Client(address, api_key), thread=thread)


@pytest.fixture
def strict(address: str, streaming_key: str, thread: str) -> AirlockSandbox:
    return AirlockSandbox(Client(address, streaming_key), thread=thread)


def test_the_program_of_the_page_prints_the_sum(run_program: Callable[[str], str]) -> None:
    assert run_program("strands").strip().endswith("5050.")


async def test_output_comes_as_it_is_written_and_then_whole(sandbox: AirlockSandbox) -> None:
    line = "printf begun; while [ ! -e go ]; do sleep 0.05; done; echo 'ended' >&2; exit 3"
    said: list[StreamChunk | ExecutionResult] = []
    async for one in sandbox.execute_streaming(line):
        if not said:
            await sandbox.write_file("go", b"")
        said.append(one)
    assert said[:-1] == [StreamChunk("begun", "stdout"), StreamChunk("ended\n", "stderr")]
    assert said[-1] == ExecutionResult(3, "begun", "ended\n")


async def test_options_and_code_and_programs_that_are_not_there(sandbox: AirlockSandbox) -> None:
    await sandbox.write_file("d/f", b"")
    seen = await sandbox.execute('printf "%s %s" "$PWD" "$A"', cwd="d", env={"A": "b"})
    assert (seen.exit_code, seen.stdout) == (0, "/workspace/d b")
    code = await sandbox.execute_code("import sys; print('π', sys.argv); sys.exit(2)", "python3")
    assert (code.exit_code, code.stdout) == (2, "π ['-']\n")
    assert (await sandbox.execute_code("1", "no-such-language")).exit_code == 127


async def test_files_of_any_bytes_and_sizes(sandbox: AirlockSandbox) -> None:
    data = bytes(range(256)) * 4096 * 8
    await sandbox.write_file("made/large.bin", data)
    assert await sandbox.read_file("made/large.bin") == data
    [entry] = await sandbox.list_files("made")
    assert (entry.name, entry.is_dir, entry.size) == ("large.bin", False, len(data))
    await sandbox.remove_file("made/large.bin")
    for operation in (sandbox.read_file("made/large.bin"), sandbox.remove_file("made/large.bin")):
        with pytest.raises(FileNotFoundError):
            await operation
    with pytest.raises(SandboxPathNotFoundError):
        await sandbox.list_files("missing")


async def test_a_timeout_has_what_was_written_and_ends_what_was_started(sandbox: AirlockSandbox) -> None:
    with pytest.raises(SandboxTimeoutError) as caught:
        await sandbox.execute("echo begun; setsid sleep 600", timeout=5)
    assert caught.value.stdout == "begun\n"
    assert (await sandbox.execute("pgrep -c sleep")).stdout == "0\n"


async def test_cancelling_ends_what_was_started(sandbox: AirlockSandbox) -> None:
    running = asyncio.create_task(sandbox.execute("touch begun; exec sleep 600"))
    async with asyncio.timeout(60):
        while "begun" not in [one.name for one in await sandbox.list_files(".")]:
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        while (await sandbox.execute("pgrep -c sleep")).stdout != "0\n":
            await asyncio.sleep(0.05)


async def test_a_denial_names_the_rule_and_an_approval_its_id(strict: AirlockSandbox) -> None:
    with pytest.raises(PermissionError, match=r"agents do not download.*no-curl"):
        await strict.execute("curl http://example.com")
    with pytest.raises(PermissionError, match="no-secrets"):
        await strict.read_file("secrets/key")
    with pytest.raises(errors.ApprovalPending) as waits:
        await strict.execute("python3 -c 1")
    assert waits.value.details["approval_id"] in str(waits.value)


async def test_a_gateway_that_is_not_there_is_raised_and_no_output(api_key: str) -> None:
    with pytest.raises(errors.Unavailable):
        await AirlockSandbox(Client("127.0.0.1:1", api_key, retry=None)).execute("true")


def test_several_threads_and_their_loops_use_it_at_once(sandbox: AirlockSandbox) -> None:
    def work(number: int) -> str:
        return asyncio.run(sandbox.execute(f"echo {number}")).stdout

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(8))) == [f"{number}\n" for number in range(8)]


def test_an_interrupt_cancels_a_call_that_is_waited_for() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        shared_loop().run(endless())
    assert ended.wait(60)
