"""The demo's one command: `python -m examples.demo`. It exits 0 when the run completed and the tests really pass.

Without OPENAI_API_KEY a scripted model is served on loopback. With it (and OPENAI_BASE_URL, AIRLOCK_MODEL) a real model
gets the same task.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from agent.models.scripted_model_server import ScriptedModelServer
from airlock import AirlockError, Client, InvalidPath, IsADirectory
from examples.demo.demo_gateway import demo_gateway
from examples.demo.run_summary import RunSummary
from examples.demo.script import INVESTIGATOR, INVESTIGATOR_TURNS, TEST_COMMAND, task, turns
from examples.demo.workspace_diff import diff, is_source, project_files
from examples.own_gateway import GatewayFailed, OwnGateway
from examples.package_index import PackageIndex, tally_wheel
from gateway.cli.printable import one_line, stop_line
from gateway.cli.run_view import NestedRunView
from gateway.cli.terminal import SafeConsole

THREAD = "demo"
WORKSPACE = "/workspace"
# Loopback as well, and not among the addresses that programs reach without the proxy (NO_PROXY).
INDEX_HOST = "127.0.0.2"
MEMORY_LINE = "shows when it is beside the bank's"
_INTERRUPTED = 130


class DemoError(Exception):
    """The demo cannot continue. The text says why."""


async def main(console: Console) -> list[str]:
    """Run the demo and return what was wrong with it."""
    async with contextlib.AsyncExitStack() as stack:
        index = stack.enter_context(PackageIndex(tally_wheel(), host=INDEX_HOST))
        scripted: ScriptedModelServer | None = None
        if os.environ.get("OPENAI_API_KEY"):
            console.print("model    from OPENAI_API_KEY", style="dim")
        else:
            scripted = await stack.enter_async_context(
                ScriptedModelServer(turns(index.url), by_model={INVESTIGATOR: INVESTIGATOR_TURNS})
            )
            console.print(f"model    scripted, at {scripted.base_url} (OPENAI_API_KEY is not set)", style="dim")
        base_url = scripted.base_url if scripted else None
        gateway = await stack.enter_async_context(demo_gateway(base_url, INVESTIGATOR, index.port))
        console.print(f"gateway  answers at {gateway.address}", style="dim")
        console.print(f"index    of packages, at {index.url}", style="dim")
        airlock = await stack.enter_async_context(Client(gateway.address, gateway.api_key))
        await stack.enter_async_context(approving(gateway, console))
        problems = await follow_the_run(airlock, task(index.url), console)
        problems += [*scripted.failures, *unread_memory(scripted.requests)] if scripted else []
    return problems + [f"the gateway left a {thing}" for thing in gateway.left_behind]


@contextlib.asynccontextmanager
async def approving(gateway: OwnGateway, console: Console) -> AsyncIterator[None]:
    """Let each connection through that the policy asks about, for the rest of its run."""

    async def approve() -> None:
        async with Client(gateway.address, gateway.approver_key) as approver:
            async for one in approver.watch_approvals():
                if one.tool == "connect" and not one.answer:
                    where = f"{one.arguments['host']}:{one.arguments['port']}"
                    console.print(f"  ? approver: may it connect to {where}? {one_line(one.reason)}", style="yellow")
                    await approver.resolve_approval(one.id, "run" if one.run_id else "once")
                    console.print("  ✓ approver: for this run", style="green")

    waiting = asyncio.create_task(approve())
    try:
        yield
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError, AirlockError):
            await waiting


async def follow_the_run(airlock: Client, work: str, console: Console) -> list[str]:
    """Copy the project into the sandbox, show the run, and return what is wrong with the result."""
    before = project_files()
    for name, data in before.items():
        await airlock.write_file(THREAD, f"{WORKSPACE}/{name}", data)
    console.print(f"files    {len(before)} copied into {WORKSPACE} of thread {THREAD}\n", style="dim")

    view, summary = NestedRunView(console), RunSummary()
    async for event in airlock.run(work, thread=THREAD):
        view.feed(event.type, event.payload)
        summary.feed(event.type, event.payload)

    after = await workspace_files(airlock)
    console.print(Rule("what the agent changed", align="left"))
    for line in [*diff(before, after)] or [Text("nothing")]:
        console.print(line, soft_wrap=True)
    console.print(Rule("summary", align="left"))
    console.print(Padding(summary.table(), (0, 0, 1, 0)))

    problems = (
        [] if summary.status == "completed" else [f"the run's status is {summary.status}: {stop_line(summary.stop)}"]
    )
    problems += [f"{name} was changed, and the tests must stay as they are" for name in changed_tests(before, after)]
    tests = await airlock.call_tool("execute", {"command": TEST_COMMAND, "timeout_s": 60}, thread=THREAD)
    if (tests.outcome, tests.exit_code) != ("exited", 0):
        said = tests.content.strip().splitlines()[-1:] or ["nothing was printed"]
        problems.append(f"the tests do not pass: {tests.outcome}, {said[0]}")
    return problems


def unread_memory(requests: Sequence[dict[str, Any]]) -> list[str]:
    """Return a problem if AGENTS.md, the notes of earlier runs, never reached the model."""
    prompts = (message["content"] for request in requests for message in request["messages"][:1])
    return [] if any(MEMORY_LINE in str(prompt) for prompt in prompts) else ["AGENTS.md is in no system prompt"]


async def workspace_files(airlock: Client) -> dict[str, bytes]:
    """Return the files of the workspace, new ones included, by their path in it."""
    pattern = {"path": WORKSPACE, "pattern": "**/*", "limit": 10_000}
    found = await airlock.call_tool("glob", pattern, thread=THREAD)
    if found.is_error:
        raise DemoError(f"glob failed: {found.content}")
    files: dict[str, bytes] = {}
    for path in filter(is_source, found.content.splitlines()):
        with contextlib.suppress(IsADirectory, InvalidPath):  # compare regular files only
            files[path.removeprefix(f"{WORKSPACE}/")] = await airlock.read_file(THREAD, path)
    return files


def changed_tests(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Return the test files that the agent changed."""
    return [name for name in before if name.startswith("tests/") and after.get(name) != before[name]]


async def until_stopped(console: Console) -> list[str]:
    """Run the demo. SIGTERM ends it like Ctrl-C: it stops the gateway and removes everything."""
    task = asyncio.ensure_future(main(console))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    terminal = SafeConsole()
    try:
        wrong = asyncio.run(until_stopped(terminal))
    except (KeyboardInterrupt, asyncio.CancelledError):
        terminal.print("interrupted; the gateway is stopped and its sandbox is gone", style="yellow")
        sys.exit(_INTERRUPTED)
    except (DemoError, GatewayFailed, AirlockError) as error:
        wrong = [str(error)]
    for problem in wrong:
        terminal.print(f"✗ {problem}", style="red")
    if not wrong:
        terminal.print("✓ the run completed and the tests pass", style="green")
    sys.exit(1 if wrong else 0)
