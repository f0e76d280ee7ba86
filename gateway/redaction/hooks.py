"""The hooks between a tool call and everything that stores, logs, traces or shows it: redaction, and rules on results.

Redaction and the rules are rings just outside the journal's, inside that which evicts: no other hook, no event, log or
client sees what they took out. A ring that fails withholds the result. `RedactedOutcomeHook` is the gate for the rest
of what a call ends with, the verdict's words and results that never came to a ring: it is the first of all after hooks,
the journal's included, so nothing reads what it has not been through.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog
from pydantic_core import to_json

from agent.events import Event, EventSink
from agent.filesystem import Redacted
from agent.hooks.engine import withheld
from agent.hooks.hook import Hook, NextToolUse, OutputFilter
from agent.messages import Evicted, ToolResult
from agent.state import AgentState, ToolExecution, Verdict
from gateway.policy.document import PolicyDocument, ResultRule
from gateway.policy.fields import EXECUTE_PYTHON, rules_of
from gateway.policy.regexes import compile_regex
from gateway.redaction.command_output import LiveRedaction
from gateway.redaction.finders import RedactionFailed
from gateway.redaction.redactor import NO_SECRETS, WITHHELD, Redactor
from sandbox.errors import SandboxError
from sandbox.protocols import FileSystem

# Between the journal, which is innermost, and the eviction of large results, which would cut a secret in two.
_REDACTION_PRIORITY = -950_000
# Inside the journal: after hooks run from the inside out.
_GATE_PRIORITY = -1_000_001
# Outside of redaction: what a rule looks for is looked for in what would be shown.
_RESULTS_PRIORITY = -940_000
_SEARCH_LIMIT_BYTES = 16 * 1024 * 1024
_SEARCH_LIMIT_S = 60.0
log = structlog.get_logger(__name__)


class ResultRulesHook(Hook):
    """Withholds results that a rule is against. While one could be, no output is shown live.

    `files` has evicted results, and files that are shown, as they are.
    """

    name = "results"
    priority = _RESULTS_PRIORITY
    mandatory = True

    def __init__(
        self, rules: Sequence[ResultRule], files: FileSystem | None = None, redactor: Redactor = NO_SECRETS
    ) -> None:
        self._rules = tuple(rules)
        self._files = files
        self._redactor = redactor
        enforced = [rule for rule in self._rules if rule.mode == "enforce"]
        self.redacts = any(_is_about(rule, tool) for rule in enforced for tool in ("execute", EXECUTE_PYTHON))

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Judge what came back; the first rule in the file that is against it is the one that is named."""
        result, call = await next_(tool), tool.call
        rules = [rule for rule in self._rules if _is_about(rule, call.name)]
        against = dict.fromkeys(await self._against(result, rules), "")
        searched = [rule for rule in rules if rule.contains is not None and rule.id not in against]
        for kept in _kept_files(result) if searched else ():
            against |= await self._against_kept(kept, searched)
        for rule in rules:
            if rule.id in against:
                log.info("result rule", call_id=call.id, tool=call.name[:128], rule=rule.id, mode=rule.mode)
        shadow = next((rule.id for rule in rules if rule.id in against and rule.mode == "shadow"), "")
        enforced = next((rule for rule in rules if rule.id in against and rule.mode == "enforce"), None)
        if enforced is not None:
            if result.evicted is not None:
                await self._remove(result.evicted)
            kept_back = withheld(result, f"rule {enforced.id}: {enforced.reason}{against[enforced.id]}")
            return replace(kept_back, withheld_by=enforced.id, would_be_withheld_by=shadow)
        return replace(result, would_be_withheld_by=shadow) if shadow else result

    async def _against(self, result: ToolResult, rules: Sequence[ResultRule]) -> list[str]:
        """Return the ids of the rules that are against what a result shows."""
        structured = b""
        if rules and result.structured is not None:
            structured = await self._redactor.work(to_json, result.structured)
        # Each stream also by itself: what it says comes apart in the content where the other writes in between.
        shown = (result.content, result.stdout, result.stderr, result.note.encode("utf-8", "replace"), structured)
        look = partial(self._redactor.work_on, sum(map(len, shown)), _is_against)
        return [rule.id for rule in rules if await look(rule, result, shown)]

    async def _against_kept(self, evicted: Evicted, rules: Sequence[ResultRule]) -> dict[str, str]:
        """Return the rules that are against the whole of it, with what else there is to say; all, if it is not had."""
        try:
            async with asyncio.timeout(_SEARCH_LIMIT_S):
                data = await self._whole(evicted)
                found = await self._found(data, rules)
        except (_NotWholeError, SandboxError, RedactionFailed, OSError, TimeoutError) as error:
            said = str(error) if isinstance(error, _NotWholeError) else "its file could not be read"
            log.info("evicted result not searched", path=evicted.path, error=repr(error)[:500])
            return {rule.id: f" (not searched: {said})" for rule in rules}
        return dict.fromkeys(found, "")

    async def _whole(self, evicted: Evicted) -> bytes:
        """Return what was evicted, all of it and unchanged, or raise."""
        if self._files is None:
            raise _NotWholeError("its file is out of reach")
        if evicted.incomplete:
            raise _NotWholeError("a part of the output is lost")
        if evicted.size_bytes > _SEARCH_LIMIT_BYTES:
            raise _NotWholeError(f"the output has {evicted.size_bytes} bytes, more than {_SEARCH_LIMIT_BYTES}")
        data = bytearray()
        async for piece in self._files.read(evicted.path, length=evicted.size_bytes + 1):
            data += piece
            if len(data) > evicted.size_bytes:
                break
        if hashlib.sha256(data).hexdigest() != evicted.sha256:
            raise _NotWholeError("its file was changed meanwhile")
        return bytes(data)

    async def _found(self, data: bytes, rules: Sequence[ResultRule]) -> list[str]:
        """Return the ids of the rules whose pattern is in the data, as it would be shown."""
        shown = await self._redactor.redact(data)
        return [rule.id for rule in rules if await self._redactor.work(_is_in, shown, rule)]

    async def _remove(self, evicted: Evicted) -> None:
        """Take away the file of a withheld result, so that no other tool shows it."""
        if self._files is None:
            return
        try:
            await self._files.remove(evicted.path)
        except (SandboxError, OSError) as error:
            log.warning("withheld output not removed", path=evicted.path, error=repr(error)[:500])


class _NotWholeError(Exception):
    """What was evicted cannot be looked through; the text says why."""


def _kept_files(result: ToolResult) -> list[Evicted]:
    """Return the files that a result refers to: what was evicted of it, and what is shown with it."""
    shown = [
        Evicted(path=one.path, size_bytes=one.size_bytes, lines=0, sha256=one.sha256, incomplete=False)
        for one in result.attachments
    ]
    return shown if result.evicted is None else [result.evicted, *shown]


def _is_in(data: bytes, rule: ResultRule) -> bool:
    return compile_regex(rule.contains or "").search(data) is not None


def _is_about(rule: ResultRule, tool: str) -> bool:
    return rule.tools is None or not set(rules_of(tool)).isdisjoint(rule.tools)


def _is_against(rule: ResultRule, result: ToolResult, shown: Sequence[bytes]) -> bool:
    if rule.over_bytes is not None:
        size_bytes = result.evicted.size_bytes if result.evicted is not None else len(result.content)
        return size_bytes + sum(one.size_bytes for one in result.attachments) > rule.over_bytes
    regex = compile_regex(rule.contains or "")
    return any(regex.search(text) is not None for text in shown)


class RedactionHook(Hook):
    """Takes secrets out of results. Output is shown live through a filter of its own."""

    name = "redaction"
    priority = _REDACTION_PRIORITY
    mandatory = True
    redacts = True

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def output_filter(self) -> OutputFilter | None:
        return LiveRedaction(self._redactor)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Redact what came back: it is marked, and not scanned again unless a hook further out changes it."""
        return await self._without_secrets(await next_(tool))

    async def redacted(self, tool: ToolExecution) -> ToolExecution:
        """Return a call that is over as everybody may see it."""
        result = None if tool.result is None else await self._without_secrets(tool.result)
        verdict = tool.verdict
        if verdict is not None:
            words = (verdict.reason, *(verdict.policy.asked if verdict.policy is not None else ()))
            verdict = await self._redactor.work_on(sum(map(len, words)), self._redacted_verdict, verdict)
        if result is tool.result and verdict is tool.verdict:
            return tool
        return tool.with_(result=result, verdict=verdict)

    def _redacted_verdict(self, verdict: Verdict) -> Verdict:
        """Return a verdict whose words, which may quote the call, have no secret."""
        policy = verdict.policy
        if policy is not None and policy.asked:
            policy = policy.with_(asked=tuple(self._redactor.shown(part) for part in policy.asked))
        reason = self._redactor.shown(verdict.reason)
        if reason is verdict.reason and policy is verdict.policy:
            return verdict
        return verdict.with_(reason=reason, policy=policy)

    async def _without_secrets(self, result: ToolResult) -> ToolResult:
        content = await self._clean(result.content)
        # Each stream also by itself: the other may write in between. One that is all of the content is scanned with it.
        stdout, stderr = [
            content if stream == result.content else await self._clean(stream)
            for stream in (result.stdout, result.stderr)
        ]
        note = await self._clean_note(result.note) if result.note else ""
        structured = result.structured
        if structured is not None:
            structured = await self._redactor.work(self._redactor.json, structured)
        clean = (content, stdout, stderr, note, structured)
        before = (result.content, result.stdout, result.stderr, result.note, result.structured)
        if all(one is was for one, was in zip(clean, before, strict=True)):
            return result
        return replace(result, content=content, stdout=stdout, stderr=stderr, note=note, structured=structured)

    async def _clean_note(self, note: str) -> str:
        data = note.encode("utf-8", "surrogatepass")
        clean = await self._redactor.redact(data)
        return note if clean == data else clean.decode("utf-8", "replace")

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
        return state if redacted is tool else state.with_(current=state.current.with_tool(redacted))


def redaction_hooks(document: PolicyDocument, redactor: Redactor, files: FileSystem | None = None) -> tuple[Hook, ...]:
    """Return the hooks that a policy's redaction and results sections ask for; `files` has what is evicted, as is."""
    hooks: tuple[Hook, ...] = ()
    if not redactor.idle:
        redaction = RedactionHook(redactor)
        hooks = (redaction, RedactedOutcomeHook(redaction))
    return (*hooks, ResultRulesHook(document.results, files, redactor)) if document.results else hooks


def redacted_events(redactor: Redactor, events: EventSink) -> EventSink:
    """Return a sink that redacts what it passes on. The pieces of a model's text are each redacted alone.

    A program's output has been through the filter of the redaction hook, which knows where its pieces were cut.
    """
    if redactor.idle:
        return events

    def emit(event: Event) -> None:
        if event.type == "tool_output":
            events(event)
            return
        try:
            payload = {key: redactor.json(value) for key, value in event.payload.items()}
        except RedactionFailed:
            payload = {
                key: value if value is None or isinstance(value, int | float) else WITHHELD
                for key, value in event.payload.items()
            }
        events(Event(event.type, payload))

    return emit
