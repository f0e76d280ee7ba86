"""A shell and an editor for agents of the OpenAI Agents SDK that have no sandbox of it.

    async with AirlockWorkspace() as workspace:
        tools = [ShellTool(executor=workspace.shell), ApplyPatchTool(editor=workspace)]

See openai_agents.py for the environment, and for the sandbox of a SandboxAgent.
"""

import uuid
from typing import Self

from agents import ApplyPatchOperation, ApplyPatchResult, ShellCommandRequest, ShellResult, apply_diff
from agents.tool import ShellCallOutcome, ShellCommandOutput

from airlock import errors
from gateway.integrations.adapter import NOT_RUN, connect, exit_code_of, refusal
from gateway.integrations.openai_agents_commands import streams


class AirlockWorkspace:
    """The workspace of a thread, by default of a new one: `shell` is for ShellTool, the object for ApplyPatchTool.

    Use it as an async context manager, or `aclose()` it.
    """

    def __init__(self, thread: str = "", *, address: str = "", api_key: str = "") -> None:
        self.thread = thread or f"openai-agents/{uuid.uuid4().hex}"
        self._client = connect(address, api_key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. The sandbox stops after its idle timeout; the thread keeps its files."""
        await self._client.aclose()

    async def shell(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands of a call one after the other, each in a shell of its own."""
        action = request.data.action
        limits = {"timeout_s": action.timeout_ms / 1000} if action.timeout_ms else {}
        outputs = []
        for command in action.commands:
            result = await self._client.call_tool("execute", {"command": command, **limits}, thread=self.thread)
            stdout, stderr = await streams(self._client, result)
            timed_out = result.outcome == "timed_out"
            code = None if timed_out else NOT_RUN if refusal(result) else exit_code_of(result)
            outcome = ShellCallOutcome(type="timeout" if timed_out else "exit", exit_code=code)
            outputs.append(
                ShellCommandOutput(
                    stdout=stdout.decode("utf-8", "replace"),
                    stderr=stderr.decode("utf-8", "replace"),
                    outcome=outcome,
                    command=command,
                )
            )
        return ShellResult(output=outputs, max_output_length=action.max_output_length)

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Create a file, with its parent directories."""
        return await self._patched(operation, "Created")

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Apply a diff to a file, and move it if the operation says so."""
        return await self._patched(operation, "Updated")

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Remove a file."""
        return await self._patched(operation, "Deleted")

    async def _patched(self, operation: ApplyPatchOperation, done: str) -> ApplyPatchResult:
        try:
            await self._patch(operation)
        except (errors.Unavailable, errors.Unauthenticated, errors.Overloaded):
            raise
        except (errors.AirlockError, ValueError) as error:
            return ApplyPatchResult(status="failed", output=f"{operation.path}: {error}")
        return ApplyPatchResult(status="completed", output=f"{done} {operation.path}")

    async def _patch(self, operation: ApplyPatchOperation) -> None:
        path, target = operation.path, operation.move_to or operation.path
        if operation.type == "delete_file":
            await self._client.remove_file(self.thread, path)
            return
        if operation.type == "create_file":
            text = apply_diff("", operation.diff or "", mode="create")
        else:
            text = apply_diff((await self._client.read_file(self.thread, path)).decode(), operation.diff or "")
        await self._client.write_file(self.thread, target, text.encode())
        if target != path:
            await self._client.remove_file(self.thread, path)
