"""Disturbances of the API on demand: errors, delays, resets, and watches that are slow, dropped or too old."""

from __future__ import annotations

from dataclasses import dataclass

from tests.kubernetes.access import Use
from tests.kubernetes.statuses import ApiError


@dataclass
class Fault:
    """What happens to the next requests that match; an empty text matches all.

    For example `Fault(verb="list", resource="pods", error=too_many_requests(1))`, or
    `Fault(verb="watch", drop_after_events=3)`.
    """

    verb: str = ""
    resource: str = ""
    name: str = ""
    times: int = 1
    """How many requests it still happens to."""
    error: ApiError | None = None
    after: bool = False
    """Whether the error or the reset comes once the request is done: the caller cannot know that it was."""
    reset: bool = False
    """End the connection with RST."""
    delay_s: float = 0
    event_delay_s: float = 0
    """Of a watch: the time before each event."""
    drop_after_events: int | None = None
    """Of a watch: end the connection after some events."""
    expire_after_events: int | None = None
    """Of a watch: 410 Gone after some events."""

    def matches(self, use: Use) -> bool:
        wanted = ((self.verb, use.verb), (self.resource, use.resource), (self.name, use.name))
        return self.times > 0 and all(not mine or mine == theirs for mine, theirs in wanted)


NO_FAULT = Fault(times=0)


class Faults:
    """The disturbances to come."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, *faults: Fault) -> None:
        self._waiting.extend(faults)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, use: Use) -> Fault:
        """Return the first fault that matches a request, or one that does nothing."""
        for fault in self._waiting:
            if fault.matches(use):
                fault.times -= 1
                return fault
        return NO_FAULT
