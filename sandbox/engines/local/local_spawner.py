"""LocalSpawner: starts programs as children of this process, where in a sandbox the daemon's Spawner has init do it.

It contains nothing: what it starts has the rights of this process. What a call started is known by a variable of the
environment, which setsid and a double fork do not take away, and by the session of its first process while that lives.
A program that clears its environment and leaves its session is not found any more. Linux only, for it reads /proc.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.daemon.supervisor.call_tree import KILL_LIMIT_S, is_dead, read_status
from sandbox.daemon.supervisor.spawner import START_LIMIT_S, Process

_VARIABLE = b"AIRLOCK_CALL"
# A session's first process that opens a terminal has it for its own. The shell does it between its start and its exec,
# for what Python would run there is not safe in a process of several threads.
_ON_TERMINAL = (b"/bin/sh", b"-c", b'exec "$@" 0<>/proc/self/fd/0', b"sh")
_FIRST_PAUSE_S = 0.002
_LAST_PAUSE_S = 0.02


@dataclass(frozen=True)
class _Child:
    """A call's first process until it is reaped; the descriptor tells of its end."""

    process: Process
    popen: subprocess.Popen[bytes]
    descriptor: int


class LocalSpawner:
    """Starts the programs of one sandbox; `token` marks them, and is no other's beginning."""

    def __init__(self, token: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._token = token.encode() + b"/"
        self._next_call = 0
        self._children: dict[int, _Child] = {}
        self._listened: set[int] = set()

    async def start(
        self,
        argv: list[bytes],
        env: list[bytes],
        cwd: bytes,
        stdio: list[int],
        *,
        terminal: bool = False,
        limit_s: float = START_LIMIT_S,  # noqa: ARG002 - the daemon's; a start here has no way to be held up
    ) -> Process:
        """Start a program with stdout, stderr and perhaps stdin, or one terminal; OSError says why it did not."""
        self._next_call += 1
        process = Process(self._next_call, self._loop)
        variables = dict(variable.split(b"=", 1) for variable in env)
        variables[_VARIABLE] = self._token + b"%d" % process.call
        popen = _started([*_ON_TERMINAL, *argv] if terminal else argv, variables, cwd, stdio, terminal=terminal)
        try:
            child = _Child(process, popen, os.pidfd_open(popen.pid))
        except OSError:
            popen.kill()
            popen.wait()
            raise
        self._children[process.call] = child
        self._listened.add(process.call)
        process.started.set_result(popen.pid)
        self._loop.add_reader(child.descriptor, self._reap, child)
        return process

    def _reap(self, child: _Child) -> None:
        code = child.popen.poll()
        if code is None:
            return
        self._loop.remove_reader(child.descriptor)
        os.close(child.descriptor)
        del self._children[child.process.call]
        child.process.ended.set_result(code << 8 if code >= 0 else -code)  # as wait() has it
        child.process.wake()

    async def kill(self, process: Process) -> int:
        """SIGKILL everything the call started; return how many processes are left after a while, normally 0."""
        return await asyncio.to_thread(self._kill_all, lambda call: call == process.call)

    async def kill_strays(self) -> int:
        """SIGKILL what was left behind by calls that nobody listens to; return how many processes are left."""
        return await asyncio.to_thread(self._kill_all, lambda call: call not in self._listened)

    async def signal(self, process: Process, number: int) -> None:
        """Send a signal to the process group of the first process; ProcessLookupError when that is over."""
        if process.call not in self._children:  # its number may be anybody's by now
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        os.killpg(self._children[process.call].popen.pid, number)

    async def signal_tree(self, process: Process, number: int) -> int:
        """Send a signal once to everything the call started; return to how many processes."""
        return await asyncio.to_thread(self._signal_once, lambda call: call == process.call, number, self._sessions())

    async def count(self) -> dict[int, int]:
        """Return how many processes of each call live."""

        def count() -> dict[int, int]:
            calls: dict[int, int] = {}
            for _, call in self._living(self._sessions()):
                calls[call] = calls.get(call, 0) + 1
            return calls

        return await asyncio.to_thread(count)

    def is_live(self, call: int) -> bool:
        """Return whether somebody still listens to a call."""
        return call in self._listened

    def forget(self, process: Process) -> None:
        """Stop listening to a call; what it left behind lives on."""
        self._listened.discard(process.call)

    async def close(self) -> None:
        """SIGKILL everything and wait for the ends."""
        await asyncio.to_thread(self._kill_all, lambda _: True)
        ends = [child.process.ended for child in self._children.values()]
        if ends:
            await asyncio.wait(ends, timeout=KILL_LIMIT_S)

    def _kill_all(self, is_meant: Callable[[int], bool]) -> int:
        deadline_s = time.monotonic() + KILL_LIMIT_S
        pause_s = _FIRST_PAUSE_S
        # As they are now: the first process of one is reaped while others of it are still to be found. Until the last
        # of these is dead the kernel gives their number to no other.
        sessions = self._sessions()
        # New ones can only come from those that were not killed yet: going on until nobody is found ends fork races.
        while (alive := self._signal_once(is_meant, signal.SIGKILL, sessions)) and time.monotonic() < deadline_s:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        return alive

    def _sessions(self) -> dict[int, int]:
        """Return the session that each call's first process leads, and the call; only of those that are not reaped."""
        return {child.popen.pid: call for call, child in list(self._children.items())}

    def _signal_once(self, is_meant: Callable[[int], bool], number: int, sessions: dict[int, int]) -> int:
        sent = 0
        for pid, call in self._living(sessions):
            if is_meant(call):
                sent += _signal(pid, number, lambda pid, call=call: self._call_of(pid, sessions) == call)  # type: ignore[misc]
        return sent

    def _living(self, sessions: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the living processes of this spawner with the calls they are of."""
        for pid in _pids():
            call = self._call_of(pid, sessions)
            if call:
                yield pid, call

    def _call_of(self, pid: int, sessions: dict[int, int]) -> int:
        """Return the call that a living process is of, 0 for none."""
        mark = _mark(pid)
        if mark.startswith(self._token):
            number = mark.removeprefix(self._token)
            return int(number) if number.isdigit() else 0
        try:
            call = sessions.get(os.getsid(pid), 0)
        except OSError:
            return 0
        if call:
            status = read_status(pid)
            return 0 if status is None or is_dead(status) else call
        return 0


def _started(
    argv: list[bytes], variables: dict[bytes, bytes], cwd: bytes, stdio: list[int], *, terminal: bool
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; returns once it is that program, which takes a millisecond."""
    if terminal:
        stdin = stdout = stderr = stdio[0]
    else:
        stdout, stderr = stdio[:2]
        stdin = stdio[2] if len(stdio) > 2 else subprocess.DEVNULL
    return subprocess.Popen(
        argv, cwd=cwd, env=variables, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )


def kill_left(beginning: str) -> None:
    """SIGKILL what a process that died had started: every program whose mark has this beginning."""
    prefix = beginning.encode()
    for pid in _pids():
        if _mark(pid).startswith(prefix):
            _signal(pid, signal.SIGKILL, lambda found: _mark(found).startswith(prefix))


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _mark(pid: int) -> bytes:
    """Return what a process has in our variable; nothing for one that is dead, gone, or another user's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    return (b"\0" + environment).partition(b"\0" + _VARIABLE + b"=")[2].partition(b"\0")[0]


def _signal(pid: int, number: int, is_still: Callable[[int], bool]) -> bool:
    """Signal a process, and no other that got its number meanwhile; return whether it was there."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_still(pid):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
