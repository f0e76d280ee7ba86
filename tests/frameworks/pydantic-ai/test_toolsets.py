from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.toolsets import FunctionToolset

from airlock import Client
from gateway.integrations.pydantic_ai import AirlockTools, AirlockWorkspace, JudgedTools


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


def model_of(*calls: tuple[str, dict[str, Any]]) -> FunctionModel:
    """Return a model that makes these calls one after the other, then says "done"."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        made = sum(1 for message in messages if message.kind == "response")
        if made < len(calls):
            return ModelResponse(parts=[ToolCallPart(*calls[made])])
        return ModelResponse(parts=[TextPart("done")])

    return FunctionModel(answer)


def returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if part.part_kind == "tool-return"]


class Bank:
    """Tools that run in this process, and what they did."""

    def __init__(self) -> None:
        self.refunds: list[int] = []
        self.slow_ended = ""

    def toolset(self) -> FunctionToolset[None]:
        toolset: FunctionToolset[None] = FunctionToolset()

        @toolset.tool
        def refund(ctx: RunContext[None], amount: int) -> dict[str, int]:
            """Refund an amount."""
            self.refunds.append(amount)
            return {"refunded": amount}

        @toolset.tool_plain
        def salary(name: str) -> str:
            """Return what someone earns."""
            return f"the salary of {name} is 1"

        @toolset.tool_plain
        def photo() -> BinaryContent:
            """Return a picture."""
            return BinaryContent(b"\x89PNG\x00\xff", media_type="image/png")

        @toolset.tool_plain
        def key() -> str:
            """Return a secret."""
            return "AKIA" + "Z2KQ7PLM4NTX5RWB"

        @toolset.tool_plain
        def large() -> str:
            """Return more than a model reads."""
            return "line\n" * 50_000

        @toolset.tool_plain
        def unsure(again: bool) -> str:
            """Ask for another try."""
            if again:
                raise ModelRetry("say again=false")
            return "sure"

        @toolset.tool_plain
        async def slow() -> str:
            """Take long."""
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.slow_ended = "cancelled"
                raise
            return "never"

        return toolset


async def test_the_gateways_tools_run_in_the_sandbox_and_a_denial_names_its_rule(strict: Client, thread: str) -> None:
    model = model_of(
        ("write_file", {"path": "/workspace/a.txt", "content": "one\n"}),
        ("execute", {"command": "wc -l < a.txt"}),
        ("execute", {"command": "curl http://example.com"}),
        ("execute", {"command": "exit 3"}),
    )
    agent = Agent(model, toolsets=[AirlockTools(strict)], capabilities=[AirlockWorkspace(strict, thread=thread)])
    wrote, counted, denied, failed = returns((await agent.run("go")).all_messages())
    assert [one.outcome for one in (wrote, counted, denied, failed)] == ["success", "success", "failed", "failed"]
    assert str(counted.content).startswith("1\n")
    assert "no-curl" in str(denied.content)
    assert "agents do not download" in str(denied.content)
    assert "3" in str(failed.content)


async def test_a_tool_of_ones_own_that_no_rule_allows_does_not_run(airlock: Client, thread: str) -> None:
    bank = Bank()
    agent = Agent(model_of(("refund", {"amount": 5})), toolsets=[JudgedTools(bank.toolset(), airlock, thread=thread)])
    [denied] = returns((await agent.run("go")).all_messages())
    assert denied.outcome == "failed"
    assert "caller/refund" in str(denied.content)
    assert bank.refunds == []


async def test_a_tool_of_ones_own_waits_for_an_approval_whose_edit_counts(
    strict: Client, approver: Client, thread: str
) -> None:
    bank = Bank()
    agent = Agent(
        model_of(("refund", {"amount": 500})),
        output_type=[str, DeferredToolRequests],
        toolsets=[JudgedTools(bank.toolset(), strict, thread=thread)],
    )
    waiting = await agent.run("refund")
    assert isinstance(waiting.output, DeferredToolRequests)
    [call] = waiting.output.approvals
    approval_id = waiting.output.metadata[call.tool_call_id]["approval_id"]
    approval = await approver.approval(approval_id)
    assert (approval.tool, approval.arguments, approval.rule) == ("caller/refund", {"amount": 500}, "ask-refund")

    said = DeferredToolResults(approvals={call.tool_call_id: True})
    still = await agent.run(message_history=waiting.all_messages(), deferred_tool_results=said)
    assert isinstance(still.output, DeferredToolRequests)
    assert bank.refunds == []

    await approver.resolve_approval(approval_id, "edit", arguments={"amount": 50})
    done = await agent.run(message_history=waiting.all_messages(), deferred_tool_results=said)
    assert done.output == "done"
    assert bank.refunds == [50]
    assert returns(done.all_messages())[-1].content == {"refunded": 50}


async def test_results_are_the_tools_own_unless_a_rule_takes_something_out(strict: Client, thread: str) -> None:
    model = model_of(("photo", {}), ("salary", {"name": "Ada"}), ("key", {}), ("large", {}))
    agent = Agent(model, toolsets=[JudgedTools(Bank().toolset(), strict, thread=thread)])
    result = await agent.run("go")
    photo, salary, key, large = returns(result.all_messages())
    assert isinstance(photo.content, BinaryContent)
    assert photo.content.data == b"\x89PNG\x00\xff"
    assert "salary of Ada" not in str(salary.content)
    assert "no-salaries" in str(salary.content)
    assert key.content == "AKIA[redacted aws-ac"
    assert len(str(large.content)) < 10_000
    assert "/workspace/.airlock/output" in str(large.content)


async def test_what_a_tool_of_ones_own_raises_is_raised_and_recorded(strict: Client, thread: str) -> None:
    model = model_of(("unsure", {"again": True}), ("unsure", {"again": False}))
    agent = Agent(model, toolsets=[JudgedTools(Bank().toolset(), strict, thread=thread)])
    retried, sure = returns((await agent.run("go")).all_messages())
    assert (retried.outcome, retried.content) == ("retried", "say again=false")
    assert (sure.outcome, sure.content) == ("success", "sure")


async def test_a_tool_of_ones_own_that_is_too_slow_is_cancelled_and_said_so(strict: Client, thread: str) -> None:
    bank = Bank()
    agent = Agent(model_of(("slow", {})), toolsets=[JudgedTools(bank.toolset(), strict, thread=thread)])
    [late] = returns((await agent.run("go")).all_messages())
    assert "limits.timeout_s" in str(late.content)
    assert bank.slow_ended == "cancelled"
