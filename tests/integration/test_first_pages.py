"""The Python of README.md and docs/approvals.md, done against a gateway that serves."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted_model_server import ScriptedModelServer, Turn
from gateway.client import Client
from tests.gateway_process import make_home, served

ROOT = Path(__file__).parents[2]
READS_ARE_ASKED = """\
version: 1
description: Somebody looks at what is read.
rules:
  - {id: writes, tools: [write_file], effect: allow, reason: a test}
  - {id: reads, tools: [read_file], effect: ask, reason: somebody looks}
"""


def python_of(page: str) -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return str(block)


async def done(block: str, **names: Any) -> dict[str, Any]:
    """Run a block, which may await as a notebook's may; return what it defines."""
    names["__name__"] = __name__
    ran = eval(compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(ran):
        await ran
    return names


async def test_the_python_of_the_readme_calls_a_tool_and_follows_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = make_home(tmp_path / "home")
    async with ScriptedModelServer([Turn(expect=["write a haiku"], say="It is in haiku.txt.")]) as model:
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        with served(home, env={"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}) as gateway:
            block = python_of("README.md")
            assert "127.0.0.1:7443" in block
            await done(block.replace("127.0.0.1:7443", gateway.address), api_key=home.key)
        assert model.failures == []
    called, *printed = capsys.readouterr().out.splitlines()
    events = [line.split()[0] for line in printed if line.startswith("run_")]
    assert called.startswith("allow ")
    assert events == ["run_started", "run_finished"]


async def test_the_approver_of_the_page_lets_a_call_run_that_waited(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    key = home.add_tenant("asking", READS_ARE_ASKED)
    approver_key = home.make_key("asking", "approve")
    approve_reads = (await done(python_of("docs/approvals.md")))["approve_reads"]
    with served(home) as gateway:
        approver = asyncio.create_task(approve_reads(gateway.address, approver_key))
        async with Client(gateway.address, key) as client, asyncio.timeout(120):
            await client.call_tool("write_file", {"path": "/workspace/a", "content": "one"})
            read = {"path": "/workspace/a"}
            while (result := await client.call_tool("read_file", read)).outcome == "waiting":
                assert not approver.done()
                await asyncio.sleep(0.1)  # between two looks, as a service would
        approver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await approver
    assert (result.verdict, "one" in result.content) == ("ask", True)
