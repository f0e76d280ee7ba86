"""Grants as a thread's calls use them: read when the policy asks, and their approvals used up.

A call that passes by a grant carries the id of the approval that granted it. That approval was for one call in the
first place; when that call has run, the approval is used, and the grant remains.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import structlog
import yaml

from agent.hooks.hook import Hook
from agent.state import AgentState, VerdictKind
from agent.tool_call import JudgedCall
from gateway.approvals.approver import call_digest
from gateway.errors import AirlockError
from gateway.policy.document import Rule
from gateway.policy.hook import HeldGrants
from gateway.policy.judge import compile_grants
from gateway.storage.approval_store import Approval, ApprovalStore
from gateway.storage.approval_writes import APPROVED
from gateway.storage.entities import Thread

log = structlog.get_logger(__name__)


@lru_cache(256)
def _compiled(granted: tuple[tuple[str, str], ...]) -> HeldGrants:
    found: list[Rule] = []
    approvals: dict[str, str] = {}
    for text, approval_id in granted:
        # Through JSON, because the models are strict about Python types: a list is no tuple.
        for rule in (Rule.model_validate_json(json.dumps(rule)) for rule in yaml.safe_load(text)):
            found.append(rule)
            approvals.setdefault(rule.id, approval_id)
    return HeldGrants(compile_grants(found), approvals)


async def load_grants(store: ApprovalStore, thread: Thread, run_id: str | None) -> HeldGrants:
    """Return the grants in force of a thread and of this run of it."""
    granted: Sequence[tuple[str, str]] = await store.grants.rules(thread, run_id)
    return _compiled(tuple(granted))


@dataclass(eq=False)
class GrantHook(Hook):
    """Uses up the approval that made a grant, once its own call has run."""

    name = "grants"
    mandatory = True

    store: ApprovalStore
    thread: Thread
    run_id: str | None

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Check whether the call passed by a grant."""
        tool = state.current.tool
        if tool.approval_id and tool.verdict is not None and tool.verdict.kind is VerdictKind.PROCEED:
            try:
                await self._ran(tool.approval_id, tool.judged)
            except AirlockError as error:  # the call is done, and its result must not be lost
                log.warning("an approval is not marked as used", approval_id=tool.approval_id, error=str(error))
        return state

    async def _ran(self, approval_id: str, judged: JudgedCall) -> None:
        approval = await self.store.get(self.thread.tenant, approval_id)
        if approval is not None and approval.status == APPROVED and self._is_of(approval, judged):
            await self.store.use(approval_id)

    def _is_of(self, approval: Approval, judged: JudgedCall) -> bool:
        """Return whether a call is the approved one, or the same call repeated by a service."""
        if approval.run_id is not None:
            return (approval.run_id, approval.call_id) == (self.run_id, judged.call.id)
        return self.run_id is None and approval.digest == call_digest(
            self.thread.tenant, judged, approval.policy_version
        )
