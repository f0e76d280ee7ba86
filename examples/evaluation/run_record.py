"""What a run did, collected from its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.printable import stop_line


@dataclass(frozen=True)
class CallRecord:
    """A tool call that has ended. `rule` is the policy rule that decided it, `shown` what the model got."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    verdict: str
    rule: str
    shown: str

    def met(self, rule: str) -> bool:
        """Return whether the rule refused the call, or something that the call's programs did."""
        return (self.verdict == "deny" and self.rule == rule) or f"rule {rule}" in self.shown


@dataclass(frozen=True)
class Answered:
    """What the model said in a step, and the ids of the calls that it asked for."""

    text: str
    call_ids: tuple[str, ...]


@dataclass
class RunRecord:
    """What a run did. Feed it every event; `status` is empty until the run has finished."""

    status: str = ""
    stop: Mapping[str, Any] = field(default_factory=dict)
    answer: str = ""
    steps: int = 0
    seconds: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    answers: list[Answered] = field(default_factory=list)
    _arguments: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Add one event."""
        match event_type:
            case "model_finished":
                asked = payload.get("tool_calls") or ()
                self.answers.append(Answered(str(payload.get("text") or ""), tuple(str(call["id"]) for call in asked)))
                self._arguments |= {str(call["id"]): call.get("arguments") or {} for call in asked}
            case "tool_call_finished":
                self._add_call(payload)
            case "run_finished":
                self.status, self.stop = str(payload.get("status")), payload.get("stop") or {}
                self.answer, self.steps = str(payload.get("answer") or ""), int(payload.get("steps") or 0)
                self.usage = payload.get("usage") or {}
            case _:
                pass

    def _add_call(self, payload: Mapping[str, Any]) -> None:
        id_ = str(payload.get("call_id"))
        parts = [str(payload.get(part) or "") for part in ("content", "note")]
        reason = str(payload.get("reason") or "") if payload.get("verdict") == "deny" else ""
        self.calls[id_] = CallRecord(
            id_,
            str(payload.get("name")),
            self._arguments.get(id_, {}),
            str(payload.get("verdict")),
            str(payload.get("rule")),
            "\n".join(filter(None, [*parts, reason])),
        )

    def refusals_by(self, rule: str) -> int:
        """Return how many calls the rule refused."""
        return sum(call.met(rule) for call in self.calls.values())

    def unfinished(self) -> str:
        """Return why the run did not complete, "" if it did."""
        return "" if self.status == "completed" else f"the run's status is {self.status}: {stop_line(self.stop)}"
