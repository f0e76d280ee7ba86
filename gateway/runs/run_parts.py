"""RunParts: what a gateway hosts runs with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.agents.models import Models
from gateway.runs.saved_steps import KeepFiles
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.store import Store
from gateway.support.clock import MakeId, make_id
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.tool_calls import ToolCalls

OnStop = Literal["hand_over", "cancel"]
EndCalls = Callable[[str, str], Awaitable[bool]]
"""Ends every call in the sandbox of a tenant's thread; returns whether there was one."""


@dataclass(frozen=True)
class RunParts:
    """The parts that hosting runs needs.

    `on_stop` is what happens to live runs when the gateway stops. `models` are those of some tenants, by tenant name.
    `end_calls` ends the calls that a lost gateway left in a thread's sandbox. `lease_over` returns whether this gateway
    has lost its own lease. `keep_files` takes a snapshot after a step, if the policy asks for it.
    """

    store: Store
    tool_calls: ToolCalls
    waiting: WaitingRuns
    quotas: Quotas
    on_stop: OnStop
    ids: MakeId = make_id
    telemetry: Telemetry = field(default_factory=Telemetry.off)
    models: Mapping[str, Models] = field(default_factory=dict)
    end_calls: EndCalls | None = None
    lease_over: Callable[[], bool] = lambda: False
    keep_files: KeepFiles | None = None
