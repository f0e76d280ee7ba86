"""Processes that fork from an interpreter that has imported the gateway, which takes a cold one a second.

`python -m tests.warm_interpreter DESCRIPTOR` is that interpreter. It has one thread and runs nothing of the gateway
itself; each process that it forks does what `python -m MODULE ARGUMENTS...` does.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# What `airlock serve` has imported when it is ready; what is missing here is imported by each process.
_IMPORTED = (
    "agent.models.fallback_model",
    "agent.models.openai_model",
    "gateway.agents.models",
    "gateway.cli.main",
    "gateway.cli.serve",
    "gateway.composition.services",
    "gateway.server",
    "gateway.telemetry.logging",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "sandbox.engines.docker.docker_engine",
)
_MESSAGE_BYTES = 1 << 20


class WarmProcess:
    """A process that was forked from the warm interpreter: what tests use of subprocess.Popen."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code, which is negative after a signal."""
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                code = self._ended.recv(_MESSAGE_BYTES)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0) from None
            self._ended.close()
            if not code:
                raise RuntimeError("the warm interpreter has ended")
            self.returncode = int(code)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(module: str, arguments: Sequence[str], *, output: int, environment: Mapping[str, str]) -> WarmProcess:
    """Run a module as a program; `output` is the descriptor of its stdout and stderr."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        asked = {"module": module, "arguments": arguments, "environment": dict(environment), "directory": os.getcwd()}
        rights = array.array("i", [there.fileno(), output])
        _interpreter().sendmsg([json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    pid = here.recv(_MESSAGE_BYTES)
    if not pid:
        raise RuntimeError("the warm interpreter has ended")
    return WarmProcess(int(pid), here)


@functools.cache
def _interpreter() -> socket.socket:
    """Start the interpreter, which ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(there.fileno())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
        )

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


def _fork_as_asked(asking: socket.socket) -> dict[str, object] | None:
    """Fork for each request; return the request in the forked process, None when nobody asks any more."""
    selector = selectors.DefaultSelector()
    selector.register(asking, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not asking:
                pid, ended = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with ended, contextlib.suppress(BrokenPipeError):
                    ended.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(asking, _MESSAGE_BYTES, 2)
            if not message:
                return None
            ended, output = socket.socket(fileno=descriptors[0]), descriptors[1]
            pid = os.fork()
            if not pid:
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return json.loads(message)
            os.close(output)
            ended.send(str(pid).encode())
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ended))


def main() -> None:
    """Import, fork as asked, and be the program in the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for what it has forked
    for name in _IMPORTED:
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "an import has started a thread, which would not be there in a forked process"
    gc.collect()
    gc.freeze()
    asked = _fork_as_asked(socket.socket(fileno=int(sys.argv[1])))
    if asked is None:
        return
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    sys.argv[1:] = asked["arguments"]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
