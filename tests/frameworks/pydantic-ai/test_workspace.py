from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.workspaces import Workspace, WorkspaceOutputLimitError, WorkspaceTimeoutError

from airlock import Client, errors
from gateway.integrations.pydantic_ai import AirlockWorkspace, AirlockWorkspaceBackend, ApprovalWaits


@pytest.fixture
async def strict(address: str, streaming_key: str) -> AsyncIterator[Client]:
    async with Client(address, streaming_key) as client:
        yield client


@pytest.fixture
async def approver(address: str, streaming_approver_key: str) -> AsyncIterator[Client]:
    async with Client(address, streaming_approver_key) as client:
        yield client


@pytest.fixture
async def airlock(address: str, api_key: str) -> AsyncIterator[Client]:
    async with Client(address, api_key) as client:
        yield client


def calls_then_says(name: str, **arguments: object) -> FunctionModel:
    """Return a model that calls one tool, then says what came of it."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt":
            return ModelResponse(parts=[ToolCallPart(name, arguments)])
        return ModelResponse(parts=[TextPart(str(last.content))])

    return FunctionModel(answer)


def test_the_program_of_the_page_prints_the_sum(run_program: Callable[[str], str]) -> None:
    assert run_program("pydantic-ai").strip().endswith("5050.")


async def test_a_denial_names_the_rule(strict: Client, thread: str) -> None:
    workspace = Workspace(AirlockWorkspaceBackend(strict, thread=thread))
    with pytest.raises(PermissionError, match=r"agents do not download.*no-curl"):
        await workspace.run(["curl", "http://example.com"])
    for operation in (workspace.read_bytes("secrets/key"), workspace.write_bytes("secrets/key", b"")):
        with pytest.raises(PermissionError, match=r"secrets are not for agents.*no-secrets"):
            await operation


async def test_what_a_tool_runs_waits_for_an_approval_and_then_runs_once(
    strict: Client, approver: Client, thread: str
) -> None:
    agent = Agent(
        calls_then_says("count"),
        output_type=[str, DeferredToolRequests],
        capabilities=[AirlockWorkspace(strict, thread=thread)],
    )

    @agent.tool
    async def count(ctx: RunContext[None]) -> str:
        return (await ctx.workspace.run(["python3", "-c", "print(sum(range(101)))"])).stdout

    waiting = await agent.run("count")
    assert isinstance(waiting.output, DeferredToolRequests)
    [call] = waiting.output.approvals
    approval_id = waiting.output.metadata[call.tool_call_id]["approval_id"]

    # An answer that was given to pydantic-ai alone lets nothing pass.
    history = waiting.all_messages()
    said = DeferredToolResults(approvals={call.tool_call_id: True})
    still = await agent.run(message_history=history, deferred_tool_results=said)
    assert isinstance(still.output, DeferredToolRequests)
    assert still.output.metadata[call.tool_call_id]["approval_id"] == approval_id

    await approver.resolve_approval(approval_id, "once")
    done = await agent.run(message_history=history, deferred_tool_results=said)
    assert done.output == "5050\n"
    with pytest.raises(ApprovalWaits):  # the approval is used
        await AirlockWorkspaceBackend(strict, thread=thread).run(["python3", "-c", "print(sum(range(101)))"])


async def test_a_run_continues_in_the_workspace_of_its_history(airlock: Client) -> None:
    agent = Agent(calls_then_says("keep"), capabilities=[AirlockWorkspace(airlock)])

    @agent.tool
    async def keep(ctx: RunContext[None]) -> str:
        before = await ctx.workspace.exists("kept")
        await ctx.workspace.write_text("kept", "1")
        return str(before)

    first = await agent.run("keep")
    assert first.output == "False"
    assert (await agent.run("keep", message_history=first.all_messages())).output == "True"
    assert (await agent.run("keep")).output == "False"


async def test_an_output_that_is_too_large_is_an_error_with_its_beginning(airlock: Client, thread: str) -> None:
    backend = AirlockWorkspaceBackend(airlock, thread=thread)
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await backend.run(["head", "-c", str(11 * 1024 * 1024), "/dev/zero"])
    assert caught.value.stdout.startswith("\0")
    with pytest.raises(WorkspaceTimeoutError) as late:
        await backend.run("echo begun; sleep 60", shell=True, timeout=5)
    assert late.value.stdout == "begun\n"


async def test_a_gateway_that_is_not_there_is_raised_and_no_output(api_key: str, thread: str) -> None:
    async with Client("127.0.0.1:1", api_key, retry=None) as client:
        with pytest.raises(errors.Unavailable):
            await AirlockWorkspaceBackend(client, thread=thread).run(["true"])


def test_two_threads_use_their_own_clients_at_once(address: str, api_key: str, thread: str) -> None:
    def work(number: int) -> str:
        async def run() -> str:
            async with Client(address, api_key) as client:
                return (await AirlockWorkspaceBackend(client, thread=thread).run(["echo", str(number)])).stdout

        return asyncio.run(run())

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(6))) == [f"{number}\n" for number in range(6)]
