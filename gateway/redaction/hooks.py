"""The hooks that stand between a result and everybody who would see it: rules on results, and redaction.

Both are rings just outside the journal's, inside that which evicts: no other hook, no event, log or client sees what
they took out. A ring that fails withholds the result. What never came to the rings is redacted at after_tool_use.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent.filesystem import OutputStream
from agent.hook import Hook, NextToolUse, OutputFilter
from agent.messages import ToolCall
from agent.state import AgentState
from agent.tool import ToolResult
from gateway.policy.document import PolicyDocument
from gateway.redaction.redactor import Redactor
from gateway.redaction.result_rules import EvictedFiles, ResultRulesHook

# Between the journal, which is innermost, and the eviction of large results, which would cut a secret in two.
_REDACTION_PRIORITY = -950_000
# The work on more than this is done in a thread: the gateway serves others meanwhile.
_AT_ONCE_BYTES = 65_536


class RedactionHook(Hook):
    """Takes secrets out of results. Output is shown live through a filter of its own."""

    name = "redaction"
    priority = _REDACTION_PRIORITY
    mandatory = True
    redacts = True

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        # What the ring let through of calls that are under way, by their ids: nobody has to look at it twice.
        self._clean: dict[str, ToolResult] = {}

    def output_filter(self) -> OutputFilter | None:
        """Return a filter of one call's output."""
        return _LiveOutput(self.redactor)

    async def around_tool_use(self, call: ToolCall, next_: NextToolUse) -> ToolResult:
        """Redact what came back."""
        clean = self._clean[call.id] = await self._without_secrets(await next_(call))
        return clean

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Redact what did not come through the ring: refusals, and what the runner itself says."""
        tool = state.current.tool
        result, clean = tool.result, self._clean.pop(tool.call.id, None)
        if result is None or _said_the_same(result, clean):
            return state
        redacted = await self._without_secrets(result)
        return state if redacted == result else state.with_result(redacted)

    async def _without_secrets(self, result: ToolResult) -> ToolResult:
        if len(result.content) + len(result.stdout) + len(result.stderr) > _AT_ONCE_BYTES:
            return await asyncio.to_thread(self._redacted, result)
        return self._redacted(result)

    def _redacted(self, result: ToolResult) -> ToolResult:
        redactor = self.redactor
        redacted = replace(
            result,
            content=redactor.redact(result.content),
            stdout=redactor.redact(result.stdout),
            stderr=redactor.redact(result.stderr),
            note=redactor.text(result.note),
        )
        return result if _said_the_same(result, redacted) else redacted


def _said_the_same(one: ToolResult, other: ToolResult | None) -> bool:
    return other is not None and (one.content, one.stdout, one.stderr, one.note) == (
        other.content,
        other.stdout,
        other.stderr,
        other.note,
    )


class _LiveOutput:
    """The output of one call, each stream by itself."""

    def __init__(self, redactor: Redactor) -> None:
        self._streams = {"stdout": redactor.stream(), "stderr": redactor.stream()}

    def feed(self, stream: OutputStream, data: bytes) -> bytes:
        """Return what may be shown by now."""
        return self._streams[stream].feed(data)

    def flush(self, stream: OutputStream, *, cut: bool) -> bytes:
        """Return the rest."""
        return self._streams[stream].flush(cut=cut)


def redactor_of(document: PolicyDocument) -> Redactor | None:
    """Return what a policy's redaction section asks for, None when it asks for nothing."""
    redactor = Redactor(document.redaction)
    return None if redactor.idle else redactor


def redaction_hooks(document: PolicyDocument, files: EvictedFiles | None = None) -> tuple[Hook, ...]:
    """Return the hooks that a policy's redaction and results sections ask for; `files` hold what is evicted, as is."""
    redactor = redactor_of(document)
    hooks: tuple[Hook, ...] = () if redactor is None else (RedactionHook(redactor),)
    return (*hooks, ResultRulesHook(document.results, files, redactor)) if document.results else hooks
