from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from agent.events import Event
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook, NextToolUse
from agent.messages import Attachment, Evicted, ToolCall, ToolResult, ToolSpec
from agent.state import AgentState, ToolExecution, Verdict, VerdictKind
from agent.tool_call import JudgedCall
from agent.tools.runner import ToolRunner
from agent.tools.tool import ToolContext
from gateway.policy.document import PolicyDocument, RedactedPattern, RedactionSection, ResultRule
from gateway.redaction import Redactor
from gateway.redaction.hooks import RedactionHook, redacted_events, redaction_hooks
from sandbox.errors import SandboxUnavailable
from tests.unit.agent.fakes import execution_of
from tests.unit.gateway.redaction.secrets import B64

TOKEN = "gh" + "p_" + B64[:36]
SECRET = B64[:36]


class Tools:
    """A tool that shows pieces of output and gives a result."""

    def __init__(self, result: ToolResult, pieces: Sequence[tuple[Any, bytes]] = ()) -> None:
        self.result, self.pieces = result, pieces

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    def prepare(self, call: ToolCall) -> JudgedCall:
        return JudgedCall.of(call)

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        for stream, data in self.pieces:
            if context.on_output is not None:
                context.on_output(stream, data)
        return self.result


class Listens(Hook):
    """Outermost ring and after hook: it must see nothing that was to be taken out."""

    name = "listens"
    priority = 10

    def __init__(self) -> None:
        self.seen: list[ToolResult | None] = []

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        self.seen.append(await next_(tool))
        return self.seen[-1]  # type: ignore[return-value]

    async def after_tool_use(self, state: AgentState) -> AgentState:
        self.seen.append(state.current.tool.result)
        return state


async def call(
    hooks: Sequence[Hook], tools: Tools, name: str = "execute", **arguments: Any
) -> tuple[ToolResult, list[Event], list[tuple[str, bytes]], Listens]:
    events: list[Event] = []
    heard: list[tuple[str, bytes]] = []
    listens = Listens()
    runner = ToolRunner(
        HookEngine([*hooks, listens]),
        tools,
        redacted_events(Redactor(RedactionSection()), events.append),
        on_output=lambda stream, data: heard.append((stream, data)),
    )
    state = await runner.run(AgentState(run_id="r", thread="t"), [ToolCall(id="c", name=name, arguments=arguments)])
    result = state.current.tool_executions[0].result
    assert result is not None
    return result, events, heard, listens


def hooks_of(files: Any = None, **sections: Any) -> tuple[Hook, ...]:
    document = PolicyDocument(version=1, **sections)
    return redaction_hooks(document, Redactor(document.redaction), files)


async def test_no_output_shows_the_secret() -> None:
    said = TOKEN.encode()
    result = ToolResult(said, outcome="exited", exit_code=0, stdout=said, stderr=b"x" + b" " + said, note=f"[{TOKEN}]")
    pieces = [("stdout", said[:9]), ("stderr", b"plain\n"), ("stdout", said[9:]), ("stderr", said[:20])]
    shown, events, heard, listens = await call(hooks_of(), Tools(result, pieces), command=f"echo {TOKEN}")
    for what in (shown, events, heard, listens.seen):
        assert SECRET not in repr(what)
        assert "redacted github-token" in repr(what)
    assert len(shown.content) == len(said)
    assert ("stderr", b"plain\n") in heard
    assert b"".join(data for stream, data in heard if stream == "stdout") == shown.stdout
    assert SECRET[:10] not in repr([event for event in events if event.type != "tool_output"])


async def test_a_live_stream_that_was_cut_does_not_show_half_a_secret() -> None:
    evicted = Evicted(path="/f", size_bytes=9, lines=1, sha256="0" * 64, incomplete=False)
    tools = Tools(ToolResult(b"", outcome="exited", evicted=evicted), [("stdout", TOKEN[:24].encode())])
    _, _, heard, _ = await call(hooks_of(), tools)
    assert SECRET[:5] not in repr(heard)
    whole = Tools(ToolResult(b"", outcome="exited"), [("stdout", TOKEN[:24].encode())])
    _, _, heard, _ = await call(hooks_of(), whole)
    assert b"".join(data for _, data in heard) == TOKEN[:24].encode()


class Fails(Redactor):
    async def redact(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:
        raise RuntimeError("out of order")


async def test_a_redaction_that_raises_withholds_the_result() -> None:
    hook = RedactionHook(Fails(RedactionSection()))
    shown, events, _, listens = await call([hook], Tools(ToolResult(TOKEN.encode(), outcome="exited")))
    assert shown.is_error
    assert b"withheld" in shown.content
    for what in (shown, events, listens.seen):
        assert SECRET not in repr(what)
    assert "hook_failed" in [event.type for event in events]


async def test_a_pattern_that_fails_withholds_live_output_too() -> None:
    section = RedactionSection(patterns=(RedactedPattern(id="wide", pattern="x.*y", longest_chars=1),))
    said = b"x" * 3000 + b"_" * 20 + b"y\n"
    shown, _, heard, _ = await call(
        hooks_of(redaction=section), Tools(ToolResult(said, outcome="exited"), [("stdout", said)])
    )
    assert b"withheld" in shown.content
    assert heard == []


class SlowHook(Hook):
    name = "slow"
    redacts = True
    timeout_s = 0.01

    async def after_tool_use(self, state: AgentState) -> AgentState:
        await asyncio.Event().wait()
        return state


async def test_a_redaction_that_takes_too_long_withholds_the_result_and_live_output() -> None:
    tools = Tools(ToolResult(TOKEN.encode(), outcome="exited"), [("stdout", TOKEN.encode())])
    shown, _, heard, _ = await call([SlowHook()], tools)
    assert b"withheld" in shown.content
    assert heard == []


async def test_refusals_are_redacted_too() -> None:
    class Refuses(Tools):
        def prepare(self, call: ToolCall) -> JudgedCall:
            return JudgedCall.of(call, unfit=ToolResult.error(f"no such path: {TOKEN}"))

    shown, events, _, _ = await call(hooks_of(), Refuses(ToolResult(b"")))
    assert b"no such path" in shown.content
    assert SECRET not in repr((shown, events))


LARGE = ResultRule(id="large", reason="Too much at once.", over_bytes=10)
INTERNAL = ResultRule(id="internal", reason="Internal papers.", contains="(?i)top secret", tools=("execute",))


@pytest.mark.parametrize(
    "rule, content, withheld_by",
    [
        (LARGE, b"x" * 11, "large"),
        (LARGE, b"x" * 10, ""),
        (INTERNAL, b"this is Top Secret", "internal"),
        (INTERNAL, b"this is not", ""),
    ],
)
async def test_a_rule_withholds_a_result(rule: ResultRule, content: bytes, withheld_by: str) -> None:
    tools = Tools(ToolResult(content, outcome="exited", exit_code=0, stdout=content), [("stdout", content)])
    shown, events, heard, listens = await call(hooks_of(results=(rule,)), tools)
    finished = next(event.payload for event in events if event.type == "tool_call_finished")
    assert (shown.withheld_by, finished["withheld_by"]) == (withheld_by, withheld_by)
    assert heard == []
    if withheld_by:
        assert f"withheld: rule {rule.id}: {rule.reason}".encode() in shown.content
        assert (shown.outcome, shown.exit_code, shown.stdout) == ("exited", 0, b"")
        assert content.decode() not in repr((shown, events, listens.seen))
    else:
        assert shown.content == content


async def test_what_was_evicted_counts_whole() -> None:
    evicted = Evicted(path="/f", size_bytes=11, lines=1, sha256="0" * 64, incomplete=False)
    shown, *_ = await call(hooks_of(results=(LARGE,)), Tools(ToolResult(b"x", outcome="exited", evicted=evicted)))
    assert (shown.withheld_by, shown.evicted) == ("large", None)


class Files:
    """The file of one evicted output."""

    def __init__(self, data: bytes, *, fails: bool = False) -> None:
        self.data, self.fails = data, fails
        self.removed: list[str] = []

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if self.fails:
            raise SandboxUnavailable("no sandbox")
        data = self.data[offset:][:length]
        for at in range(0, len(data), 1000):
            yield data[at : at + 1000]

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        self.removed.append(path)


def evicted_from(data: bytes, *, incomplete: bool = False) -> ToolResult:
    evicted = Evicted(
        path="/f", size_bytes=len(data), lines=1, sha256=hashlib.sha256(data).hexdigest(), incomplete=incomplete
    )
    return ToolResult(b"head ... tail", outcome="exited", exit_code=0, evicted=evicted)


LONG = b"a\n" * 50_000
FORBIDDEN = LONG + b"top SECRET" + LONG
EVICTED_CASES = [
    (Files(FORBIDDEN), evicted_from(FORBIDDEN), ": Internal papers."),
    (Files(b"x" + LONG), evicted_from(LONG), "changed meanwhile"),
    (Files(LONG + b"x"), evicted_from(LONG), "changed meanwhile"),
    (Files(LONG[:-1]), evicted_from(LONG), "changed meanwhile"),
    (Files(LONG), evicted_from(LONG, incomplete=True), "a part of the output is lost"),
    (Files(LONG, fails=True), evicted_from(LONG), "could not be read"),
    (None, evicted_from(LONG), "out of reach"),
    (Files(b"a" * 17 * 1024 * 1024), evicted_from(b"a" * 17 * 1024 * 1024), "the output has 17825792 bytes"),
]


@pytest.mark.parametrize("files, result, said", EVICTED_CASES)
async def test_what_was_evicted_is_searched_whole_or_withheld(
    files: Files | None, result: ToolResult, said: str
) -> None:
    shown, events, *_ = await call(hooks_of(files, results=(INTERNAL,)), Tools(result))
    assert (shown.withheld_by, shown.evicted) == ("internal", None)
    assert said in shown.content.decode()
    assert "head ..." not in repr((shown, events))
    if files is not None:
        assert files.removed == ["/f"]


async def test_what_was_evicted_and_holds_nothing_is_shown() -> None:
    files = Files(LONG)
    shown, *_ = await call(hooks_of(files, results=(INTERNAL,)), Tools(evicted_from(LONG)))
    assert (shown.withheld_by, shown.evicted is not None, files.removed) == ("", True, [])


async def test_what_was_evicted_is_searched_as_it_would_be_shown() -> None:
    data = LONG + TOKEN.encode() + LONG
    rule = ResultRule(id="token", reason="A token.", contains=SECRET)
    shown, *_ = await call(hooks_of(Files(data), results=(rule,)), Tools(evicted_from(data)))
    assert shown.withheld_by == ""
    bare = RedactionSection(well_known=False)
    shown, *_ = await call(hooks_of(Files(data), results=(rule,), redaction=bare), Tools(evicted_from(data)))
    assert shown.withheld_by == "token"


async def test_a_rule_in_shadow_searches_what_was_evicted_and_leaves_it() -> None:
    files = Files(FORBIDDEN)
    rule = INTERNAL.model_copy(update={"mode": "shadow"})
    shown, *_ = await call(hooks_of(files, results=(rule,)), Tools(evicted_from(FORBIDDEN)))
    assert (shown.withheld_by, shown.would_be_withheld_by, files.removed) == ("", "internal", [])
    assert shown.evicted is not None


def shown_with(data: bytes) -> ToolResult:
    digest = hashlib.sha256(data).hexdigest()
    attached = Attachment(path="/f", media_type="image/png", size_bytes=len(data), sha256=digest)
    return ToolResult(b"an image", attachments=(attached,))


@pytest.mark.parametrize(
    "held, shown, said",
    [
        (FORBIDDEN, FORBIDDEN, ": Internal papers."),
        (LONG + b"x", LONG, "changed meanwhile"),
        (LONG, LONG, ""),
    ],
)
async def test_a_rule_about_read_file_searches_the_bytes_that_view_file_shows(
    held: bytes, shown: bytes, said: str
) -> None:
    files, rule = Files(held), INTERNAL.model_copy(update={"tools": ("read_file",)})
    result, *_ = await call(hooks_of(files, results=(rule,)), Tools(shown_with(shown)), name="view_file")
    assert said in result.content.decode()
    assert (result.withheld_by, len(result.attachments)) == (("internal", 0) if said else ("", 1))
    assert files.removed == []  # it is the workspace's own


async def test_a_file_that_is_shown_counts_whole() -> None:
    hooks = hooks_of(Files(b"x" * 3), results=(LARGE,))
    withheld, *_ = await call(hooks, Tools(shown_with(b"x" * 3)), name="view_file")
    assert (withheld.withheld_by, withheld.attachments) == ("large", ())
    rule = LARGE.model_copy(update={"tools": ("read_file",), "over_bytes": 11})
    kept, *_ = await call(hooks_of(results=(rule,)), Tools(shown_with(b"x" * 3)), name="view_file")
    assert len(kept.attachments) == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_stream_is_searched_by_itself_where_the_other_writes_in_between(stream: str) -> None:
    said = {stream: b"top secret"}
    result = ToolResult(b"top .secret", outcome="exited", **said)  # type: ignore[arg-type]
    shown, *_ = await call(hooks_of(results=(INTERNAL,)), Tools(result))
    assert shown.withheld_by == "internal"


async def test_a_result_full_of_secrets_is_redacted_in_small_turns_of_its_tenant() -> None:
    turns: list[int] = []

    async def work(function: Callable[..., Any], /, *args: Any) -> Any:
        turns.append(len(args[0]))
        return await asyncio.to_thread(function, *args)

    hook = RedactionHook(Redactor(RedactionSection(), work))
    for plain in (b"short " + TOKEN.encode(), b"plain " * 5000):
        await call([hook], Tools(ToolResult(plain, outcome="exited")))
    assert turns == []
    dense = b"://u:passwd@" * 10_000
    shown, *_ = await call([hook], Tools(ToolResult(dense, outcome="exited")))
    assert b"passwd" not in shown.content
    assert (sum(turns), max(turns)) == (len(dense), 32_768)


async def test_long_texts_are_looked_through_in_turns_and_short_ones_at_once() -> None:
    turns: list[str] = []

    async def work(function: Callable[..., Any], /, *args: Any) -> Any:
        turns.append(function.__name__)
        return await asyncio.to_thread(function, *args)

    redactor = Redactor(RedactionSection(), work)
    *_, rules = redaction_hooks(PolicyDocument(version=1, results=(INTERNAL,)), redactor)
    for words in (1, 4_000):
        turns.clear()
        said = b"plain " * words
        shown, *_ = await call([rules], Tools(ToolResult(said + b"top secret", outcome="exited", stdout=said)))
        assert shown.withheld_by == "internal"
        assert turns == ["_is_against"] * (words > 1)
        turns.clear()
        denied = execution_of(ToolCall(id="c", name="execute", arguments={}))
        reason = f"rm {TOKEN} is denied{' word' * words}"
        denied = denied.with_(verdict=Verdict(kind=VerdictKind.BLOCK, hook="policy", rule="never", reason=reason))
        redacted = await RedactionHook(redactor).redacted(denied)
        assert redacted.verdict is not None
        assert SECRET not in redacted.verdict.reason
        assert turns == ["_redacted_verdict"] * (words > 1)


async def test_a_rule_is_about_its_tools_only() -> None:
    shown, *_ = await call(hooks_of(results=(INTERNAL,)), Tools(ToolResult(b"top secret")), name="read_file")
    assert shown.content == b"top secret"


async def test_a_rule_in_shadow_only_says_so() -> None:
    rule = LARGE.model_copy(update={"mode": "shadow"})
    tools = Tools(ToolResult(b"x" * 11, outcome="exited"), [("stdout", b"x")])
    shown, events, heard, _ = await call(hooks_of(results=(rule,)), tools)
    finished = next(event.payload for event in events if event.type == "tool_call_finished")
    assert (shown.content, finished["would_be_withheld_by"], heard) == (b"x" * 11, "large", [("stdout", b"x")])


def test_a_policy_that_asks_for_nothing_has_no_hook() -> None:
    assert hooks_of(redaction=RedactionSection(well_known=False)) == ()
    assert [hook.name for hook in hooks_of()] == ["redaction", "redacted-outcome"]
