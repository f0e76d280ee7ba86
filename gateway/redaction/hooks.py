"""The hooks between a tool call and everything that stores, logs, traces or shows it: redaction, and rules on results.

Redaction and the rules are rings just outside the journal's, inside that which evicts: no other hook, no event, log or
client sees what they took out. A ring that fails withholds the result. `RedactedOutcomeHook` is the gate for the rest
of what a call ends with, the verdict's words and results that never came to a ring: it is the first of all after hooks,
the journal's included, so nothing reads what it has not been through.
"""

from dataclasses import replace

from agent.filesystem import Redacted
from agent.hooks.hook import Hook, NextToolUse, OutputFilter
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution, Verdict
from gateway.policy.document import PolicyDocument
from gateway.redaction.command_output import LiveRedaction
from gateway.redaction.redactor import Redactor
from gateway.redaction.result_rules import ResultRulesHook
from sandbox.protocols import FileSystem

# Between the journal, which is innermost, and the eviction of large results, which would cut a secret in two.
_REDACTION_PRIORITY = -950_000
# Inside the journal: after hooks run from the inside out.
_GATE_PRIORITY = -1_000_001


class RedactionHook(Hook):
    """Takes secrets out of results. Output is shown live through a filter of its own."""

    name = "redaction"
    priority = _REDACTION_PRIORITY
    mandatory = True
    redacts = True

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def output_filter(self) -> OutputFilter | None:
        """Return a filter of one call's output."""
        return LiveRedaction(self._redactor)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Redact what came back: it is marked, and not scanned again unless a hook further out changes it."""
        return await self._without_secrets(await next_(tool))

    async def redacted(self, tool: ToolExecution) -> ToolExecution:
        """Return a call that is over as everybody may see it."""
        result = None if tool.result is None else await self._without_secrets(tool.result)
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
        note = result.note.encode("utf-8", "surrogatepass")
        clean_note = await self._redactor.redact(note)
        shown_note = result.note if clean_note == note else clean_note.decode("utf-8", "replace")
        return replace(result, content=content, stdout=stdout, stderr=stderr, note=shown_note)

    async def _clean(self, data: bytes) -> Redacted:
        return data if isinstance(data, Redacted) else Redacted(await self._redactor.redact(data))


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


def redaction_hooks(document: PolicyDocument, redactor: Redactor, files: FileSystem | None = None) -> tuple[Hook, ...]:
    """Return the hooks that a policy's redaction and results sections ask for; `files` has what is evicted, as is."""
    hooks: tuple[Hook, ...] = ()
    if not redactor.idle:
        redaction = RedactionHook(redactor)
        hooks = (redaction, RedactedOutcomeHook(redaction))
    return (*hooks, ResultRulesHook(document.results, files, redactor)) if document.results else hooks
