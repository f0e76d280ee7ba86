"""A reader of docs/tutorial.md: types its shell blocks in one terminal, and serves with a model in another."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gateway.client import Client

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"Save this as\s`([\w.-]+)`:\n\n\Z")
_EXPORTED = re.compile(r'^declare -x (AIRLOCK_\w+)="(.*)"$', re.MULTILINE)
_KEYS = ("SERVICE_KEY", "APPROVER_KEY", "OPERATOR_KEY")  # in the order in which `airlock init` prints them
_DONE_ALREADY = ("make setup", ". .venv/bin/activate")  # by `make test`, and by PATH
_READY_S = 120
_BLOCK_S = 300


@dataclass(frozen=True)
class Block:
    """A block, the output that the page shows for it (None: none), and the text before it."""

    language: str
    text: str
    output: str | None
    before: str

    @property
    def typed(self) -> str:
        """The commands that have not been given before the test."""
        return "\n".join(line for line in self.text.splitlines() if line not in _DONE_ALREADY)


def blocks() -> list[Block]:
    page = PAGE.read_text(encoding="utf-8")
    return [Block(found[1], found[2], found[3], page[: found.start()]) for found in _BLOCK.finditer(page)]


@dataclass(frozen=True)
class Reader:
    """A reader who follows the page: a directory, what the terminal has exported, what was noted to fill in."""

    directory: Path
    env: dict[str, str]
    noted: dict[str, str]

    @classmethod
    def in_directory(cls, directory: Path) -> Self:
        """Return a reader who has the virtual environment and nothing of Airlock's set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRLOCK_", "OPENAI_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        here = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "NO_PROXY": "127.0.0.1"}
        return cls(directory, {**kept, **here}, {})

    def type(self, text: str) -> str:
        """Run a block as a terminal would, and return what it printed; what it exports stays."""
        for name, value in self.noted.items():
            text = text.replace(name, value)
        exported = self.directory / ".exported"
        done = subprocess.run(
            ["bash", "-c", f"{text}\nexport -p >{exported}"],
            cwd=self.directory,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BLOCK_S,
            check=True,
        )
        self.env.update(_EXPORTED.findall(exported.read_text(encoding="utf-8")))
        self._note(done.stdout)
        return done.stdout

    def save(self, block: Block) -> None:
        """Write the file that the page says to save."""
        if name := _FILE.search(block.before):
            (self.directory / name[1]).write_text(block.text, encoding="utf-8")

    def _note(self, said: str) -> None:
        keys = re.findall(r"alk_[\w-]{40,}", said)
        if len(keys) == len(_KEYS):
            self.noted.update(zip(_KEYS, keys, strict=True))
        if approval := re.search(r"apr_\w+", said):
            self.noted["APPROVAL_ID"] = approval[0]


@asynccontextmanager
async def serving(reader: Reader, command: str, model: Mapping[str, str]) -> AsyncIterator[Path]:
    """Run the gateway in a terminal that sets `model`, on a free port, and return its log; Ctrl-C ends it."""
    ready, log = reader.directory / "ready", reader.directory / "serve.log"
    with (reader.directory / "airlock-data" / "airlock.yaml").open("a", encoding="utf-8") as config:
        config.write("\nsandbox: {keep_workspaces: false}\n")  # a reader keeps theirs
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command.split(),
            *("--listen", "127.0.0.1:0", "--ready-file", str(ready)),
            cwd=reader.directory,
            env={**reader.env, **model},
            stdout=output,
            stderr=output,
        )
    try:
        async with asyncio.timeout(_READY_S):
            while "press Ctrl-C to stop" not in log.read_text(encoding="utf-8"):
                assert process.returncode is None, log.read_text(encoding="utf-8")
                await asyncio.sleep(0.05)
        reader.env["AIRLOCK_ADDRESS"] = ready.read_text(encoding="utf-8")
        yield log
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        assert await process.wait() == 0, log.read_text(encoding="utf-8")


async def policy_is_live(reader: Reader) -> None:
    """Wait until calls are judged by the version in force: a gateway has it within a second, a busy machine later."""
    current = "airlock policy current --tenant default --config airlock-data/airlock.yaml --json"
    version = json.loads(await asyncio.to_thread(reader.type, current))["version"]
    async with Client(reader.env["AIRLOCK_ADDRESS"], reader.env["AIRLOCK_API_KEY"]) as airlock, asyncio.timeout(60):
        while (await airlock.call_tool("ls", {"path": "/workspace"}, thread="books")).policy_version != version:
            await asyncio.sleep(0.1)


def matches(shown: str, said: str) -> bool:
    """Compare what the page shows with what came: `...` is anything, blanks are as the terminal likes."""
    parts = (r"\s+".join(map(re.escape, part.split())) for part in shown.split("..."))
    return re.search(r".*".join(parts), said, re.DOTALL) is not None
