"""`airlock runs watch` in a terminal: a run is seen live, left with Ctrl-C while it goes on, and rejoined."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client
from tests.gateway_process import AIRLOCK, Home, airlock, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
GATE = "echo before the gate; while [ ! -e /workspace/go ]; do sleep 0.05; done"
TURNS = [Turn(say="I look.", calls=(Call("execute", {"command": GATE}),)), Turn(say="The gate is open.")]
_PATIENCE_S = 60


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *AIRLOCK, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **env, "TERM": "xterm", "COLUMNS": "200"},
            # Tests that were started in the background pass on that they are deaf to Ctrl-C.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - nothing else is done there
        )
        os.close(slave)
        self.seen = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read until a pattern is there."""
        deadline = time.monotonic() + _PATIENCE_S
        while (found := re.search(pattern, self.seen)) is None:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(left_s, 0))
            try:
                said = os.read(self._master, 65536) if ready else b""
            except OSError:  # the program has ended
                said = b""
            assert said, f"{pattern!r} never came: {self.seen}"
            self.seen += said.decode(errors="replace")
        return found

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def ended(self) -> int:
        """Return how it ended."""
        code = self.process.wait(_PATIENCE_S)
        os.close(self._master)
        return code


@dataclass(frozen=True)
class Watched:
    """A gateway, and how to reach it."""

    home: Home
    address: str

    @property
    def env(self) -> dict[str, str]:
        return {"AIRLOCK_ADDRESS": self.address, "AIRLOCK_API_KEY": self.home.key}


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    async with ScriptedModelServer(TURNS) as model:
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        with served(home, ENV) as gateway:
            yield Watched(home, gateway.address)


def _documents(text: str) -> Iterator[dict[str, object]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


async def test_a_run_is_seen_live_left_with_ctrl_c_and_rejoined_where_it_was(watched: Watched) -> None:
    async with Client(watched.address, watched.home.key) as client:
        run = await client.start_run("open the gate", thread="t")
        terminal = Terminal("runs", "watch", run.id, env=watched.env)
        await asyncio.to_thread(terminal.until, "I look")
        await asyncio.to_thread(terminal.until, "execute")
        terminal.press_ctrl_c()
        left = await asyncio.to_thread(
            terminal.until, r"detached; the run continues: airlock runs watch (\S+) --from (\d+)"
        )
        assert await asyncio.to_thread(terminal.ended) == 130
        assert left[1] == run.id
        assert (await client.get_run(run.id)).status == "running"
        again = Terminal("runs", "watch", run.id, "--from", left[2], "--json", env=watched.env)
        await client.write_file("t", "/workspace/go", b"")
        await asyncio.to_thread(again.until, r'"type": "run_finished".*\n')
        assert await asyncio.to_thread(again.ended) == 0
        sequences = [event["sequence"] for event in _documents(again.seen)]
        last = [event.sequence async for event in client.watch_run(run.id)][-1]
        assert sequences == list(range(int(left[2]), last + 1))
    whole = await asyncio.to_thread(airlock, "runs", "watch", run.id, env=watched.env)
    assert "The gate is open." in whole.stdout


async def test_a_slow_tool_call_shows_its_output_as_it_comes_and_once(watched: Watched) -> None:
    gate = GATE.replace("before the gate", "before the $((6 * 7))") + "; echo behind it"
    arguments = json.dumps({"command": gate})
    terminal = Terminal("tool", "call", "execute", arguments, "--thread", "t", env=watched.env)
    await asyncio.to_thread(terminal.until, "before the 42")
    async with Client(watched.address, watched.home.key) as client:
        await client.write_file("t", "/workspace/go", b"")
    await asyncio.to_thread(terminal.until, r"exited 0 · .* ms")
    assert await asyncio.to_thread(terminal.ended) == 0
    assert (terminal.seen.count("before the 42"), terminal.seen.count("behind it")) == (1, 1)
    piped = await asyncio.to_thread(
        airlock, "tool", "call", "execute", '{"command": "echo one; sleep 1.2; echo two"}', env=watched.env
    )
    assert piped.stdout == "one\ntwo\n"


async def test_a_run_that_was_cancelled_ends_the_watch_with_bad_news(watched: Watched) -> None:
    async with Client(watched.address, watched.home.key) as client:
        run = await client.start_run("open the gate", thread="t")
        terminal = Terminal("runs", "watch", run.id, env=watched.env)
        await asyncio.to_thread(terminal.until, "execute")
        cancelled = await asyncio.to_thread(airlock, "runs", "cancel", run.id, "--json", env=watched.env)
        assert json.loads(cancelled.stdout)["id"] == run.id
        await asyncio.to_thread(terminal.until, "cancelled")
        assert await asyncio.to_thread(terminal.ended) == 1
