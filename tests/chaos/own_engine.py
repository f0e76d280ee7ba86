"""A Docker engine of a test's own, to be killed and started again, and gone without a trace when the test is over.

All its processes are in a namespace of processes whose first one ends with the tests, however they end, and its mounts
and networks in namespaces that go with it. What it stores is below one directory. Only root can have one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

_START_S = 120
_ANSWER_S = 10
_END_S = 30
_HOLDER = Path(__file__).with_name("engine_holder.py")
_CGROUPS = Path("/sys/fs/cgroup")
_DAEMON = b"sandbox.daemon"
_SPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class EngineRefused(Exception):
    """The engine did not do what it was asked, or does not answer."""


class OwnEngine:
    """The engine below a directory. With `live_restore` its next start leaves containers alone, else it kills them.

    `network` are options of dockerd in place of those that leave its containers without one.
    """

    def __init__(
        self, directory: Path, *, live_restore: bool = False, network: Sequence[str] = ("--bridge=none",)
    ) -> None:
        self.socket = directory / "docker.sock"
        self.url = f"unix://{self.socket}"
        self.cgroup = f"airlock-{directory.name}"
        self._directory = directory
        self._starting = threading.Lock()
        exec_root = directory / "run"
        self._pid_files = (directory / "docker.pid", exec_root / "containerd" / "containerd.pid")
        options = [
            f"--host={self.url}",
            f"--data-root={directory / 'data'}",
            f"--exec-root={exec_root}",
            f"--pidfile={self._pid_files[0]}",
            f"--cgroup-parent=/{self.cgroup}",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            *network,
            "--iptables=false",
            "--label=airlock.test=chaos",
            *(["--live-restore"] if live_restore else []),
        ]
        with (directory / "log").open("ab") as log:
            self._holder = subprocess.Popen(
                [*_SPACES, sys.executable, "-I", "-S", str(_HOLDER), "dockerd", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    # --- its life ---

    def start(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Start it and return when it answers, or `given_up` says so. One that ends is started again."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        deadline_s = time.monotonic() + _START_S
        while not self.answers():
            if given_up():
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the engine did not start:\n{(self._directory / 'log').read_text()[-4000:]}")
            with self._starting:
                if not self._named("dockerd"):
                    for path in self._pid_files:  # left by one that was killed, they would keep the next from starting
                        path.unlink(missing_ok=True)
                    self._holder.stdin.write(b"\n")
                    self._holder.stdin.flush()
                    self._holder.stdout.readline()
            time.sleep(0.02)

    def answers(self) -> bool:
        """Return whether it does."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(_ANSWER_S)
            asked.connect(str(self.socket))
            asked.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200 OK" in asked.recv(256)
        return False

    def kill(self) -> None:
        """Kill it without a chance to clean up; its containers are not notified."""
        for pid in self._named("dockerd"):
            _kill(pid)
        self._wait_until_gone("dockerd")
        self._wait_until_gone("containerd")  # it ends with the dockerd that started it

    def close(self) -> None:
        """End all its processes and remove all that it stored."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(_END_S)
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        deadline_s = time.monotonic() + _END_S
        while self._leave_cgroups() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        shutil.rmtree(self._directory)

    # --- what is on it ---

    def docker(self, *arguments: str) -> str:
        """Return what the docker command says."""
        command = ["docker", "--host", self.url, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise EngineRefused(done.stderr)
        return done.stdout

    def load(self, *images: str) -> None:
        """Bring images over from the engine that `docker` reaches."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["docker", "--host", self.url, "load", "-q"], stdin=saving.stdout, check=True, stdout=subprocess.DEVNULL
            )
        assert saving.returncode == 0

    def containers(self) -> dict[str, list[int]]:
        """Return the processes of each container that has some, its first one first, whether or not anybody answers."""
        found: dict[str, list[int]] = {}
        for pid in _pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
                    place = line.split(":", 2)[2]
                    if place.startswith(f"/{self.cgroup}/"):
                        found.setdefault(place.split("/")[2], []).append(pid)
                        break
        return {name: sorted(pids, key=_inner_pid) for name, pids in found.items()}

    def executing(self, command: bytes) -> list[list[int]]:
        """Return the processes of each container where a process has these words on its command line."""
        groups = self.containers().values()
        return [pids for pids in groups if any(command in _read(f"/proc/{pid}/cmdline") for pid in pids)]

    def daemons(self) -> list[int]:
        """Return the processes of Airlock's daemon in all containers: init, server and tool spawner of each."""
        return [pid for pids in self.containers().values() for pid in pids if _DAEMON in _read(f"/proc/{pid}/cmdline")]

    def processes(self) -> list[int]:
        """Return those of the engine itself."""
        return self._named("dockerd")

    def shims(self) -> list[int]:
        """Return the processes that stand between the engine and its containers."""
        return self._named("containerd-shim")

    def space(self) -> int:
        """Return the process that holds its namespaces, once there is one."""
        deadline_s = time.monotonic() + _START_S
        while not (children := _read(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").split()):
            assert time.monotonic() < deadline_s, "no namespaces were made"
            time.sleep(0.01)
        return int(children[0])

    def _named(self, name: str) -> list[int]:
        """Return the engine's own processes of a name."""
        inside = self._space()
        return [pid for pid in _pids() if _comm(pid).startswith(name[:15]) and _space_of(pid) == inside]

    def _space(self) -> str:
        """Return the namespace of its processes, "" where there is none any more."""
        children = _read(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").split()
        return _space_of(int(children[0])) if children else ""

    def _wait_until_gone(self, name: str) -> None:
        deadline_s = time.monotonic() + _END_S
        while any(_comm(pid) == name for pid in self._named(name)):
            assert time.monotonic() < deadline_s, f"{name} does not end"
            time.sleep(0.005)

    def _leave_cgroups(self) -> bool:
        """Remove its control groups, the innermost first; return whether some are left."""
        roots = [*_CGROUPS.glob(f"*/{self.cgroup}"), *_CGROUPS.glob(self.cgroup)]
        for root in roots:
            for place, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(place)
        return any(root.exists() for root in roots)


@contextlib.contextmanager
def own_engine(*images: str, live_restore: bool = False) -> Iterator[OwnEngine]:
    """Have an engine with these images until the block ends; skips where there can be none."""
    skip_without("dockerd", "unshare")
    # Not in pytest's directory: a socket's path must be short.
    engine = OwnEngine(Path(tempfile.mkdtemp(prefix="chaos-")), live_restore=live_restore)
    try:
        engine.start()
        engine.load(*images)
        yield engine
    finally:
        engine.close()


def skip_without(*programs: str) -> None:
    """Skip a test where there can be no engine of its own."""
    missing = [program for program in programs if shutil.which(program) is None]
    if os.geteuid() != 0 or missing or subprocess.run([*_SPACES, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"only root, with dockerd, unshare and namespaces, has an engine of its own (missing: {missing})")


def kill_all(pids: Sequence[int]) -> None:
    """Kill processes that may be gone already."""
    for pid in pids:
        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _comm(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").decode(errors="replace").strip()


def _space_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return "gone"


def _inner_pid(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid
