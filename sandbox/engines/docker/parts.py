"""The parts of a Docker engine that own one thing each. What combines them takes this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sandbox.background import BackgroundTasks
from sandbox.engines.docker.containers import Containers
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.lock_directory import LockDirectory
from sandbox.engines.docker.sandbox_history import Lifetime, Record
from sandbox.engines.docker.stopped_sandboxes import StoppedSandboxes
from sandbox.engines.docker.workspace_claims import WorkspaceClaims


@dataclass(frozen=True)
class Parts:
    """Shared by the collaborators of one engine. What is in `background` is waited for before the engine closes."""

    requests: DockerRequests
    containers: Containers
    locks: LockDirectory
    stopped: StoppedSandboxes
    claims: WorkspaceClaims
    lifetime: Lifetime
    record: Record
    background: BackgroundTasks
    new_suffix: Callable[[], str]
