"""An agent used as a library, without gateway or sandbox: python -m examples.local_agent DIRECTORY TASK."""

import asyncio
import sys
from pathlib import Path

from agent import Agent, AgentState, OpenAIModel
from agent.capabilities.filesystem import filesystem
from agent.capabilities.todos import todos
from sandbox.engines.local.local_fs import LocalFS


async def main(directory: str, task: str) -> str:
    """Run an agent with a directory as its /workspace; return its answer, or why there is none."""
    async with OpenAIModel("gpt-5-mini") as model:
        agent = Agent(model=model, capabilities=[filesystem(LocalFS(Path(directory))), todos()])
        final = await agent.run(AgentState.start(task), print)
    return final.answer or f"no answer: {final.stop}"


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:])))
