"""The frameworks whose adapters are tested, and how the scripted model server answers the programs of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.models.scripted_model_server import Call, Turn

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Framework:
    """A framework; `name` is that of its lock and of its folder of tests.

    `adapter` is its file in gateway/integrations; the names of its other files begin as this one's.
    `suite` names the framework's own tests, which are in test_suite.py, and `suite_distribution` has their version.
    `turns` is what the model of the page's program says: at OPENAI_BASE_URL, by chat completions or the Responses API.
    """

    name: str
    distribution: str
    adapter: str
    suite: str = ""
    suite_distribution: str = ""
    turns: Sequence[Turn] = ()

    @property
    def environment(self) -> Path:
        return ROOT / ".build" / "frameworks" / self.name

    @property
    def python(self) -> Path:
        return self.environment / "venv" / "bin" / "python"

    @property
    def tests(self) -> Path:
        return Path(__file__).parent / self.name


_SUM = "python3 -c 'print(sum(range(101)))'"

FRAMEWORKS = (
    Framework(
        "deepagents",
        distribution="deepagents",
        adapter="deepagents.py",
        suite="SandboxIntegrationTests",
        suite_distribution="langchain-tests",
        turns=[
            Turn(calls=[Call("execute", {"command": "python3 -c 'print(sum(range(101)))'"})]),
            Turn(expect=["5050"], say="The sum is 5050."),
        ],
    ),
    Framework(
        "openai-agents",
        distribution="openai-agents",
        adapter="openai_agents.py",
        turns=[
            Turn(calls=[Call("exec_command", {"cmd": "python3 -c 'print(sum(range(101)))'"})]),
            Turn(expect=["5050"], say="The sum is 5050."),
        ],
    ),
    Framework(
        "pydantic-ai",
        distribution="pydantic-ai-slim",
        adapter="pydantic_ai.py",
        suite="WorkspaceBackendSuite",
        suite_distribution="pydantic-ai-slim",
        turns=[
            Turn(calls=[Call("execute", {"command": _SUM})]),
            Turn(expect=["5050"], say="The sum is 5050."),
        ],
    ),
    Framework(
        "google-adk",
        distribution="google-adk",
        adapter="google_adk.py",
        turns=[
            Turn(calls=[Call("Execute", {"command": _SUM})]),
            Turn(expect=["5050"], say="The sum is 5050."),
        ],
    ),
    Framework(
        "strands",
        distribution="strands-agents",
        adapter="strands.py",
        turns=[
            Turn(calls=[Call("sandbox_shell", {"command": _SUM})]),
            Turn(expect=["5050"], say="The sum is 5050."),
        ],
    ),
    Framework(
        "smolagents",
        distribution="smolagents",
        adapter="smolagents.py",
        turns=[
            Turn(say="Thought: I add.\n<code>\ntotal = sum(range(101))\nprint(total)\n</code>"),
            Turn(expect=["5050"], say="<code>\nfinal_answer(total)\n</code>"),
        ],
    ),
)
