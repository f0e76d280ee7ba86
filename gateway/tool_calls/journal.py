"""The journal hook writes a tool call before it executes, and its outcome before anyone sees the result.

The audit record is written in one transaction with the outcome. If the database fails before the call, the call does
not execute: its outcome is not_executed, and its request id stays free. If it fails after the call, the result is
withheld. In both cases the record is written as soon as the database accepts it.

A call that only reads may be made again after a crash, so it is written once, with its outcome, before anyone sees the
result. That is so while the thread's sandbox is at hand: a call that is written keeps its thread from being deleted
while a sandbox is made. And no outcome may wait for the database, or they would pile up.

The hook is the innermost ring and the first of the after hooks, but for the gate of redaction. A blocked call is
written once, when it is over; so is a service's call that waits for an approval. A run's waiting call is written when
it continues. The row of a run's call has its result until the step is kept, so that a gateway that takes the run over
does not make the call again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, PolicyWord, ToolExecution, Verdict, VerdictKind
from agent.tool_call import Slot
from agent.tools.approval import blocked_result
from agent.tools.recovery import INTERRUPTED, EarlierCall
from gateway.audit.call_audit import call_entry, shown_name
from gateway.errors import Unavailable
from gateway.policy.decision import DEFAULT_DENY, INVALID_ARGUMENTS, OPAQUE
from gateway.redaction import Redactor
from gateway.redaction.redactor import NO_SECRETS, WITHHELD
from gateway.storage.audit_store import AuditEntry
from gateway.storage.call_journal import CallErased, is_of_deletion, is_of_request_id
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import Thread
from gateway.storage.run_writes import Claim, LeaseLost
from gateway.storage.store import Store
from gateway.support.background import retried
from gateway.support.clock import now_us
from gateway.tool_calls.outcome_retry_queue import NOT_EXECUTED, UNRECORDED, OutcomeRetryQueue, UnrecordedCall
from gateway.tool_calls.policy_hook import PolicyHook
from gateway.tool_calls.quota_hook import QUOTA, REFUSED
from gateway.tool_calls.service_executor import EXECUTOR
from gateway.tool_calls.shown_arguments import shown_arguments
from gateway.tool_calls.tool_request import REQUEST, StoredResult, ToolRequest
from sandbox.sandbox import Sandbox

# Longer results are not kept: after a crash the model reads that the call ended and its result is lost.
_CONTENT_LIMIT_BYTES = 1024 * 1024
_KINDS = {"allow": VerdictKind.PROCEED, "ask": VerdictKind.ASK, "deny": VerdictKind.BLOCK}
# Innermost: below every priority that a capability may have, so that its ring wraps nothing but the executor.
INNERMOST_PRIORITY = -1_000_000
# The length of the column: a hook chooses the names of its rules.
_RULE_LIMIT_CHARS = 128
_LOGGED = ("tenant", "run_id", "verdict", "rule", "outcome", "exit_code")
_REASON_LIMIT_CHARS = 200
# The reasons of these rules quote the call's arguments.
_QUOTES_ARGUMENTS = (DEFAULT_DENY, OPAQUE, INVALID_ARGUMENTS)
_DELETED = (
    "its thread was being deleted or restored; make the call again. If a restore was interrupted, restore the "
    "snapshot again first"
)
log = structlog.get_logger(__name__)


@dataclass
class _Begun:
    """The row of a call, as it was `written` before it executed. It is made once: finding secrets takes time."""

    row: dict[str, Any]
    started_s: float | None
    written: bool


@dataclass(frozen=True)
class _Record:
    """What is to be written of a call that is over; `write_later` does not claim its request id."""

    write: Callable[[], Awaitable[None]]
    write_later: Callable[[], Awaitable[None]]
    audited: list[AuditEntry]
    row: dict[str, Any]
    executed: bool


_BEGUN = Slot[_Begun]("journaled as executing")


@dataclass(eq=False)
class JournalHook(Hook):
    """Journals every tool call of one thread; stored arguments are redacted.

    `policy_version` returns the version in force, `late` retries what the database does not accept. `at_hand` returns
    the thread's sandbox if this process has it. `claim` is that of the gateway that hosts the run; calls that belong to
    no run have none.
    """

    name = "journal"
    priority = INNERMOST_PRIORITY
    mandatory = True

    store: Store
    thread: Thread
    policy_version: Callable[[], str]
    redactor: Redactor = NO_SECRETS
    late: OutcomeRetryQueue = field(default_factory=OutcomeRetryQueue)
    at_hand: Callable[[], Sandbox | None] = lambda: None

    claim: Claim | None = field(init=False, default=None)
    abandoned: bool = field(init=False, default=False)
    _lease_over: Callable[[], bool] | None = field(init=False, default=None)

    def host(self, claim: Claim, lease_over: Callable[[], bool]) -> None:
        """Write for a run under its claim, with the calls' results until their step is kept.

        No call begins once `lease_over` returns True: a process that was stopped finds out last that its lease expired.
        """
        self.claim, self._lease_over = claim, lease_over

    def abandon(self) -> None:
        """Begin no further call and write nothing more: the run continues on another gateway from what is stored."""
        self.abandoned = True

    def _check_hosted(self, run_id: str | None) -> None:
        """Raise LeaseLost if another process hosts the run by now."""
        if self.abandoned or (self._lease_over is not None and self._lease_over()):
            raise LeaseLost(run_id)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the outcomes of these calls in an earlier process; calls that may be made again are left out."""
        if self.claim is None:
            return {}
        # The run is claimed: a failed read must not end it.
        read = partial(self.store.take_over_calls, self.claim, [call.id for call in calls])
        rows = await retried(read, run_id=self.claim.run_id, what="its earlier calls")
        again = {
            id_ for id_, row in rows.items() if row["read_only"] and row["state"] != "blocked" and row["result"] is None
        }
        return {id_: earlier_call(row) for id_, row in rows.items() if id_ not in again}

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        context, arguments = tool.context, await shown_arguments(self.redactor, tool.judged)
        self._check_hosted(context.run_id)
        row = self._row(tool, self.policy_version(), arguments) | {"started_us": self.store.clock()}
        once = tool.judged.read_only and self.at_hand() is not None and not self.late
        context.set(_BEGUN, _Begun(row, context.clock(), written=not once))
        context.pop(UNRECORDED)  # a ring may repeat a call that did not execute
        if not once:
            unwritten = await self._begin(tool, row)
            if unwritten is not None:
                return unwritten
            self._check_hosted(context.run_id)  # lost meanwhile: the gateway that takes over records it as interrupted
        with structlog.contextvars.bound_contextvars(call_id=tool.judged.call.id):
            return await next_(tool)

    async def _begin(self, tool: ToolExecution, row: Mapping[str, Any]) -> ToolResult | None:
        """Write that a call executes; return the result of one that must not, because it cannot be written."""
        request = tool.context.get(REQUEST)
        asked = {} if request is None else request.columns()
        try:
            await self.store.write_tool_call({**row, "state": "executing", **asked}, claim=self.claim)
        except ConstraintViolated as error:
            if is_of_deletion(error):
                return _not_begun(tool, _DELETED, erased=True)
            if request is None or not is_of_request_id(error):
                raise
            request.taken = True  # another gateway executes the same request
            raise request.in_progress() from None
        except Unavailable as error:
            return _not_begun(tool, str(error))
        return None

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Write the outcome, of cancelled calls too."""
        tool = state.current.tool
        request, unexecuted = tool.context.get(REQUEST), tool.context.get(UNRECORDED)
        if (request is not None and request.taken) or self.abandoned or tool.recalled:
            return state  # its row belongs to another call, to the gateway that takes over, or to an earlier process
        policy = tool.verdict.policy if tool.verdict else None
        version = policy.version if policy else self.policy_version()
        ended = _ended(tool, version)
        record, of_run = None, not state.depth
        try:
            arguments = "" if tool.context.get(_BEGUN) else await shown_arguments(self.redactor, tool.judged)
            record = self._record(tool, ended, arguments, of_run=of_run)
            log.info("tool call", **self._facts(record.row), **_why(tool))
            await record.write()
        except (Unavailable, asyncio.CancelledError) as error:
            # Cancelled by the hook's time limit: the write may still succeed, and a second one changes nothing.
            record = record or self._record(tool, ended, WITHHELD, of_run=of_run)
            self._write_later(tool, record, str(error))
            if unexecuted is not None and isinstance(error, Unavailable):
                return state  # the caller reads that it did not execute
            raise
        except CallErased:
            tool.context.set(UNRECORDED, UnrecordedCall(tool.call.id, executed=True, erased=True))
            raise
        except ConstraintViolated as error:
            if not is_of_deletion(error):
                raise
            executed = record is not None and record.executed
            gone = UnrecordedCall(tool.call.id, executed, _DELETED, erased=True)
            tool.context.set(UNRECORDED, unexecuted or gone)
            if executed:
                raise
        return state

    def _record(self, tool: ToolExecution, ended: dict[str, Any], arguments: str, *, of_run: bool) -> _Record:
        """Return the record of a call that is over; `arguments` are of one that did not begin.

        `of_run`: with its result, as long as the run has a claim.
        """
        context, claim, store = tool.context, self.claim, self.store
        request, begun, unexecuted = context.get(REQUEST), context.get(_BEGUN), context.get(UNRECORDED)
        row = {**(begun.row if begun else self._row(tool, "", arguments)), "policy_version": ended["policy_version"]}
        started_s = begun.started_s if begun is not None else None
        duration_us = 0 if started_s is None else round((context.clock() - started_s) * 1_000_000)
        if started_s is not None and request is not None:
            ended["result"] = request.keep(tool)
        if (started_s is not None or unexecuted is not None) and claim is not None and of_run:
            # Redacted already: the gate of gateway/redaction/hooks.py is inside this hook.
            ended["result"] = result_json(tool.result, duration_us / 1_000_000) if tool.result else None
        executor = context.get(EXECUTOR)
        entry = call_entry(self.thread, tool, row, ended, duration_us=duration_us)
        if executor is not None:
            entry = executor.audited(entry)
        if unexecuted is not None:
            entry = replace(entry, details={**entry.details, "error": unexecuted.cause()})
        audited, whole = [entry], {**row, **ended}
        if unexecuted is not None:
            write = partial(store.write_unexecuted_call, whole, claim=claim, audited=audited)
        elif started_s is not None and begun is not None and begun.written:
            write = partial(store.finish_tool_call, tool.call.id, ended, claim=claim, audited=audited)
        else:
            write = partial(store.write_tool_call, whole, claim=claim, audited=audited)
            if request is not None and (started_s is not None or _is_remembered(tool)):
                kept = {**whole, **request.columns(), "result": whole.get("result") or request.keep(tool)}
                whole["result"] = None  # of a call without the request id
                claiming = partial(self._write_claiming, request, kept, whole, audited)
                return _Record(claiming, write, audited, whole, executed=started_s is not None)
        return _Record(write, write, audited, whole, executed=started_s is not None)

    async def _write_claiming(
        self, request: ToolRequest, kept: dict[str, Any], row: dict[str, Any], audited: list[AuditEntry]
    ) -> None:
        """Write a call that is over with its request id, without it where another call has the id."""
        try:
            await self.store.write_tool_call(kept, audited=audited)
        except ConstraintViolated as error:
            if not is_of_request_id(error):
                raise
            request.taken = True
            await self.store.write_tool_call(row, audited=audited)

    def _write_later(self, tool: ToolExecution, record: _Record, said: str) -> None:
        record.audited[0] = replace(record.audited[0], at_us=now_us())
        request, unrecorded = tool.context.get(REQUEST), UnrecordedCall(tool.call.id, record.executed, said)
        tool.context.set(UNRECORDED, tool.context.get(UNRECORDED) or unrecorded)
        # Attempts that do not execute count once in the audit.
        tenant, attempt = self.thread.tenant, None if record.executed else request
        once_for = (tenant, attempt.id, attempt.digest, record.row["state"]) if attempt else None
        self.late.add(unrecorded, record.write_later, tenant=tenant, once_for=once_for)

    def _facts(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return which call it was and how it ended, for the log; never its arguments."""
        facts = {"call_id": row["id"], "tool": row["name"], "thread": self.thread.name}
        approved = {"approval_id": row["approval_id"]} if row["approval_id"] else {}
        return facts | {name: row[name] for name in _LOGGED} | {"policy": row["policy_version"]} | approved

    def _row(self, tool: ToolExecution, version: str, arguments: str) -> dict[str, Any]:
        judged = tool.judged
        return {
            "id": judged.call.id,
            "tenant": self.thread.tenant,
            "thread_id": self.thread.id,
            "run_id": tool.context.run_id or None,
            "name": shown_name(judged.call.name[:128], self.redactor)[:128],
            "arguments": arguments,
            "arguments_digest": judged.digest,
            "policy_version": version,
            **({} if self.claim is None else {"read_only": judged.read_only}),
        }


def _is_remembered(tool: ToolExecution) -> bool:
    """Return whether a call that did not execute is remembered for its request id; otherwise it may be made again."""
    cancelled = tool.result is None or tool.result.outcome == "cancelled"
    return not cancelled and not tool.waiting and tool.context.get(REFUSED) is None


def _why(tool: ToolExecution) -> dict[str, str]:
    """Return the reason of a verdict, for the log, unless it quotes the arguments."""
    verdict = tool.verdict
    policy = verdict.policy if verdict is not None else None
    if verdict is None or policy is None:
        return {}
    why = {}
    if verdict.hook == PolicyHook.name and verdict.rule not in _QUOTES_ARGUMENTS:
        why["reason"] = verdict.reason[:_REASON_LIMIT_CHARS]
        if verdict.rule == QUOTA:
            why["quota"] = verdict.reason.partition(":")[0]  # it begins with the quota's name
    if policy.would_be:
        why |= {"would_be": policy.would_be, "would_be_rule": policy.would_be_rule}
    return why


def _ended(tool: ToolExecution, version: str) -> dict[str, Any]:
    """Return the columns that say how a call ended."""
    verdict, result = tool.verdict, tool.result
    policy = verdict.policy if verdict else None
    return {
        "state": "blocked" if tool.blocked else "waiting" if tool.waiting else "finished",
        "verdict": "deny" if tool.blocked else "ask" if verdict and verdict.kind is VerdictKind.ASK else "allow",
        "rule": verdict.rule[:_RULE_LIMIT_CHARS] if verdict else None,
        "reason": verdict.reason if verdict else None,
        "outcome": result.outcome if result else None,
        "exit_code": result.exit_code if result else None,
        "is_error": result.is_error if result else None,
        "result_bytes": len(result.content) if result else 0,
        "would_be": policy.would_be or None if policy else None,
        "would_be_rule": policy.would_be_rule or None if policy else None,
        "approval_id": tool.approval_id or None,
        "policy_version": version,
    }


def _not_begun(tool: ToolExecution, said: str, *, erased: bool = False) -> ToolResult:
    """Note that a call does not execute; return its result."""
    begun = tool.context.get(_BEGUN)
    if begun is not None:
        begun.started_s = None
    unrecorded = UnrecordedCall(tool.call.id, executed=False, said=said, erased=erased)
    tool.context.set(UNRECORDED, unrecorded)
    return ToolResult.error(unrecorded.words(), outcome=NOT_EXECUTED)


def result_json(result: ToolResult, duration_s: float) -> str | None:
    """Return the text of a result without what no model reads; None for one that is too large."""
    if len(result.content) + len(result.note) > _CONTENT_LIMIT_BYTES:
        return None
    return StoredResult.json_of(replace(result, stdout=b"", stderr=b"", structured=None), duration_s)


def earlier_call(row: Mapping[str, Any]) -> EarlierCall:
    """Return the outcome of a call in an earlier process, from its row in the journal."""
    verdict, kept, duration_s = _verdict(row), None, 0.0
    if row["state"] == "blocked":
        result = blocked_result(verdict)
    elif row["state"] != "executing" and row["result"]:
        kept = StoredResult.model_validate_json(row["result"])
        result, duration_s = kept.result(), kept.duration_s
    elif row["state"] in ("executing", "interrupted"):  # interrupted: the run is taken over for the second time
        since = datetime.fromtimestamp(row["started_us"] / 1_000_000, UTC).isoformat(timespec="seconds")
        result = ToolResult.error(
            f"interrupted: the gateway was lost while this call ran, which began at {since}. It may have had effects, "
            "all or some of them, and it was not run again. Look at what is there before you make it again.",
            outcome=INTERRUPTED,
        )
    else:
        code = f", exit code {row['exit_code']}" if row["exit_code"] is not None else ""
        result = ToolResult.error(
            f"this call ended (outcome {row['outcome']}{code}) just before the gateway was lost, and its result with "
            "it. It was not run again.",
            outcome=row["outcome"] or "failed",
        )
    return EarlierCall(result, verdict, duration_s, row["approval_id"] or "")


def _verdict(row: Mapping[str, Any]) -> Verdict:
    if row["verdict"] is None:
        why = "the call had passed before the gateway was lost"
        return Verdict(kind=VerdictKind.PROCEED, hook="journal", rule="passed", reason=why)
    would_be = {name: row[name] or "" for name in ("would_be", "would_be_rule")}
    word = PolicyWord(version=row["policy_version"], **would_be)
    kind = _KINDS.get(row["verdict"], VerdictKind.PROCEED)
    return Verdict(kind=kind, hook="policy", rule=row["rule"] or "", reason=row["reason"] or "", policy=word)
