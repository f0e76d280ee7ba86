"""A thread of Airlock as an environment, and as a code executor, of google-adk.

    agent = LlmAgent(..., tools=[EnvironmentToolset(environment=AirlockEnvironment())])
    agent = LlmAgent(..., code_executor=AirlockCodeExecutor())

The policy judges what they do as `execute`, `read_file` and `write_file`.

AIRLOCK_ADDRESS and AIRLOCK_API_KEY name the gateway and the key, unless a client is given. See docs/integrations.md.

Failures of the gateway or a sandbox are raised, never returned: a result is what the program itself did. Only the code
executor returns a denial, and an approval that the code waits for: google-adk shows them to the model.
"""

import base64
import binascii
import uuid
from pathlib import Path
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.environment import BaseEnvironment, ExecutionResult
from pydantic import PrivateAttr
from typing_extensions import override

from airlock import Client, errors
from airlock.background_loop import shared_loop
from gateway.integrations.adapter import WORKSPACE, connect, in_workspace
from gateway.integrations.os_errors import os_errors
from gateway.integrations.programs import NOT_ALLOWED, exit_code, explained, run_program


class AirlockEnvironment(BaseEnvironment):
    """A thread, by default one of its own. Relative paths start at /workspace.

    It can be used from several threads and event loops; a client that is given must not be used elsewhere. Closing it
    leaves the thread, so that another environment of the same `thread` finds its files.
    """

    def __init__(self, airlock: Client | None = None, *, thread: str = "") -> None:
        self._airlock = airlock or connect("", "")
        self.thread = thread or f"google-adk/{uuid.uuid4().hex}"

    @property
    @override
    def working_dir(self) -> Path:
        return Path(WORKSPACE)

    @override
    async def initialize(self) -> None:
        self._is_initialized = True  # the first call makes the thread

    @override
    async def close(self) -> None:
        self._is_initialized = False

    @override
    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a line in a shell; without `timeout`, the policy's limits.timeout_s applies."""
        with os_errors("sh"):
            run = run_program(self._airlock, ["/bin/sh", "-c", command], timeout, thread=self.thread)
            result = await shared_loop().awaited(run)
        code, stderr = exit_code(result, "sh"), explained(result.stderr, result, "sh")
        return ExecutionResult(code, result.stdout, stderr, timed_out=result.outcome == "timed_out")

    @override
    async def read_file(self, path: Path) -> bytes:
        with os_errors(str(path)):
            return await shared_loop().awaited(self._airlock.read_file(self.thread, in_workspace(path)))

    @override
    async def write_file(self, path: Path, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        with os_errors(str(path)):
            await shared_loop().awaited(self._airlock.write_file(self.thread, in_workspace(path), data))


class AirlockCodeExecutor(BaseCodeExecutor):
    """Runs blocks of Python in a thread: `thread`, or one for each session. Files stay, variables do not."""

    thread: str = ""

    _airlock: Client = PrivateAttr()

    def __init__(self, airlock: Client | None = None, **data: Any) -> None:
        if data.get("stateful"):
            raise ValueError("stateful: each block is a program of its own, so variables do not stay; files do")
        super().__init__(**data)
        self._airlock = airlock or connect("", "")

    @override
    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run a block; `timeout_seconds`, else the policy's limits.timeout_s, ends it."""
        session = invocation_context.session
        thread = self.thread or f"google-adk/{session.app_name}/{session.user_id}/{session.id}"
        try:
            return shared_loop().run(self._executed(thread, code_execution_input))
        except (errors.PermissionDenied, errors.ApprovalPending) as error:
            return CodeExecutionResult(stderr=str(error), exit_code=NOT_ALLOWED)

    async def _executed(self, thread: str, asked: CodeExecutionInput) -> CodeExecutionResult:
        for file in asked.input_files:
            await self._airlock.write_file(thread, in_workspace(file.name), _content(file))
        result = await run_program(
            self._airlock, ["python3", "-"], self.timeout_seconds, thread=thread, stdin=asked.code.encode()
        )
        stderr = explained(result.stderr, result, "python3")
        return CodeExecutionResult(stdout=result.stdout, stderr=stderr, exit_code=exit_code(result, "python3"))


def _content(file: File) -> bytes:
    """Return a file's bytes; google-adk gives text where they are in base64."""
    if isinstance(file.content, bytes):
        return file.content
    try:
        return base64.b64decode(file.content, validate=True)
    except binascii.Error:
        return file.content.encode()
