from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

from airlock import Client, errors
from gateway.integrations.google_adk import AirlockCodeExecutor, AirlockEnvironment


@pytest.fixture
def environment(address: str, api_key: str, thread: str) -> AirlockEnvironment:
    return AirlockEnvironment(Client(address, api_key), thread=thread)


@pytest.fixture
def strict(address: str, streaming_key: str) -> Client:
    return Client(address, streaming_key)


class Scripted(BaseLlm):
    """Answers with the parts of `answers`, one list after the other."""

    model: str = "scripted"
    answers: list[list[types.Part]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=self.answers.pop(0)))


async def responses(agent: LlmAgent) -> list[Any]:
    """Return the parts of all events of a run."""
    async with InMemoryRunner(agent=agent) as runner:
        events = await runner.run_debug("go", quiet=True)
    return [part for event in events if event.content for part in event.content.parts or ()]


def test_the_program_of_the_page_prints_the_sum(run_program: Callable[[str], str]) -> None:
    assert run_program("google-adk").strip().endswith("5050.")


async def test_commands_and_files_of_an_environment(environment: AirlockEnvironment) -> None:
    await environment.initialize()
    assert environment.working_dir == Path("/workspace")
    ran = await environment.execute("pwd; echo no >&2; exit 3")
    assert (ran.exit_code, ran.stdout, ran.stderr, ran.timed_out) == (3, "/workspace\n", "no\n", False)
    data = bytes(range(256)) * 4096 * 8
    await environment.write_file(Path("made/large.bin"), data)
    assert await environment.read_file(Path("/workspace/made/large.bin")) == data
    await environment.write_file(Path("text"), "π")
    assert await environment.read_file(Path("text")) == "π".encode()
    with pytest.raises(FileNotFoundError):
        await environment.read_file(Path("missing"))
    with pytest.raises(IsADirectoryError):
        await environment.read_file(Path("made"))
    late = await environment.execute("echo begun; sleep 600", timeout=5)
    assert (late.timed_out, late.stdout) == (True, "begun\n")
    await environment.close()


async def test_cancelling_ends_what_was_started(environment: AirlockEnvironment) -> None:
    running = asyncio.create_task(environment.execute("touch begun; exec sleep 600"))
    async with asyncio.timeout(60):
        while (await environment.execute("test -e begun")).exit_code:
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        while (await environment.execute("pgrep -c sleep")).stdout != "0\n":
            await asyncio.sleep(0.05)


async def test_an_agent_reads_which_rule_denies_and_which_approval_is_awaited(strict: Client, thread: str) -> None:
    calls = [
        types.Part.from_function_call(name="Execute", args={"command": command})
        for command in ("echo fine", "curl http://example.com", "python3 -c 1")
    ]
    model = Scripted(answers=[[call] for call in calls] + [[types.Part(text="done")]])
    toolset = EnvironmentToolset(environment=AirlockEnvironment(strict, thread=thread))
    parts = await responses(LlmAgent(name="a", model=model, tools=[toolset]))
    fine, denied, waits = [part.function_response.response for part in parts if part.function_response]
    assert fine == {"status": "ok", "stdout": "fine\n"}
    assert "no-curl" in denied["error"]
    assert "approval apr_" in waits["error"]


def context(session: str) -> InvocationContext:
    made = SimpleNamespace(session=SimpleNamespace(app_name="app", user_id="user", id=session))
    return cast(InvocationContext, made)


def test_a_block_of_code_has_its_files_and_the_session_keeps_them(address: str, api_key: str, thread: str) -> None:
    executor = AirlockCodeExecutor(Client(address, api_key), timeout_seconds=20)
    table = File("in.csv", base64.b64encode(b"a,b\n").decode(), "text/csv")
    first = executor.execute_code(
        context(thread), CodeExecutionInput("print(open('in.csv').read()); open('out', 'w').write('1'); 1/0", [table])
    )
    assert (first.stdout, first.exit_code) == ("a,b\n\n", 1)
    assert "ZeroDivisionError" in first.stderr
    again = executor.execute_code(context(thread), CodeExecutionInput("print(open('out').read())"))
    assert (again.stdout, again.exit_code) == ("1\n", 0)
    other = executor.execute_code(context(f"{thread}/other"), CodeExecutionInput("open('out')"))
    assert "FileNotFoundError" in other.stderr
    with pytest.raises(ValueError, match="stateful"):
        AirlockCodeExecutor(Client(address, api_key), stateful=True)


def test_a_block_that_takes_too_long_or_is_not_allowed_says_so(
    address: str, api_key: str, strict: Client, thread: str
) -> None:
    slow = AirlockCodeExecutor(Client(address, api_key), timeout_seconds=1)
    late = slow.execute_code(context(thread), CodeExecutionInput("import time; time.sleep(600)"))
    assert (late.exit_code, late.stdout) == (124, "")
    assert late.stderr
    waits = AirlockCodeExecutor(strict).execute_code(context(thread), CodeExecutionInput("print(1)"))
    assert waits.exit_code == 126
    assert "waits for approval apr_" in waits.stderr


async def test_an_agent_runs_blocks_of_code(address: str, api_key: str) -> None:
    model = Scripted(answers=[[types.Part(text="```python\nprint(6 * 7)\n```")], [types.Part(text="It is 42.")]])
    agent = LlmAgent(name="a", model=model, code_executor=AirlockCodeExecutor(Client(address, api_key)))
    outputs = [part.code_execution_result.output for part in await responses(agent) if part.code_execution_result]
    assert "42" in outputs[0]


def test_a_gateway_that_is_not_there_is_raised(api_key: str, thread: str) -> None:
    executor = AirlockCodeExecutor(Client("127.0.0.1:1", api_key, retry=None))
    with pytest.raises(errors.Unavailable):
        executor.execute_code(context(thread), CodeExecutionInput("1"))


def test_several_threads_and_their_loops_use_it_at_once(environment: AirlockEnvironment) -> None:
    def work(number: int) -> str:
        return asyncio.run(environment.execute(f"echo {number}")).stdout

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(8))) == [f"{number}\n" for number in range(8)]
