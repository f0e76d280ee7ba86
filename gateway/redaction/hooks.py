"""The hooks that stand between a result and everybody who would see it: rules on results, and redaction.

Both are rings just outside the journal's, inside that which evicts: no other hook, no event, log or client sees what
they took out. A ring that fails withholds the result. What never came to the rings is redacted at after_tool_use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from agent.filesystem import OutputStream
from agent.hook import Hook, NextToolUse, OutputFilter
from agent.hook_engine import withheld
from agent.messages import ToolCall
from agent.state import AgentState
from agent.tool import ToolResult
from gateway.policy.document import PolicyDocument, ResultRule
from gateway.policy.regexes import compile_regex
from gateway.redaction.redactor import Redactor

# Between the journal, which is innermost, and the eviction of large results, which would cut a secret in two.
_REDACTION_PRIORITY = -950_000
# Outside of redaction: what a rule looks for is looked for in what would be shown.
_RESULTS_PRIORITY = -940_000
log = structlog.get_logger(__name__)


class RedactionHook(Hook):
    """Takes secrets out of results. Output is shown live through a filter of its own."""

    name = "redaction"
    priority = _REDACTION_PRIORITY
    mandatory = True
    redacts = True

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor

    def output_filter(self) -> OutputFilter | None:
        """Return a filter of one call's output."""
        return _LiveOutput(self.redactor)

    async def around_tool_use(self, call: ToolCall, next_: NextToolUse) -> ToolResult:
        """Redact what came back."""
        return self._redacted(await next_(call))

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Redact what did not come through the ring: refusals, and what the runner itself says."""
        result = state.current.tool.result
        if result is None:
            return state
        redacted = self._redacted(result)
        return state if redacted == result else state.with_result(redacted)

    def _redacted(self, result: ToolResult) -> ToolResult:
        redactor = self.redactor
        return replace(
            result,
            content=redactor.redact(result.content),
            stdout=redactor.redact(result.stdout),
            stderr=redactor.redact(result.stderr),
            note=redactor.text(result.note),
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


class ResultRulesHook(Hook):
    """Withholds results that a rule is against. While one could be, no output is shown live."""

    name = "results"
    priority = _RESULTS_PRIORITY
    mandatory = True

    def __init__(self, rules: Sequence[ResultRule]) -> None:
        self._rules = tuple(rules)
        self.redacts = any(rule.mode == "enforce" and _is_about(rule, "execute") for rule in self._rules)

    async def around_tool_use(self, call: ToolCall, next_: NextToolUse) -> ToolResult:
        """Judge what came back; the first rule in the file that is against it is the one that is named."""
        result = await next_(call)
        against = [rule for rule in self._rules if _is_about(rule, call.name) and _is_against(rule, result)]
        for rule in against:
            log.info("result rule", call_id=call.id, tool=call.name[:128], rule=rule.id, mode=rule.mode)
        shadow = next((rule.id for rule in against if rule.mode == "shadow"), "")
        enforced = next((rule for rule in against if rule.mode == "enforce"), None)
        if enforced is not None:
            kept_back = withheld(result, f"rule {enforced.id}: {enforced.reason}")
            return replace(kept_back, withheld_by=enforced.id, would_be_withheld_by=shadow)
        return replace(result, would_be_withheld_by=shadow) if shadow else result


def _is_about(rule: ResultRule, tool: str) -> bool:
    return rule.tools is None or tool in rule.tools


def _is_against(rule: ResultRule, result: ToolResult) -> bool:
    if rule.over_bytes is not None:
        size_bytes = result.evicted.size_bytes if result.evicted is not None else len(result.content)
        return size_bytes > rule.over_bytes
    regex = compile_regex(rule.contains or "")
    shown = (result.content, result.stdout, result.stderr, result.note.encode("utf-8", "replace"))
    return any(regex.search(text) is not None for text in shown)


def redactor_of(document: PolicyDocument) -> Redactor | None:
    """Return what a policy's redaction section asks for, None when it asks for nothing."""
    redactor = Redactor(document.redaction)
    return None if redactor.idle else redactor


def redaction_hooks(document: PolicyDocument) -> tuple[Hook, ...]:
    """Return the hooks that a policy's redaction and results sections ask for."""
    redactor = redactor_of(document)
    hooks: tuple[Hook, ...] = () if redactor is None else (RedactionHook(redactor),)
    return (*hooks, ResultRulesHook(document.results)) if document.results else hooks
