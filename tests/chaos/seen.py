"""What a run has to come to, for what it did not come to it has not tested."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.transition import UNUSED
from tests.chaos.killer import KINDS
from tests.chaos.thread_load import Report
from tests.gateway_process import Home

_SERVED = (
    *("write_file", "read_file", "execute", "start_process", "processes", "remove_process"),
    *("create_sandbox", "get_sandbox", "stop_sandbox", "resume_sandbox", "delete_sandbox"),
    *("create_snapshot", "restore_snapshot", "fork_thread"),
)
_OUTCOMES = ("execute: exited", "execute: interrupted", "execute: daemon_lost", "execute: UNAVAILABLE")
_OF_TWO_GATEWAYS = ("execute: IN_PROGRESS",)
_TRANSITIONS = {
    "sandbox stopped for being idle": ("idle_stopped", f"{UNUSED}%"),
    "sandbox that could not be started again": ("removed", "%No such container%"),
}


def not_seen(report: Report, homes: Sequence[Home]) -> list[str]:
    """Return what was not seen of what each run is for: calls, ways in which they end, deaths, ends of sandboxes."""
    wanted = [*(f"{call}: ok" for call in _SERVED), *_OUTCOMES, *(f"killed: {kind}" for kind in KINDS)]
    if len(homes) > 1:
        wanted += _OF_TWO_GATEWAYS
    missing = [what for what in wanted if not report.counts[what]]
    for what, (state, reason) in _TRANSITIONS.items():
        reported = f"SELECT 1 FROM sandbox_transitions WHERE state = '{state}' AND reason LIKE '{reason}' LIMIT 1"
        missing += [] if homes[0].rows(reported) else [what]
    return missing
