"""Gateways under a supervisor: one that is gone is started again, at the same address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.gateway_process import AIRLOCK, Home

_SERVES_S = 120
_STOP_S = 90
# What a start says that finds no engine or no database: it is the supervisor's to try again.
_AWAY = ("error: the Docker engine at", "error: the database ")


class Supervised:
    """One gateway. It may be killed at any moment, also while it starts."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.address = "127.0.0.1:0"
        self.codes: list[int] = []
        """What it exited with when it was not killed, and the engine and the database were there."""
        self._process: asyncio.subprocess.Process | None = None
        self._away_s = 0.0
        self._killed = False
        self._stopping = False

    @property
    def pids(self) -> list[int]:
        """Its process, if it runs."""
        return [] if self._process is None or self._process.returncode is not None else [self._process.pid]

    @property
    def log(self) -> str:
        """What all its processes wrote."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    async def serves(self) -> None:
        """Return once it does."""
        deadline_s = time.monotonic() + _SERVES_S
        while not self._ready.exists():
            assert time.monotonic() < deadline_s, f"the gateway does not serve:\n{self.log[-4000:]}"
            await asyncio.sleep(0.02)
        self.address = self._ready.read_text(encoding="utf-8")

    async def run(self) -> None:
        """Run it until it is stopped, and have it come back whenever it ends before."""
        while not self._stopping:
            self._ready.unlink(missing_ok=True)
            self._killed = False
            where = ("--config", str(self.home.config), "--listen", self.address, "--ready-file", str(self._ready))
            with self._log_path.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(*AIRLOCK, "serve", *where), stdout=log, stderr=log, env=dict(os.environ)
                )
            if self._stopping:
                self._process.terminate()
            code = await self._process.wait()
            if not self._killed and not self.log.rstrip().rpartition("\n")[2].startswith(_AWAY):
                self.codes.append(code)
            if not self._stopping:
                await asyncio.sleep(self._away_s)

    def kill(self, away_s: float) -> None:
        """Kill it without a chance to clean up; it comes back `away_s` later."""
        self._away_s = away_s
        if self._process is not None and self._process.returncode is None:
            self._killed = True
            self._ready.unlink(missing_ok=True)
            self._process.kill()

    async def stop(self) -> None:
        """Have it stop in order."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()

    @property
    def _ready(self) -> Path:
        return self.home.config.parent / "ready"

    @property
    def _log_path(self) -> Path:
        return self.home.config.parent / "serve.log"


@contextlib.asynccontextmanager
async def supervised(homes: Sequence[Home]) -> AsyncIterator[list[Supervised]]:
    """Serve these until the block ends, then have all of them stop in order, at the same time."""
    gateways = [Supervised(home) for home in homes]
    running = [asyncio.create_task(one.run()) for one in gateways]
    try:
        await asyncio.gather(*(one.serves() for one in gateways))
        yield gateways
    finally:
        await asyncio.gather(*(one.stop() for one in gateways))
        await asyncio.gather(*running)
