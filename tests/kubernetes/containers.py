"""A container as a process of this machine: an image is a function that says what to run for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.engines.local.local_tree import descendants
from tests.kubernetes.store import Made


@dataclass(frozen=True)
class ContainerStart:
    """What a container is started with, by its Pod."""

    pod: Made
    spec: Made
    command: Sequence[str]
    """Its command and arguments, their variables filled in."""
    environment: Mapping[str, str]
    root: Path
    mounts: Mapping[str, Path]
    """The directories of this machine that it has at its mount paths."""

    @property
    def pod_ip(self) -> str:
        return str(self.pod["status"]["podIP"])

    def path(self, inside: str) -> Path:
        """Return where a path of the container is on this machine."""
        for mount in sorted(self.mounts, key=len, reverse=True):
            if inside == mount or inside.startswith(f"{mount.rstrip('/')}/"):
                return self.mounts[mount] / inside[len(mount) :].strip("/") if inside != mount else self.mounts[mount]
        return self.root / inside.lstrip("/")


@dataclass(frozen=True)
class Launch:
    """A process to start: stdin is a pipe that closes when the container is to be gone, whoever ends it."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()
    """Which it inherits; they are closed here once it has started."""
    heeds_term: bool = True
    """Whether its pid 1 ends on SIGTERM. One without a handler, such as `sleep`, does not as pid 1."""


Image = Callable[[ContainerStart], Launch]


def as_written(start: ContainerStart) -> Launch:
    """Run a container's own command as a process of this machine. Satisfies Image."""
    return Launch(start.command, start.environment)


class Process:
    """A container's process and all that it starts."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self._heeds_term = launch.heeds_term
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(launch.arguments),
                env={"PATH": os.environ.get("PATH", os.defpath), **launch.environment},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=tuple(launch.descriptors),
                start_new_session=True,
            )
        for descriptor in launch.descriptors:
            os.close(descriptor)
        self.reason = ""
        """Why it was killed, such as OOMKilled."""

    async def ended(self) -> int:
        """Wait for its end and return the exit code, as a container runtime counts it."""
        done = asyncio.Event()
        descriptor = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        code = self._process.wait()
        self._close()
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        if self._heeds_term:
            self._process.terminate()

    def kill(self, reason: str = "") -> None:
        """Kill it and all that it started; the first process last, so that its exit status is that of SIGKILL."""
        self.reason = self.reason or reason
        if self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)
        while below := descendants(self._process.pid):
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.kill()

    def reap(self) -> None:
        """Kill it, and leave no zombie."""
        self.kill()
        self._process.wait(10)
        self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
