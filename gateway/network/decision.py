"""What the policy says of a connection, and the approval that it may need.

A connection is a call of the tool `connect`, which no model sees: judged by the same rules, asked about in the same
queue, granted in the same way. While an approver is asked, the connection waits.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agent.events import EventSink, discard
from gateway.approvals.approver import load_grants
from gateway.credentials.caller import actor
from gateway.network.http_request import Refused, refusal
from gateway.policy.decision import Decision, Facts
from gateway.policy.fields import CONNECT
from gateway.policy.judge import Policy
from gateway.policy.narrow import narrow_rule, rule_as_yaml
from gateway.redaction import Redactor
from gateway.storage.approval_store import APPROVED, DENIED, PENDING, Approval, ApprovalStore, Asked, TooManyPending
from gateway.storage.entities import Thread
from gateway.support.heavy_work import Work, at_once
from gateway.support.hosts import shown_endpoint

_POLL_S = 0.3
_COMMAND_CHARS = 500


@dataclass(frozen=True)
class CallUnderWay:
    """The tool call that runs while a connection is made; its ids, agent and command are "" where none runs.

    The gateway does not know which program of a sandbox connects: of several calls, this is the one that began last.
    `events` takes the events of the call's run.
    """

    call_id: str = ""
    run_id: str = ""
    agent: str = ""
    tool: str = "execute"
    command: str = ""
    events: EventSink = field(default=discard, compare=False, repr=False)
    actor: str = field(default_factory=actor)


@dataclass(frozen=True)
class Target:
    """What a connection is for. `method` and `paths` are those of an HTTP request, "" and () for a raw connection.

    `paths` are all the ways to read the path: each must be allowed.
    """

    host: str
    port: int
    method: str = ""
    paths: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return shown_endpoint(self.host, self.port)

    def arguments(self) -> list[dict[str, object]]:
        """Return the arguments of the call that is judged, one for each way to read the path."""
        here: dict[str, object] = {"host": self.host, "port": self.port}
        return [here | {"method": self.method, "path": path} for path in self.paths] or [here]


def denied(target: Target, rule: str, reason: str, *, advice: str = "") -> Refused:
    """Return the refusal by a rule."""
    advice = advice or (
        f'ask the operator for a rule such as {{id: allow-{target.host}, tools: [connect], hosts: ["{target.shown}"], '
        "effect: allow, reason: ...} in the policy"
    )
    return refusal(403, "policy_denied", reason, target, rule=rule, how_to_allow=advice)


@dataclass(frozen=True, eq=False)
class ConnectionPolicy:
    """Decides on the connections of one thread. `policy` returns the version in force; `work` parses grants."""

    thread: Thread
    policy: Callable[[], Policy]
    approvals: ApprovalStore
    work: Work = at_once
    waiting: list[Target] = field(default_factory=list)

    @property
    def redactor(self) -> Redactor:
        """What takes secrets out of what is stored: a path may have some, and so may a command."""
        return Redactor(self.policy().document.redaction)

    def facts(self, call: CallUnderWay) -> Facts:
        return Facts(tenant=self.thread.tenant, thread=self.thread.name, run_id=call.run_id, agent=call.agent)

    def judge(self, target: Target, call: CallUnderWay, grants: Any = None) -> Decision:
        """Return the strictest decision over all ways to read the target."""
        policy = self.policy()
        facts = self.facts(call)
        found = [policy.judge(CONNECT, arguments, facts, grants) for arguments in target.arguments()]
        return max(found, key=lambda decision: ("allow", "ask", "deny").index(decision.verdict))

    async def decided(self, target: Target, call: CallUnderWay, *, asked: bool = False) -> Decision:
        """Return the decision that allows a connection, once an approver has if one is to be asked. Raises Refused."""
        decision = self.judge(target, call)
        if decision.verdict == "ask" and asked:
            return replace(decision, verdict="allow")
        if decision.verdict == "ask":
            grants = (await load_grants(self.approvals, self.thread, call.run_id or None, self.work)).grants
            decision = self.judge(target, call, grants)
        if decision.verdict == "ask":
            answered = await self._asked(target, call, decision)
            now = self.judge(target, call)  # by the policy in force: it may have changed meanwhile
            decision = now if now.verdict == "deny" else answered
        if decision.verdict == "deny":
            raise denied(target, decision.rule, decision.reason)
        return decision

    async def _asked(self, target: Target, call: CallUnderWay, decision: Decision) -> Decision:
        limits = self.policy().document.network
        async with self._place(target, limits.waiting, decision):
            deadline_s = asyncio.get_running_loop().time() + limits.wait_s
            while asyncio.get_running_loop().time() < deadline_s:
                if (now := self.judge(target, call)).verdict != "ask":
                    return now  # the policy has changed
                approval = await self._approval(target, call, decision, limits.wait_s)
                if approval.status == DENIED:
                    said = f": {approval.message}" if approval.message else ""
                    raise denied(target, decision.rule, f"an approver denied the connection{said}")
                if approval.status == APPROVED and approval.edited_arguments is not None:
                    raise denied(target, decision.rule, "an approver changed the host, which a connection cannot do")
                granted = approval.status == APPROVED and approval.answer != "allow_once"
                if granted or (approval.status == APPROVED and await self.approvals.use(approval.id)):
                    return replace(decision, verdict="allow")
                await asyncio.sleep(_POLL_S)
        raise denied(
            target,
            decision.rule,
            f"it needs an approval, and none was given within {limits.wait_s:g} s ({decision.reason})",
            advice="have it approved (`airlock approvals list`) and connect again",
        )

    @asynccontextmanager
    async def _place(self, target: Target, limit: int, decision: Decision) -> AsyncIterator[None]:
        if len(self.waiting) >= limit:
            reason = (
                f"{limit} connections of this thread already wait for an approval; try again when some are answered"
            )
            raise denied(target, decision.rule, reason, advice="have one of them approved first")
        self.waiting.append(target)
        try:
            yield
        finally:
            self.waiting.remove(target)

    async def _approval(self, target: Target, call: CallUnderWay, decision: Decision, wait_s: float) -> Approval:
        """Return the newest approval of this connection that counts, asked for now if there is none."""
        redactor = self.redactor
        arguments = self._shown_arguments(target, call, redactor)
        said = [self.thread.tenant, CONNECT, target.host, target.port, target.method, target.paths]
        digest = hashlib.sha256(json.dumps([*said, decision.policy_version]).encode()).hexdigest()
        call_id, run_id = f"net_{digest[:24]}", call.run_id or None
        await self.approvals.expire(self.thread.tenant)
        if run_id is None:
            found = await self.approvals.of_digest(self.thread, digest)
        else:
            found = next(iter(await self.approvals.of_calls(run_id, [call_id])), None)
        if found is not None and self._counts(found):
            return found
        asked = Asked(
            call_id=call_id,
            tool=CONNECT,
            arguments=json.dumps(arguments),
            digest=digest,
            policy_version=decision.policy_version,
            rule=decision.rule,
            reason=redactor.shown(decision.reason),
            asked=tuple(map(redactor.shown, decision.asked)),
            # A rule with a redacted path would match nothing.
            proposed_rule=self._proposed(target, decision) if arguments.get("path") in (None, *target.paths) else None,
            expires_us=self.approvals.clock() + int(wait_s * 1_000_000),
        )
        try:
            approval_id = await self.approvals.ask(self.thread, run_id, asked)
        except TooManyPending as many:
            reason = f"an approval is needed and cannot be requested now: {many}"
            raise denied(target, decision.rule, reason, advice="have pending approvals answered first") from many
        found = await self.approvals.get(self.thread.tenant, approval_id)
        if found is None:
            raise denied(target, decision.rule, "the thread is being deleted")
        return found

    def _counts(self, approval: Approval) -> bool:
        """Return whether an approval still answers: a pending one, or an answer no older than it could have waited."""
        if approval.status == PENDING:
            return True
        return approval.status in (APPROVED, DENIED) and approval.valid_until_us > self.approvals.clock()

    def _proposed(self, target: Target, decision: Decision) -> str | None:
        rule = narrow_rule(CONNECT, target.arguments()[0], decision)
        return None if rule is None else rule_as_yaml(rule)

    def _shown_arguments(self, target: Target, call: CallUnderWay, redactor: Redactor) -> Mapping[str, object]:
        request = {"method": target.method, "path": redactor.shown(target.paths[0])} if target.paths else {}
        command = {"command": redactor.shown(call.command)[:_COMMAND_CHARS]} if call.command else {}
        return {"host": target.host, "port": target.port, **request, **command}
