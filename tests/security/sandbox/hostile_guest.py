"""Tool code at its worst in a live sandbox, and the daemon's health meanwhile."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import time

from sandbox.engines.docker.container_config import container_name
from sandbox.protocols import ExecResult
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import run, text

# What an attack prints when it is at its worst.
WORST = b"at its worst"
_HEALTH_LIMIT_S = 1.0
_SAMPLES = 10
_ROUNDS = 5
_PAUSE_S = 0.05
_PATIENCE_S = 120

# What the attacks have in common: who is who, and giving oneself the score that dies last.
TOOLS = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def worst():
    os.write(1, b'at its worst\\n')
def field(pid, name):
    return next(line.split()[1:] for line in open(f'/proc/{pid}/status') if line.startswith(name + ':'))
def server():
    return next(int(p) for p in os.listdir('/proc') if p.isdecimal() and field(p, 'PPid') == ['1']
                and field(p, 'Uid')[0] != str(os.getuid()))
def dying_last():
    for score in range(-1000, 1001, 50):
        try:
            fd = os.open('/proc/self/oom_score_adj', os.O_WRONLY)
            os.write(fd, str(score).encode())
            return score
        except OSError:
            pass
def eat(limit_bytes=1 << 40):
    eaten = []
    while limit_bytes > 0:
        eaten.append(bytes(range(256)) * 4096)
        limit_bytes -= 1 << 20
    return eaten
def fork(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid
def crowd(work, most=10_000):
    members = []
    try:
        while len(members) < most:
            members.append(fork(work))
    except OSError:
        pass
    return members
def eat_again_and_again():
    for _ in range(4):
        os.waitpid(fork(eat), 0)
def forever():
    while True:
        time.sleep(100)
"""


class Guest:
    """A sandbox whose tool code attacks."""

    def __init__(self, sandbox: Sandbox, instance: str) -> None:
        self.sandbox = sandbox
        self._instance = instance
        self._daemon = self.daemon_pids()
        self._health_s: list[float] = []

    def daemon_pids(self) -> tuple[str, str]:
        """Return the host's process ids of init and server. The tool spawner is expendable: init forks another."""
        container = container_name(self._instance, self.sandbox.id)
        listing = subprocess.run(
            ["docker", "top", container, "-eo", "pid,ppid,uid,args"], check=True, capture_output=True, text=True
        ).stdout
        rows = [line.split() for line in listing.splitlines() if "-m sandbox.daemon" in line]
        (init,) = [pid for pid, parent, *_ in rows if parent not in {other for other, *_ in rows}]
        (server,) = [pid for pid, parent, user, *_ in rows if parent == init and user != "0"]
        return init, server

    async def attempt(self, program: str) -> str:
        """Run a Python program to its end and return what it wrote."""
        result = await run(self.sandbox.shell, _python(program))
        assert result.outcome == "exited", (result.outcome, text(result))
        assert result.exit_code == 0, text(result)
        return text(result)

    async def survives(self, program: str, *, samples: int = _SAMPLES) -> str:
        """Ask for health while the program gets to its worst and is there; then use the sandbox as if nothing were.

        Return what the program wrote until its tree was killed. Each health comes within five seconds, or it is
        DaemonLost; and within one, nine times of ten. The machine has others to serve as well, so a round in which it
        did not is asked for again, while the attack goes on: a daemon that cannot answer in time never has a good one.
        """
        written = bytearray()
        worst = asyncio.Event()

        def on_output(_stream: object, data: bytes) -> None:
            written.extend(data)
            if WORST in written:
                worst.set()

        shell = self.sandbox.shell
        attack = asyncio.ensure_future(
            shell.execute(
                _python(program), timeout_s=120, call_id="attack", limit_chars=80_000, head_chars=2_000,
                tail_chars=2_000, on_output=on_output,
            )
        )  # fmt: skip
        try:
            while not worst.is_set():
                assert not attack.done(), _reported(attack.result())
                await self._ask()
            rounds = [await self._in_time(samples)]
            while not rounds[-1] and len(rounds) < _ROUNDS:
                rounds.append(await self._in_time(samples))
            assert rounds[-1], sorted(self._health_s)
        finally:
            attack.cancel()
            await asyncio.wait([attack])
            await self._bury()
        await self.works()
        return written.decode(errors="replace")

    async def _in_time(self, samples: int) -> bool:
        """Ask some times; return whether nearly all answers came within the limit."""
        for _ in range(samples):
            await self._ask()
        return sum(taken_s < _HEALTH_LIMIT_S for taken_s in self._health_s[-samples:]) >= 0.9 * samples

    async def _bury(self) -> None:
        """Kill what the attack left behind, once the kernel has taken back enough memory for that."""
        async with asyncio.timeout(_PATIENCE_S):
            while (await run(self.sandbox.shell, "kill -9 -1; true")).outcome != "exited":
                await self._ask()

    async def _ask(self) -> None:
        asked_s = time.monotonic()
        await self.sandbox.health()
        self._health_s.append(time.monotonic() - asked_s)
        await asyncio.sleep(_PAUSE_S)

    async def works(self) -> None:
        """Assert that a command, a write and a read do what they always do, by the same daemon."""
        result = await run(self.sandbox.shell, "echo well")
        assert (result.outcome, text(result)) == ("exited", "well\n"), _reported(result)
        await self.sandbox.files.write("/workspace/after", b"written")
        assert b"".join([data async for data in self.sandbox.files.read("/workspace/after")]) == b"written"
        assert (await self.sandbox.files.glob("/workspace", "aft*")).entries[0].name.endswith("after")
        assert self.daemon_pids() == self._daemon


def _python(program: str) -> str:
    return f"exec python3 -c {shlex.quote(TOOLS + program)}"


def _reported(result: ExecResult) -> str:
    return f"{result.outcome} {result.exit_code} {result.message}: {text(result)[-2000:]}"
