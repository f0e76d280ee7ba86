"""The workers of one gateway: processes that share a port and are restarted when they die.

The parent serves nothing. It locks the state directory, reserves the port and stops the workers. If it is killed, the
kernel sends them PARENT_DIED.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from agent.cancellation import ended
from gateway.errors import Misconfigured
from gateway.support.background import pause

log = structlog.get_logger(__name__)
# The first and the longest pause before the restart of a worker that dies at its start.
_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 10.0
# After serving this long, a worker's death is unrelated to the one before.
_STEADY_S = 30.0
_PR_SET_PDEATHSIG = 1
PARENT_DIED = signal.SIGUSR1
"""Makes a worker stop in order. The kernel may send it several times, once for each thread of the parent that dies, so
it must not be a signal whose repetition means "at once"."""
_WORKER = re.compile(r"(\d{1,4})/(\d{1,4})@(\d{1,10})")

Command = Callable[[int, int], Sequence[str]]
"""Returns the command of a worker, by its index and the descriptor for the line that says that it serves."""


@dataclass(frozen=True)
class Worker:
    """The worker `index`, from 0, of `count`. A supervised one has a parent that locks the state directory."""

    index: int = 0
    count: int = 1
    supervised: bool = False


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
        """The metrics addresses of the workers that serve; empty without metrics."""
        return [address for _, address in sorted(self._metrics.items()) if address]

    async def start(self) -> None:
        """Start all workers and wait until each serves; raises Misconfigured if one ends before that."""
        self._tasks = [asyncio.create_task(self._keep(index), name=f"worker {index}") for index in range(self._count)]
        serving = asyncio.gather(*(ready.wait() for ready in self._ready))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            ends: list[asyncio.Future[Any]] = [serving, stopped, *self._tasks]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(serving, stopped)
        failed = next((task for task in self._tasks if task.done()), None)
        if failed is not None and not self._stopping.is_set():
            await self.stopped()
            failed.result()

    def stop(self) -> None:
        """Stop the workers in order, or at once if called again. None is restarted after that."""
        self._stopping.set()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def stopped(self) -> None:
        """Wait until they have stopped; stop them first if stop() was not called."""
        if not self._stopping.is_set():
            self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, index: int) -> None:
        """Run a worker, and restart it when it dies, until all are to stop."""
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
            await pause(self._stopping, pause_s)

    async def _run(self, index: int) -> int:
        """Run a worker to its end; return its exit code, negative for a signal."""
        readable, writable = os.pipe()
        try:
            # In its own process group: Ctrl-C is for the parent alone, which then signals the workers once.
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
        with open(readable, "rb", buffering=0) as pipe:  # noqa: ASYNC230 - a pipe's end, read when it is ready
            reader = asyncio.StreamReader(limit=256)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            try:
                if line := await reader.readline():
                    self._metrics[index] = line.decode("ascii", "replace").strip()
                    self._ready[index].set()
                    log.info("a worker serves", worker=index, metrics=self._metrics[index] or None)
            finally:
                transport.close()


def worker_command(config: Path, listen: str, count: int, options: Sequence[str] = ()) -> Command:
    """Return what starts workers of this installation."""

    def command(index: int, ready: int) -> Sequence[str]:
        serve = ["serve", "--config", str(config), "--listen", listen, *options]
        worker = ["--worker", f"{index}/{count}@{os.getpid()}", "--ready-fd", str(ready)]
        return [sys.executable, "-m", "gateway.cli", *serve, *worker]

    return command


def supervised_worker(option: str) -> Worker:
    """Parse the option --worker, and make the kernel stop this process when its parent dies."""
    found = _WORKER.fullmatch(option)
    if found is None:
        raise Misconfigured(
            f"--worker {option!r}: this option is only for workers that `airlock serve --workers` starts"
        )
    index, count, parent = (int(number) for number in found.groups())
    # The death of the parent's thread that starts the worker counts: it is the main thread.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, PARENT_DIED)
    if os.getppid() != parent:
        raise Misconfigured("the parent process of this worker has exited")
    return Worker(index, count, supervised=True)
