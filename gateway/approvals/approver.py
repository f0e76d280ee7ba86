"""The Approver of a thread's calls: the approvals in the database, as one run or a service uses them.

A run's call is identified by its id, which it keeps while the run waits. A service with its own loop repeats its call
once it is approved, so that call is identified by its digest. The digest is what is approved: a call with other
arguments, or under another version of the policy, is another call and needs its own approval.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import structlog
import yaml
from pydantic import JsonValue

from agent.hooks.hook import Hook
from agent.state import AgentState, ToolExecution, VerdictKind
from agent.tool_call import JudgedCall
from agent.tools.approval import Denied, Granted, Pending
from gateway.errors import AirlockError
from gateway.policy.decision import Facts, Match
from gateway.policy.document import Rule
from gateway.policy.judge import Grants, Policy, compile_grants
from gateway.policy.narrow import narrow_rule, rule_as_yaml
from gateway.policy.recent import Recent
from gateway.redaction.redactor import NO_SECRETS, Redactor
from gateway.storage.approval_store import (
    APPROVED,
    CANCELLED,
    DENIED,
    EXPIRED,
    PENDING,
    USED,
    Approval,
    ApprovalStore,
    Asked,
    TooManyPending,
)
from gateway.storage.entities import Thread
from gateway.support.background import retried
from gateway.support.heavy_work import Work, at_once

APPROVAL = "approval"
"""The rule of a call that needs an approval which cannot be requested."""

# Longer arguments are not stored, and a call cannot be approved without showing its arguments.
_ARGUMENTS_LIMIT_CHARS = 1024 * 1024
# What the grants that were used last may take in memory, as rules and made ready for judging.
_RULES_LIMIT_BYTES = 32 * 1024 * 1024
_HELD_LIMIT_BYTES = 64 * 1024 * 1024
log = structlog.get_logger(__name__)


def call_digest(tenant: str, judged: JudgedCall, policy_version: str) -> str:
    """Return the SHA-256 of what is approved, in hex."""
    fields = json.dumps([tenant, judged.call.name, judged.canonical.decode(), policy_version])
    return hashlib.sha256(fields.encode()).hexdigest()


class _UsedBefore(Granted):
    """Granted by an approval that an earlier process used up for the same call, which did not begin."""


@dataclass(eq=False)
class ThreadApprover:
    """The Approver of one thread's calls, of one run or outside runs.

    `policy` returns the policy in force, which sets the approval's lifetime and the rule that it may grant.
    """

    store: ApprovalStore
    thread: Thread
    run_id: str | None
    policy: Callable[[], Policy]
    facts: Facts
    redactor: Redactor = NO_SECRETS

    async def edited(self, state: AgentState, call_ids: Sequence[str]) -> Mapping[str, dict[str, JsonValue]]:
        """Return the arguments that approvers gave to calls of this run."""
        del state
        if self.run_id is None:
            return {}
        edits: dict[str, dict[str, JsonValue]] = {}
        # The run no longer waits, so a failed read must not end it.
        read = partial(self.store.of_calls, self.run_id, call_ids)
        for approval in await retried(read, run_id=self.run_id, what="the answers to what it asked"):
            if approval.edited_arguments is not None:
                edits.setdefault(approval.call_id, json.loads(approval.edited_arguments))
        return edits

    async def answer(self, state: AgentState, execution: ToolExecution) -> Granted | Denied | Pending:
        """Return the answer; a call without an approval gets one now."""
        del state
        verdict = execution.verdict
        digest = call_digest(self.thread.tenant, execution.judged, verdict.policy_version if verdict else "")
        await self.store.expire(self.thread.tenant)
        if self.run_id is None:
            return await self._answer_service(execution, digest)
        return await self._answer_run(execution, digest, self.run_id)

    async def use(self, granted: Granted) -> str:
        """Use an approval up, unless an equal call was first."""
        if isinstance(granted, _UsedBefore) or await self.store.use(granted.approval_id):
            return ""
        return f"approval {granted.approval_id} was already used: it allowed one call"

    async def _answer_run(self, execution: ToolExecution, digest: str, run_id: str) -> Granted | Denied | Pending:
        found = await self.store.of_calls(run_id, [execution.call.id])
        if not found:
            return await self._ask(execution, digest)
        approval = found[0]
        if approval.status not in (DENIED, EXPIRED, USED) and _approved_digest(approval) != digest:
            # The policy has changed, or a hook changed the arguments: what was approved is another call.
            await self.store.cancel(approval.id)
            return await self._ask(execution, digest)
        if approval.status == CANCELLED:
            return await self._ask(execution, digest)
        edited = next((one.edited_arguments for one in found if one.edited_arguments is not None), None)
        # An earlier process used the approval up, but the journal knows of no call: it may run once, now.
        if approval.status == USED and execution.context.resumed and _approved_digest(approval) == digest:
            said = self._said(replace(approval, status=APPROVED), edited)
            return _UsedBefore(said.approval_id, said.note) if isinstance(said, Granted) else said
        return self._said(approval, edited)

    async def _answer_service(self, execution: ToolExecution, digest: str) -> Granted | Denied | Pending:
        approval = await self.store.of_digest(self.thread, digest)
        if approval is None or approval.status in (USED, EXPIRED, CANCELLED):
            return await self._ask(execution, digest)
        if approval.status in (APPROVED, DENIED) and approval.valid_until_us <= self.store.clock():
            await self.store.cancel(approval.id)
            return await self._ask(execution, digest)
        if approval.status == APPROVED and _approved_digest(approval) != digest:
            said = f"an approver changed the arguments; make the call with these, once: {approval.edited_arguments}"
            return Denied(said, approval.id)
        return self._said(approval, approval.edited_arguments)

    def _said(self, approval: Approval, edited: str | None) -> Granted | Denied | Pending:
        match approval.status:
            case "pending":
                return Pending(approval.id)
            case "approved":
                note = f"[an approver changed the arguments; what ran was {edited}]" if edited is not None else ""
                return Granted(approval.id, note)
            case "denied":
                said = f": {approval.message}" if approval.message else ""
                return Denied(
                    f"an approver denied the call{said} (asked because {approval.reason})", approval.id, outcome=DENIED
                )
            case "expired":
                waited_s = round((approval.expires_us - approval.created_us) / 1_000_000, 2)
                said = f"an approval was needed and not given within {waited_s:g} s ({approval.reason})"
                return Denied(said, approval.id, outcome=EXPIRED)
            case _:
                return Denied(f"approval {approval.id} was already used: it allowed one call", approval.id)

    async def _ask(self, execution: ToolExecution, digest: str) -> Pending | Denied:
        call, verdict = execution.call, execution.verdict
        arguments = call.arguments or {}
        text = execution.judged.canonical.decode()
        if len(text) > _ARGUMENTS_LIMIT_CHARS:
            return Denied(
                f"this call needs an approval, but its arguments have {len(text):,} characters; an approver can "
                f"judge at most {_ARGUMENTS_LIMIT_CHARS:,}",
                rule=APPROVAL,
            )
        words = (verdict.reason, *(verdict.policy.asked if verdict.policy else ())) if verdict else ("",)
        shown = await self.redactor.work_on(sum(map(len, words)), lambda: [*map(self.redactor.shown, words)])
        asked = Asked(
            call_id=call.id,
            tool=call.name,
            arguments=text,
            digest=digest,
            policy_version=verdict.policy_version if verdict else "",
            rule=verdict.rule if verdict else "",
            reason=shown[0],
            asked=tuple(shown[1:]),
            proposed_rule=await self.redactor.work(self._proposed, call.name, arguments),
            expires_us=self.store.clock() + int(self.policy().document.limits.approval_s * 1_000_000),
            arguments_digest=execution.judged.digest,
        )
        try:
            approval_id = await self.store.ask(self.thread, self.run_id, asked)
        except TooManyPending as many:
            said = f"an approval is needed and cannot be requested now: {many}. Try again when some are answered"
            return Denied(said, rule=APPROVAL)
        whose = {"tenant": self.thread.tenant, "thread": self.thread.name, "run_id": self.run_id}
        log.info("approval sought", approval_id=approval_id, call_id=call.id, tool=call.name, rule=asked.rule, **whose)
        return Pending(approval_id)

    def _proposed(self, tool: str, arguments: Mapping[str, JsonValue]) -> str | None:
        rule = narrow_rule(tool, arguments, self.policy().judge(tool, arguments, self.facts))
        return None if rule is None else rule_as_yaml(rule)


def _approved_digest(approval: Approval) -> str:
    """Return the digest of the call that an approval allows."""
    if approval.status == PENDING:
        return approval.digest
    return approval.edited_digest or approval.digest


class HeldGrants(NamedTuple):
    """The grants of a thread or a run, and the approval that made each, by the id of its rule."""

    grants: Grants
    approvals: Mapping[str, str]

    def approval_of(self, trace: Iterable[Match]) -> str:
        """Return the approval by whose grant a part of the call passed, the first; empty where none did."""
        return next((self.approvals[match.rule] for match in trace if match.rule in self.approvals), "")


# By the text: a grant is never changed, so each is parsed once, whatever else is granted or revoked.
_RULES: Recent[str, Sequence[Rule]] = Recent(_RULES_LIMIT_BYTES, lambda text, _: 8 * len(text) + 2_000)
_HELD: Recent[tuple[tuple[str, str], ...], HeldGrants] = Recent(
    _HELD_LIMIT_BYTES, lambda granted, _: sum(32 * len(text) + 4_000 for text, _ in granted)
)


def _parsed(text: str) -> Sequence[Rule]:
    # Through JSON, because the models are strict about Python types: a list is no tuple.
    return tuple(Rule.model_validate_json(json.dumps(rule)) for rule in yaml.safe_load(text))


def _compiled(found: Sequence[tuple[Sequence[Rule], str]]) -> HeldGrants:
    approvals: dict[str, str] = {}
    for rules, approval_id in found:
        for rule in rules:
            approvals.setdefault(rule.id, approval_id)
    return HeldGrants(compile_grants(rule for rules, _ in found for rule in rules), approvals)


async def load_grants(store: ApprovalStore, thread: Thread, run_id: str | None, work: Work = at_once) -> HeldGrants:
    """Return the grants in force of a thread and of this run of it.

    `work` parses a grant that is new, which takes some 20 microseconds a character, each in a turn of its own.
    """
    granted = tuple(await store.granted_rules(thread, run_id))
    held = _HELD.find(granted)
    if held is None:
        found: list[tuple[Sequence[Rule], str]] = []
        for text, approval_id in granted:
            rules = _RULES.find(text)
            if rules is None:
                rules = await work(_RULES.get, text, partial(_parsed, text))
            found.append((rules, approval_id))
        held = await work(_HELD.get, granted, partial(_compiled, found))
    return held


@dataclass(eq=False)
class GrantHook(Hook):
    """Uses up the approval that made a grant, once its own call has run.

    A call that passes by a grant carries the id of the approval that granted it. That approval was for one call in the
    first place; when that call has run, the approval is used, and the grant remains.
    """

    name = "grants"
    mandatory = True

    store: ApprovalStore
    thread: Thread
    run_id: str | None

    async def after_tool_use(self, state: AgentState) -> AgentState:
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
