"""An agent as a library, without gateway or sandbox: python -m examples.local_agent DIRECTORY TASK."""

import asyncio
import os
import sys
from pathlib import Path

from agent.capabilities.filesystem import filesystem
from agent.capabilities.todos import todos
from agent.loop import Agent
from agent.models.openai_model import OpenAIModel
from agent.state import AgentState
from sandbox.engines.local.local_fs import LocalFS


async def main(directory: str, task: str) -> str:
    """Let an agent work on the files of a directory, its /workspace; return its answer, or why there is none."""
    model = OpenAIModel("gpt-5-mini", base_url=os.environ.get("OPENAI_BASE_URL"), api_key=os.environ["OPENAI_API_KEY"])
    agent = Agent(model=model, capabilities=[filesystem(LocalFS(Path(directory))), todos()])
    async with model:
        final = await agent.run(AgentState(run_id="", thread="local").next_run("1", task), print)
    last = final.messages[-1]
    return last.content if last.role == "assistant" else f"no answer: {final.stop}"


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:])))
