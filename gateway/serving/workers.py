"""The workers of one gateway: processes that share a port, started again when they die.

The parent binds nothing and serves nothing. It holds the state directory and the port, has the workers stop when it is
told to, and takes them along when it is killed: the kernel sends them PARENT_DIED then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from gateway.errors import Misconfigured
from gateway.serving.worker import Worker

log = structlog.get_logger(__name__)
# What a worker that cannot even start is given between two tries, at first and at most.
_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 10.0
# One that served for so long has nothing in common with the one that died before it.
_STEADY_S = 30.0
_PR_SET_PDEATHSIG = 1
PARENT_DIED = signal.SIGUSR1
"""Tells a worker to stop in order. It may come several times, once for each thread of the parent as they die one by
one, so it is none of the signals whose second one means "at once"."""
_READY_LIMIT_BYTES = 256
_WORKER = re.compile(r"(\d{1,4})/(\d{1,4})@(\d{1,10})")

Command = Callable[[int, int], Sequence[str]]
"""Returns the command of a worker by its index and the descriptor for its one line: that it answers, and metrics."""


class Workers:
    """Keeps `count` processes running."""

    def __init__(self, command: Command, count: int) -> None:
        self._command = command
        self._count = count
        self._stopping = asyncio.Event()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready = [asyncio.Event() for _ in range(count)]
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics: dict[int, str] = {}

    @property
    def metrics(self) -> list[str]:
        """The addresses where those that answer are scraped; empty where they are not."""
        return [address for _, address in sorted(self._metrics.items()) if address]

    async def start(self) -> None:
        """Start them all; return when each has answered once, or raise Misconfigured when one ends before it has."""
        self._tasks = [asyncio.create_task(self._keep(index), name=f"worker {index}") for index in range(self._count)]
        answered = asyncio.gather(*(ready.wait() for ready in self._ready))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            ends: list[asyncio.Future[Any]] = [answered, stopped, *self._tasks]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered.cancel()
            stopped.cancel()
            await asyncio.gather(answered, stopped, return_exceptions=True)
        failed = next((task for task in self._tasks if task.done()), None)
        if failed is not None and not self._stopping.is_set():
            await self.stopped()
            failed.result()

    def stop(self) -> None:
        """Tell them to stop in order, and when it is said again, at once. None is started after that."""
        self._stopping.set()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def stopped(self) -> None:
        """Wait until they have stopped, told to if nobody has."""
        if not self._stopping.is_set():
            self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, index: int) -> None:
        """Have a worker run until all are to stop."""
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_s = loop.time()
            code = await self._run(index)
            if self._stopping.is_set():
                return
            if not self._ready[index].is_set():
                raise Misconfigured(f"worker {index} failed to start (exit code {code}); see its log above")
            pause_s = _FIRST_PAUSE_S if loop.time() - began_s >= _STEADY_S else min(2 * pause_s, _LAST_PAUSE_S)
            log.error("a worker ended and is started again", worker=index, code=code, pause_s=pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _run(self, index: int) -> int:
        """Run a worker to its end; return its exit code, negative for a signal."""
        readable, writable = os.pipe()
        try:
            # In a group of its own: Ctrl-C is for the parent, whose word to the workers would be the second one.
            process = await asyncio.create_subprocess_exec(
                *self._command(index, writable), pass_fds=[writable], process_group=0
            )
        except BaseException:
            os.close(readable)
            raise
        finally:
            os.close(writable)
        self._processes[index] = process
        if self._stopping.is_set():  # while it was being started
            process.terminate()
        waiting = asyncio.create_task(self._wait_ready(index, readable))
        try:
            return await process.wait()
        finally:
            del self._processes[index]
            await waiting

    async def _wait_ready(self, index: int, readable: int) -> None:
        """Wait for a worker's word, or its end."""
        with open(readable, "rb", buffering=0) as pipe:  # noqa: ASYNC230 - a pipe's end, read when it is ready
            reader = asyncio.StreamReader(limit=_READY_LIMIT_BYTES)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            try:
                if said := await reader.readline():
                    self._metrics[index] = said.decode("ascii", "replace").strip()
                    log.info("a worker answers", worker=index, metrics=self._metrics[index] or None)
                    self._ready[index].set()
            finally:
                transport.close()


def worker_command(config: Path, listen: str, count: int, options: Sequence[str] = ()) -> Command:
    """Return what starts workers of this very installation."""

    def command(index: int, ready: int) -> Sequence[str]:
        serve = ["serve", "--config", str(config), "--listen", listen, *options]
        return [
            sys.executable,
            "-m",
            "gateway.cli",
            *serve,
            "--worker",
            f"{index}/{count}@{os.getpid()}",
            "--ready-fd",
            str(ready),
        ]

    return command


def supervised_worker(said: str) -> Worker:
    """Return which worker the option --worker says this is, and stop when the parent that said so dies."""
    found = _WORKER.fullmatch(said)
    if found is None:
        raise Misconfigured(f"--worker {said!r}: this option is only for workers that `airlock serve --workers` starts")
    index, count, parent = (int(number) for number in found.groups())
    # A thread of the parent's that starts the worker is the one whose death counts: it is the main one.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, PARENT_DIED)
    if os.getppid() != parent:
        raise Misconfigured("the parent process of this worker has exited")
    return Worker(index, count, supervised=True)
