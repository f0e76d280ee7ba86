"""The hooks between a tool call and everything that stores, logs, traces or shows it: redaction, and rules on results.

Redaction and the rules are rings just outside the journal's, inside that which evicts: no other hook, no event, log or
client sees what they took out. A ring that fails withholds the result. `RedactedOutcomeHook` is the gate for the rest
of what a call ends with, the verdict's words and results that never came to a ring: it is the first of all after hooks,
the journal's included, so nothing reads what it has not been through.
"""

from __future__ import annotations

from dataclasses import replace

from agent.filesystem import Redacted
from agent.hooks.hook import Hook, NextToolUse, OutputFilter
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution, Verdict
from agent.tool_call import Slot
from gateway.policy.document import PolicyDocument
from gateway.redaction.command_output import LiveRedaction
from gateway.redaction.fair_redactor import FairRedactor
from gateway.redaction.redactor import Redactor
from gateway.redaction.result_rules import EvictedFiles, ResultRulesHook
from gateway.support.heavy_work import Work, at_once

# Between the journal, which is innermost, and the eviction of large results, which would cut a secret in two.
_REDACTION_PRIORITY = -950_000
# Inside the journal: after hooks run from the inside out.
_GATE_PRIORITY = -1_000_001
# What the ring let through: it is not scanned twice.
_CLEAN = Slot[ToolResult]("redacted result")


class RedactionHook(Hook):
    """Takes secrets out of results. Output is shown live through a filter of its own."""

    name = "redaction"
    priority = _REDACTION_PRIORITY
    mandatory = True
    redacts = True

    def __init__(self, redactor: Redactor, work: Work = at_once) -> None:
        """`work` does what may take long, in turns of the tenant."""
        self._redactor = redactor
        self._fair = FairRedactor(redactor, work)

    def output_filter(self) -> OutputFilter | None:
        """Return a filter of one call's output."""
        return LiveRedaction(self._fair)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Redact what came back."""
        clean = await self._without_secrets(await next_(tool))
        tool.context.set(_CLEAN, clean)
        return clean

    async def redacted(self, tool: ToolExecution) -> ToolExecution:
        """Return a call that is over as everybody may see it."""
        result, clean = tool.result, tool.context.pop(_CLEAN)
        if result is not None and not _said_the_same(result, clean):
            result = await self._without_secrets(result)
        return tool.with_(result=result, verdict=self._redacted_verdict(tool.verdict))

    def _redacted_verdict(self, verdict: Verdict | None) -> Verdict | None:
        """Return a verdict whose words, which may quote the call, have no secret."""
        if verdict is None:
            return None
        policy = verdict.policy
        if policy is not None and policy.asked:
            policy = policy.with_(asked=tuple(self._redactor.shown(part) for part in policy.asked))
        return verdict.with_(reason=self._redactor.shown(verdict.reason), policy=policy)

    async def _without_secrets(self, result: ToolResult) -> ToolResult:
        content = await self._clean(result.content)
        # Each stream also by itself: the other may write in between. One that is all of the content is scanned with it.
        stdout, stderr = [
            content if stream == result.content else await self._clean(stream)
            for stream in (result.stdout, result.stderr)
        ]
        note = await self._fair.text(result.note)
        redacted = replace(result, content=content, stdout=stdout, stderr=stderr, note=note)
        return result if _said_the_same(result, redacted) else redacted

    async def _clean(self, data: bytes) -> bytes:
        return data if isinstance(data, Redacted) else await self._fair.redact(data)


class RedactedOutcomeHook(Hook):
    """The gate: what a call ended with, before the journal and every other after hook reads it."""

    name = "redacted-outcome"
    priority = _GATE_PRIORITY
    mandatory = True

    def __init__(self, redaction: RedactionHook) -> None:
        self._redaction = redaction

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Redact the result, where that has not been done, and the verdict."""
        tool = state.current.tool
        redacted = await self._redaction.redacted(tool)
        return state if redacted == tool else state.with_(current=state.current.with_tool(redacted))


def _said_the_same(one: ToolResult, other: ToolResult | None) -> bool:
    return other is not None and (one.content, one.stdout, one.stderr, one.note) == (
        other.content,
        other.stdout,
        other.stderr,
        other.note,
    )


def redactor_of(document: PolicyDocument) -> Redactor | None:
    """Return what a policy's redaction section asks for, None when it asks for nothing."""
    redactor = Redactor(document.redaction)
    return None if redactor.idle else redactor


def redaction_hooks(
    document: PolicyDocument, files: EvictedFiles | None = None, work: Work = at_once
) -> tuple[Hook, ...]:
    """Return the hooks that a policy's redaction and results sections ask for; `files` hold what is evicted, as is.

    `work` does what may take long, in turns of the tenant.
    """
    redactor = redactor_of(document)
    hooks: tuple[Hook, ...] = ()
    if redactor is not None:
        redaction = RedactionHook(redactor, work)
        hooks = (redaction, RedactedOutcomeHook(redaction))
    return (*hooks, ResultRulesHook(document.results, files, redactor, work)) if document.results else hooks
