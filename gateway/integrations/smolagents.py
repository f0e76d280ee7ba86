"""A thread of Airlock as the Python executor of smolagents.

    with CodeAgent(tools, model, executor=AirlockExecutor()) as agent:
        agent.run("...")

Each block of the agent's code is one call of the tool execute_python, which the policy judges; variables and tools stay
from block to block. Tools are sent as source and run in the sandbox.

AIRLOCK_ADDRESS and AIRLOCK_API_KEY name the gateway and the key, unless a client is given. See docs/integrations.md.

A block that is denied, waits for an approval or fails raises AgentError, which smolagents shows to the model. Whatever
comes back is read as JSON, never unpickled.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError
from typing_extensions import override

from airlock import Client, ToolResult
from airlock.background_loop import shared_loop
from gateway.integrations.adapter import connect

_OPTIONAL_IMPORTS = {
    "import numpy as np": 'np = __import__("numpy")',
    "import PIL.Image": 'PIL = __import__("PIL.Image")',
}
_QUIET = AgentLogger(level=LogLevel.OFF)


class AirlockExecutor(RemotePythonExecutor):
    """An interpreter in a thread, by default one of its own; `timeout_s` bounds each block.

    It can be used from several threads; a client that is given must not be used elsewhere. `additional_imports` are
    installed with pip first, which needs a policy that lets the sandbox reach an index.
    """

    def __init__(
        self,
        airlock: Client | None = None,
        *,
        thread: str = "",
        additional_imports: list[str] | None = None,
        timeout_s: float | None = None,
        logger: AgentLogger = _QUIET,
    ) -> None:
        super().__init__(additional_imports or [], logger)
        self._airlock = airlock or connect("", "")
        self.thread = thread or f"smolagents/{uuid.uuid4().hex}"
        self._limit = {} if timeout_s is None else {"timeout_s": timeout_s}
        self._context = uuid.uuid4().hex
        self.installed_packages = self.install_packages(self.additional_imports)

    @override
    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a block; its output is the text of its last expression, or the agent's final answer."""
        result = self._call("execute_python", {"code": code, "context": self._context, **self._limit})
        parts = result.structured or {}
        logs = result.stdout + result.stderr
        error = parts.get("error")
        if error is not None and error["name"] == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._deserialize_final_answer(error["value"]), logs, is_final_answer=True)
        if result.is_error:
            raise AgentError(_text_of(result), self.logger)
        texts = [one["texts"].get("text/plain") for one in parts.get("results", ()) if one["is_main_result"]]
        return CodeOutput(texts[-1] if texts else None, logs, is_final_answer=False)

    @override
    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install packages into the thread's sandbox with pip."""
        if additional_imports:
            pip = ["python3", "-m", "pip", "install", "--user", "--quiet", *additional_imports]
            ended = shared_loop().run(self._airlock.run_program(pip, thread=self.thread))
            if ended.exit_code != 0:
                said = f"{ended.stdout}{ended.stderr}{ended.message}"
                raise AgentError(f"{' '.join(additional_imports)} could not be installed: {said}", self.logger)
        return additional_imports

    @override
    def _patch_final_answer_with_exception(self, final_answer_tool: FinalAnswerTool) -> None:
        """Have final_answer do without numpy and Pillow where they are not installed, as its code is meant to.

        smolagents would move these imports, each in a `try`, to the top of the tool's source.
        """
        super()._patch_final_answer_with_exception(final_answer_tool)
        forward: Any = type(final_answer_tool).forward
        for statement, hidden in _OPTIONAL_IMPORTS.items():
            forward.__source__ = forward.__source__.replace(statement, hidden)

    def cleanup(self) -> None:
        """End the interpreter; the thread and its files stay."""
        self._call("execute_python", {"restart": True, "context": self._context})

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        return shared_loop().run(self._airlock.call_tool(tool, arguments, thread=self.thread))


def _text_of(result: ToolResult) -> str:
    """Return a result as a model reads it: a denial says which rule, and an approval is named."""
    return "\n".join(part for part in (result.content, result.note) if part)
