"""The parts of a Docker engine that own one thing each. What combines them takes this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sandbox.background import BackgroundTasks
from sandbox.engines.docker.containers import Containers
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.lock_directory import LockDirectory
from sandbox.engines.docker.stopped_sandboxes import StoppedSandboxes
from sandbox.engines.docker.workspace_claims import WorkspaceClaims
from sandbox.owner import Owner
from sandbox.thread_lock import Note
from sandbox.transition import OnTransition, State, Transition


class Lifetime:
    """A sandbox is past its lifetime `lifetime_s` after it was made; None sets no end. `clock` counts from 1970."""

    def __init__(self, lifetime_s: float | None, clock: Callable[[], float]) -> None:
        self._lifetime_s = lifetime_s
        self.clock = clock

    def overdue_s(self, note: Note) -> float | None:
        """Return for how long a sandbox is past its lifetime; None while it is not, or where its age is unknown."""
        if self._lifetime_s is None or not note.created_s:
            return None
        past_s = self.clock() - (note.created_s + self._lifetime_s)
        return past_s if past_s >= 0 else None

    def is_over(self, note: Note) -> bool:
        """Return whether a sandbox is past its lifetime."""
        return self.overdue_s(note) is not None


Record = Callable[[Owner, Note, State, str], None]
"""Records a transition of an owner's sandbox, with its reason."""


def recorder(on_transition: OnTransition) -> Record:
    """Return what emits a transition for each record."""

    def record(owner: Owner, note: Note, state: State, reason: str) -> None:
        on_transition(Transition(*owner, note.sandbox, state, reason, note.thread))

    return record


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
