"""What a sandbox is: what it may use, what it is made of, whose it is, what it offers, and how lists show it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from sandbox.protocols import FileSystem, Network, Processes, Shell
from sandbox.transition import State
from sandbox.usage import Health
from sandbox.v1.channel_pb2 import Posture


@dataclass(frozen=True)
class SandboxLimits:
    """What a sandbox may use; all enforced by the kernel unless said otherwise.

    The kernel holds `workspace_bytes` where the engine's disk has project quotas, and for each file. Elsewhere the
    daemon does, as it does `workspace_files` (sandbox/daemon/limits/disk_watch.py); 0 is no limit of files. While less
    than `disk_reserve_bytes` is free on the engine's disk nothing in the sandbox may grow; that is the operator's, the
    same for all. `seccomp_filters` says whether programs may install seccomp filters of their own.
    """

    memory_bytes: int = 1024 * 1024 * 1024
    cpus: float = 1.0
    pids: int = 512
    workspace_bytes: int = 2 * 1024 * 1024 * 1024
    workspace_files: int = 500_000
    disk_reserve_bytes: int = 0
    tmp_bytes: int = 256 * 1024 * 1024
    open_files: int = 4096
    seccomp_filters: bool = False


@dataclass(frozen=True)
class SandboxSpec:
    """What to make. `tenant` and `thread` own it; names in Docker are made from their hash, never from their text."""

    tenant: str
    thread: str
    image: str
    runtime: str = "runc"
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    env: Mapping[str, str] = field(default_factory=dict)
    # Whether the file calls refuse a file that has more than one name: a policy that distinguishes paths requires it.
    refuse_hard_links: bool = False
    # How long it may be idle before it is stopped, None for as long as any; no two specs differ by it.
    idle_timeout_s: float | None = field(default=None, compare=False)
    # Why a sandbox of this image is refused, for the caller (ImageGate).
    refused: str = ""


Owner = tuple[str, str]
"""The digests of a tenant and of one of its threads: no text of theirs reaches a name or label of an engine."""


def digest(*texts: str) -> str:
    """Return 24 hex digits that stand for texts; no two lists of texts share their input."""
    joined = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def made_digest(body: Mapping[str, Any]) -> str:
    """Return the digest of the configuration that a container or a Pod is made from."""
    return digest(json.dumps(body, sort_keys=True))


@lru_cache(4096)
def owner_by_name(tenant: str, thread: str) -> Owner:
    """Return the owner of the sandbox of a tenant's thread."""
    return digest(tenant), digest(tenant, thread)


def owner_of(spec: SandboxSpec) -> Owner:
    """Return the owner of a sandbox of a spec."""
    return owner_by_name(spec.tenant, spec.thread)


class Sandbox(Protocol):
    """A running sandbox."""

    @property
    def id(self) -> str: ...
    @property
    def spec(self) -> SandboxSpec: ...
    @property
    def posture(self) -> Posture:
        """What the kernel reported when it came up."""

    @property
    def outdated(self) -> bool:
        """Whether it differs from its spec or is past its lifetime; other calls in it keep it alive."""

    @property
    def overdue_s(self) -> float | None:
        """For how long it is past its lifetime, when no call may begin in it; None while it is not."""

    @property
    def busy(self) -> bool:
        """Whether calls of any process are under way in it; asking takes no lock."""

    def take_ended_processes(self) -> int:
        """Return how many background processes ended when it was stopped, for the caller to report.

        The next call returns 0, in any process.
        """

    @property
    def files(self) -> FileSystem: ...
    @property
    def shell(self) -> Shell: ...
    @property
    def processes(self) -> Processes: ...
    @property
    def network(self) -> Network: ...
    @property
    def alive(self) -> bool:
        """Whether its daemon has kept the protocol so far; a sandbox that is not alive must be replaced."""

    def borrow(self) -> bool:
        """Begin a use; False when another process removed the sandbox, which is not alive then."""

    def give_back(self) -> None: ...

    async def health(self, *, count_disk: bool = False) -> Health:
        """Return what its daemon says of itself, `count_disk` with what files take; raises DaemonLost."""

    async def ping(self) -> bool:
        """Return whether the daemon answers within a second."""


@dataclass(frozen=True)
class LeftSandbox:
    """A sandbox that an earlier process of the same gateway left running, until it is asked for or goes idle.

    Its owner is known by the digests of owner_of() only.
    """

    id: str
    tenant: str
    thread: str


@dataclass(frozen=True)
class ListedSandbox:
    """A sandbox as lists show it, whichever process made it; times are in seconds since 1970.

    `since_s` is when its last call ended, or when it was stopped; None while calls are in it, or it is being made.
    `reason` says why it failed; "" for other states, and while a process makes or removes it.
    """

    id: str
    thread: str
    image: str
    runtime: str
    created_s: float
    state: State = "running"
    since_s: float | None = None
    reason: str = ""
