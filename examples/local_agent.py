"""An agent as a library, without gateway or sandbox: python -m examples.local_agent DIRECTORY TASK."""

import asyncio
import os
import sys
from pathlib import Path

from agent.capabilities.filesystem import filesystem
from agent.capabilities.todos import todos
from agent.loop import Agent
from agent.messages import Message
from agent.models.openai_model import OpenAIModel
from agent.state import AgentState
from sandbox.local_fs import LocalFS


async def main(directory: str, task: str) -> str:
    """Let an agent work on the files of a directory, its /workspace, and return its answer."""
    model = OpenAIModel("gpt-5-mini", base_url=os.environ.get("OPENAI_BASE_URL"), api_key=os.environ["OPENAI_API_KEY"])
    agent = Agent(model=model, capabilities=[filesystem(LocalFS(Path(directory))), todos()])
    state = AgentState(run_id="local", thread="local", messages=(Message(role="user", content=task),))
    async with model:
        return (await agent.run(state, print)).messages[-1].content


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:])))
