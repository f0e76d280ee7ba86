"""The journal hook: a tool call is written down before it executes, and its outcome before anybody sees the result.

Innermost of the rings and first of the after hooks. A call that was blocked is written once, when it is over;
so is one of a service that waits for an approval. A run's call that waits is written when it goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import structlog

from agent.hook import Hook, NextToolUse
from agent.messages import ToolCall
from agent.state import AgentState, ToolExecution
from agent.tool import ToolResult
from agent.tool_runner import digestible
from agent.verdict import VerdictKind
from gateway.policy.decision import DEFAULT_DENY, INVALID_ARGUMENTS, OPAQUE
from gateway.policy.hook import PolicyHook
from gateway.quota_hook import QUOTA
from gateway.redaction import Redactor
from gateway.storage.store import Store, Thread

# Innermost: below every priority that a capability may have, so that its ring wraps nothing but the executor.
INNERMOST_PRIORITY = -1_000_000
# What is kept of the arguments themselves; the digest covers all of them.
_ARGUMENTS_LIMIT_CHARS = 16_384
_LOGGED = ("verdict", "rule", "outcome", "exit_code")
_REASON_LIMIT_CHARS = 200
# These reasons are the policy's own words about a call, and quote what it was to do.
_QUOTES_ARGUMENTS = (DEFAULT_DENY, OPAQUE, INVALID_ARGUMENTS)
log = structlog.get_logger(__name__)


class JournalHook(Hook):
    """Journals every tool call of one thread."""

    name = "journal"
    priority = INNERMOST_PRIORITY
    mandatory = True

    def __init__(
        self,
        store: Store,
        thread: Thread,
        policy_version: str | Callable[[], str],
        run_id: str | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """Take the policy's version, or what tells the one in force at each call. Stored arguments are redacted."""
        self._redactor = redactor
        self._store = store
        self._thread = thread
        self._policy_version = policy_version if callable(policy_version) else lambda: policy_version
        self._run_id = run_id
        self._executing: set[str] = set()

    async def around_tool_use(self, call: ToolCall, next_: NextToolUse) -> ToolResult:
        """Write "about to execute"."""
        self._executing.add(call.id)
        await self._store.write_tool_call({**self._row(call, self._policy_version()), "state": "executing"})
        return await next_(call)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Write the outcome; the runner comes here for cancelled calls too."""
        tool = state.current.tool
        verdict, result = tool.verdict, tool.result
        policy = verdict.policy if verdict else None
        version = policy.version if policy else self._policy_version()
        ended = {
            "state": "blocked" if tool.blocked else "waiting" if tool.waiting else "finished",
            "verdict": "deny" if tool.blocked else "ask" if verdict and verdict.kind is VerdictKind.ASK else "allow",
            "rule": verdict.rule if verdict else None,
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
        told = {name: ended[name] for name in _LOGGED} | self._why(tool)
        log.info("tool call", **self._facts(tool, version), **told)
        if tool.call.id in self._executing:
            self._executing.discard(tool.call.id)
            await self._store.finish_tool_call(tool.call.id, ended)
        else:
            await self._store.write_tool_call({**self._row(tool.call, version), **ended})
        return state

    def _facts(self, tool: ToolExecution, version: str) -> dict[str, str | None]:
        """Return who called what, for the log; never the arguments."""
        whose = {"tenant": self._thread.tenant, "thread": self._thread.name, "run_id": self._run_id}
        facts = {"call_id": tool.call.id, "tool": tool.call.name[:128], **whose, "policy": version}
        return facts | {"approval_id": tool.approval_id} if tool.approval_id else facts

    def _why(self, tool: ToolExecution) -> dict[str, str]:
        """Return what else the log says of a verdict: the operator's own reason, none that quotes the arguments."""
        verdict = tool.verdict
        policy = verdict.policy if verdict is not None else None
        if verdict is None or policy is None:
            return {}
        told = {}
        if verdict.hook == PolicyHook.name and verdict.rule not in _QUOTES_ARGUMENTS:
            reason = verdict.reason if self._redactor is None else self._redactor.text(verdict.reason)
            told["reason"] = reason[:_REASON_LIMIT_CHARS]
            if verdict.rule == QUOTA:
                told["quota"] = verdict.reason.partition(":")[0]  # it begins with the quota's name
        if policy.would_be:
            told |= {"would_be": policy.would_be, "would_be_rule": policy.would_be_rule}
        return told

    def _row(self, call: ToolCall, version: str) -> dict[str, str | None]:
        arguments = self._shown_arguments(call)
        return {
            "id": call.id,
            "tenant": self._thread.tenant,
            "thread_id": self._thread.id,
            "run_id": self._run_id,
            "name": call.name[:128],
            "arguments": arguments[:_ARGUMENTS_LIMIT_CHARS],
            "arguments_digest": hashlib.sha256(digestible(call).encode()).hexdigest(),
            "policy_version": version,
        }

    def _shown_arguments(self, call: ToolCall) -> str:
        """Return the arguments without secrets; the digest is of what they were."""
        if call.arguments is None:
            return call.raw_arguments if self._redactor is None else self._redactor.text(call.raw_arguments)
        return json.dumps(call.arguments if self._redactor is None else self._redactor.json(call.arguments))
