"""What queries return: a thread, a run, and an event of a run's log."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thread:
    """A thread: `id` is the gateway's, `name` the tenant's."""

    id: str
    tenant: str
    name: str


@dataclass(frozen=True)
class Run:
    """A stored run; `thread` is the thread's name, `started_by` the credential as the audit shows it."""

    id: str
    tenant: str
    thread: str
    agent: str
    task: str
    policy_version: str
    status: str
    started_us: int
    finished_us: int | None = None
    stop_hook: str | None = None
    stop_rule: str | None = None
    stop_reason: str | None = None
    last_sequence: int = 0
    policy_mode: str = "pin"
    started_by: str = ""


@dataclass(frozen=True)
class LoggedEvent:
    """An event with its place in the run's log."""

    sequence: int
    type: str
    at_us: int
    payload: str
