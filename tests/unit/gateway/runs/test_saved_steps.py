"""SavedSteps: when files are kept, that the step is kept first, and that what goes wrong costs the run nothing."""

from __future__ import annotations

import pytest

from agent.events import Event
from agent.messages import Message
from agent.state import AgentState
from gateway.config.model_settings import ModelSettings
from gateway.errors import NoSpace
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.runs.checkpoints import SavedSteps
from gateway.storage.entities import Thread
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import Snapshot
from gateway.tenancy.tenants import Tenant
from sandbox.errors import SandboxBusy

THREAD = Thread("thr_1", "acme", "t")
SAID = Message(role="assistant", content="yes")
TOOL = Message(role="tool", tool_call_id="c", content="done")
COUNTS = dict.fromkeys(("messages", "files", "size_bytes", "stored_bytes", "skipped", "stripped"), 1)


class Harness:
    """Steps, a keeper of files, and what both received, in order."""

    def __init__(self, when: str, *, taken_up: bool = False, refused: Exception | None = None) -> None:
        document = PolicyDocument.model_validate({"version": 1, "sandbox": {"snapshots": when}})
        tenant = Tenant("acme", Policy(document), ModelSettings(), {})
        self.refused = refused
        self.reported: list[object] = []
        self.steps = SavedSteps(self, self.files, tenant, "run_1", self.event, taken_up=taken_up)

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        self.reported.append(("step", state.steps))

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        self.reported.append(("last", state.steps))

    async def files(self, tenant: Tenant, run_id: str, number: int, step: KeptStep, kind: str) -> Snapshot:
        if self.refused is not None:
            raise self.refused
        self.reported.append((kind, number))
        words = dict.fromkeys(("tenant", "thread", "created_by", "comment"), "x")
        return Snapshot(id="snap_1", created_us=1, run_id=run_id, **words, **COUNTS)

    def event(self, event: Event) -> None:
        self.reported.append(event.type)

    async def run(self, *steps: Message) -> list[object]:
        """Take steps that end with these messages, the last one with the run's end; return what was received."""
        for number, said in enumerate(steps, 1):
            state = AgentState(run_id="run_1", thread="t", steps=number)
            keep = self.steps.keep_last if number == len(steps) else self.steps.keep
            await keep(KeptStep(THREAD, 0, (said,)), state)
        return self.reported


async def test_files_are_kept_after_each_step_that_called_tools_and_before_the_runs_end() -> None:
    assert await Harness("step").run(TOOL, SAID, TOOL) == [
        *(("step", 1), ("step", 1), "workspace_saved"),
        ("step", 2),
        *(("step", 3), "workspace_saved", ("last", 3)),
    ]


async def test_files_are_kept_at_the_end_of_a_run_that_called_tools_and_of_one_that_may_have_elsewhere() -> None:
    assert await Harness("run").run(TOOL, SAID) == [("step", 1), ("run", 2), "workspace_saved", ("last", 2)]
    assert await Harness("run").run(SAID, SAID) == [("step", 1), ("last", 2)]
    assert await Harness("run", taken_up=True).run(SAID) == [("run", 1), "workspace_saved", ("last", 1)]
    assert await Harness("asked").run(TOOL, TOOL) == [("step", 1), ("last", 2)]


@pytest.mark.parametrize("refused", [NoSpace("full"), SandboxBusy("busy"), LookupError("a fault")])
async def test_what_cannot_be_kept_is_reported_once_and_the_run_goes_on(refused: Exception) -> None:
    harness = Harness("step", refused=refused)
    assert await harness.run(TOOL, TOOL, SAID) == [("step", 1), "workspace_not_saved", ("step", 2), ("last", 3)]


async def test_a_step_whose_calls_have_not_run_yet_is_none() -> None:
    harness = Harness("step")
    await harness.steps.keep(KeptStep(THREAD, 0, (TOOL,)), AgentState(run_id="run_1", thread="t", steps=1, pending={}))
    assert harness.reported == [("step", 1)]
