from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agents import ApplyPatchOperation, MultiProvider, ShellCommandRequest
from agents.run_context import RunContextWrapper
from agents.testing import ScriptedModel, assistant_message
from agents.tool import ShellActionRequest, ShellCallData, ShellResult
from openai.types.responses import ResponseApplyPatchToolCall, ResponseFunctionShellToolCall

from gateway.integrations.openai_agents_tools import AirlockWorkspace


@pytest.fixture
async def workspace(address: str, api_key: str) -> AsyncIterator[AirlockWorkspace]:
    async with AirlockWorkspace(address=address, api_key=api_key) as one:
        yield one


@pytest.fixture
async def strict(address: str, strict_key: str) -> AsyncIterator[AirlockWorkspace]:
    async with AirlockWorkspace(address=address, api_key=strict_key) as one:
        yield one


async def ran(workspace: AirlockWorkspace, *commands: str, timeout_ms: int | None = None) -> ShellResult:
    action = ShellActionRequest(commands=list(commands), timeout_ms=timeout_ms)
    data = ShellCallData(call_id="call_1", action=action)
    return await workspace.shell(ShellCommandRequest(ctx_wrapper=RunContextWrapper(None), data=data))


def test_the_program_of_the_page_runs_both_tools(
    program_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = ResponseApplyPatchToolCall(
        id="ap_1",
        call_id="call_1",
        status="completed",
        type="apply_patch_call",
        operation={"type": "create_file", "path": "hello.sh", "diff": "+echo hello from the sandbox"},
    )
    shell = ResponseFunctionShellToolCall(
        id="sh_1",
        call_id="call_2",
        status="completed",
        type="shell_call",
        action={"commands": ["sh hello.sh"], "timeout_ms": None, "max_output_length": None},
        environment=None,
    )
    model = ScriptedModel([[patch], [shell], [assistant_message("It says hello.")]])
    monkeypatch.setattr(MultiProvider, "get_model", lambda _self, _name: model)
    exec(compile(program_of("openai-agents without a sandbox agent"), "the page", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "It says hello.\n"
    received = str(model.last_call)
    assert "Created hello.sh" in received
    assert "hello from the sandbox" in received


async def test_each_command_has_its_streams_and_how_it_ended(workspace: AirlockWorkspace) -> None:
    result = await ran(workspace, "echo out; echo err >&2; exit 3", "sleep 60", timeout_ms=2000)
    first, second = result.output
    assert (first.stdout, first.stderr, first.exit_code, first.status) == ("out\n", "err\n", 3, "completed")
    assert (second.status, second.exit_code) == ("timeout", None)


async def test_a_denied_command_names_its_rule(strict: AirlockWorkspace) -> None:
    [denied] = (await ran(strict, "curl https://example.com")).output
    assert denied.exit_code == 126
    assert "rule no-curl: agents do not download" in denied.stderr


async def test_files_are_created_updated_moved_and_deleted(workspace: AirlockWorkspace) -> None:
    def operation(kind: Any, path: str, diff: str | None = None, move_to: str | None = None) -> ApplyPatchOperation:
        return ApplyPatchOperation(type=kind, path=path, diff=diff, move_to=move_to)

    assert (await workspace.create_file(operation("create_file", "a/b.txt", "+one\n+two"))).status == "completed"
    update = operation("update_file", "a/b.txt", "@@\n-two\n+three", move_to="c.txt")
    assert (await workspace.update_file(update)).status == "completed"
    assert (await ran(workspace, "cat c.txt; ls a")).output[0].stdout == "one\nthree"
    bad = await workspace.update_file(operation("update_file", "c.txt", "@@\n-absent\n+x"))
    assert bad.status == "failed"
    assert (await workspace.delete_file(operation("delete_file", "c.txt"))).status == "completed"
    missing = await workspace.delete_file(operation("delete_file", "c.txt"))
    assert missing.status == "failed"
    assert "no such file" in (missing.output or "")


async def test_a_denied_patch_names_its_rule(strict: AirlockWorkspace) -> None:
    operation = ApplyPatchOperation(type="create_file", path="secrets/key", diff="+x")
    denied = await strict.create_file(operation)
    assert denied.status == "failed"
    assert "no-secrets" in (denied.output or "")
