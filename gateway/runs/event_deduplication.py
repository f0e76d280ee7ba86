"""Which events a run's log already has, so that a gateway that takes the run over does not log them again."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent.events import Event
from gateway.storage.entities import LoggedEvent
from gateway.storage.run_queries import ONCE

_BY = {"step_started": "step", "step_finished": "step", "run_started": ""}


class EventDeduplication:
    """The events of one run's steps and calls after the state that it continues from."""

    def __init__(self, stored: Sequence[LoggedEvent] = ()) -> None:
        self._logged = {self._key(event.type, json.loads(event.payload)) for event in stored} - {None}

    def has(self, event: Event) -> bool:
        """Return whether the log has this event; never for a subagent, which starts anew."""
        return bool(self._logged) and self._key(event.type, event.payload) in self._logged

    def _key(self, type_: str, payload: object) -> tuple[str, object] | None:
        if type_ not in ONCE or not isinstance(payload, dict) or "within" in payload:
            return None
        return type_, payload.get(_BY.get(type_, "call_id"))
