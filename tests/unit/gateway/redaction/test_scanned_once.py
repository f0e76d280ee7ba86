"""Output is scanned for secrets once: where its edges are known, with a margin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from agent.capabilities.bash import Eviction, bash
from agent.events import discard
from agent.hooks.engine import HookEngine
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState
from agent.tools.runner import ToolRunner
from agent.tools.toolbox import Toolbox
from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument, RedactedPattern, RedactionSection, Rule
from gateway.policy.judge import Policy
from gateway.redaction import redactor
from gateway.redaction.hooks import redaction_hooks
from gateway.storage.database import Database
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.redacted_workspace import RedactedWorkspace
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import NewCall
from sandbox.protocols import ExecResult, LinesPage, OutputPiece, OutputStream, SpilledOutput
from tests.unit.gateway.made_parts import made_tool_calls
from tests.unit.gateway.redaction.secrets import B64

RULES = tuple(Rule(id=tool, tools=(tool,), effect="allow", reason="a test") for tool in ("execute", "read_file"))
TENANT = Tenant(
    "acme", Policy(PolicyDocument(version=1, rules=RULES, redaction=RedactionSection())), ModelSettings(), {}
)
OUTPUT = b"MARK " * 6_000
TOKEN = ("gh" + "p_" + B64[:36]).encode()
FILE = OUTPUT * 10


class Sandbox:
    """Prints what it is given, within the limits that it is given, and has one file."""

    def __init__(self, *pieces: OutputPiece) -> None:
        self.pieces = pieces
        self.shell = self.files = self

    def take_ended_processes(self) -> int:
        return 0

    async def execute(
        self,
        command: str,
        *,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: Any = None,
        **_given: Any,
    ) -> ExecResult:
        size = sum(len(piece.data) for piece in self.pieces)
        for piece in _cut(self.pieces, 0, limit_chars) if on_output is not None else ():
            on_output(piece.stream, piece.data)
        if size <= limit_chars:
            return ExecResult("exited", exit_code=0, output=self.pieces, output_bytes=size)
        head = _cut(self.pieces, 0, head_chars)
        tail = _cut(self.pieces, max(head_chars, size - tail_chars), size)
        spilled = SpilledOutput("/workspace/.airlock/output/c.txt", size, 1, "0" * 64, incomplete=False)
        return ExecResult("exited", exit_code=0, output=head, tail=tail, evicted=spilled, output_bytes=size)

    async def read_lines(self, path: str, **_given: Any) -> LinesPage:
        return LinesPage(FILE[60_000:90_000], 1, True, False, len(FILE), 90_000, True)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        yield FILE[offset:][:length]

    @asynccontextmanager
    async def acquire(self, _spec: Any) -> AsyncIterator[Sandbox]:
        yield self


def _cut(pieces: Sequence[OutputPiece], start: int, end: int) -> tuple[OutputPiece, ...]:
    """Return the pieces of a part of an output."""
    kept: list[OutputPiece] = []
    at = 0
    for piece in pieces:
        data = piece.data[max(0, start - at) : max(0, end - at)]
        kept += [OutputPiece(piece.stream, data)] if data else []
        at += len(piece.data)
    return tuple(kept)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep the size of each scan of output."""
    sizes: list[int] = []

    def found_in(data: bytes, section: RedactionSection) -> bool:
        if b"MARK" in data:
            sizes.append(len(data))
        return real(data, section)

    def feed(self: Any, data: bytes) -> bytes:
        if b"MARK" in data:
            sizes.append(len(data))
        return real_feed(self, data)

    real, real_feed = redactor.found_in, redactor.RedactingStream.feed
    monkeypatch.setattr(redactor, "found_in", found_in)
    monkeypatch.setattr(redactor.RedactingStream, "feed", feed)
    return sizes


async def _result(
    sqlite_url: str, sandbox: Sandbox, name: str, arguments: str, on_output: Any = None, tenant: Tenant = TENANT
) -> ToolResult:
    database = await Database.open(sqlite_url)
    try:
        keeper: Any = sandbox
        calls = made_tool_calls(database, keeper)
        return (await calls.call(tenant, NewCall("t", name, arguments, on_output))).result
    finally:
        await database.close()


async def _call(sqlite_url: str, sandbox: Sandbox, name: str, arguments: str, on_output: Any = None) -> bytes:
    return (await _result(sqlite_url, sandbox, name, arguments, on_output)).content


async def test_the_output_of_a_command_is_scanned_once(sqlite_url: str, scanned: list[int]) -> None:
    sandbox = Sandbox(OutputPiece("stdout", OUTPUT))
    assert await _call(sqlite_url, sandbox, "execute", '{"command": "x"}') == OUTPUT
    assert scanned == [len(OUTPUT)]


async def test_a_page_of_a_file_is_scanned_once_with_its_margins(sqlite_url: str, scanned: list[int]) -> None:
    content = await _call(sqlite_url, Sandbox(), "read_file", '{"path": "a"}')
    assert content == FILE[60_000:90_000]
    margin_bytes = redactor.Redactor(RedactionSection()).margin_bytes
    assert len(content) < sum(scanned) <= len(content) + 2 * margin_bytes


async def test_a_secret_of_one_stream_that_the_other_splits_is_masked_in_all_of_the_result(sqlite_url: str) -> None:
    half = len(TOKEN) // 2
    pieces = (
        OutputPiece("stdout", TOKEN[:half]),
        OutputPiece("stderr", b" MARK "),
        OutputPiece("stdout", TOKEN[half:]),
    )
    content = await _call(sqlite_url, Sandbox(*pieces), "execute", '{"command": "x"}')
    assert b" MARK " in content
    assert TOKEN[4:half] not in content
    assert TOKEN[half:] not in content


async def test_a_secret_in_the_whole_output_of_a_command_is_masked_live_and_in_its_result(sqlite_url: str) -> None:
    heard: list[bytes] = []
    sandbox = Sandbox(OutputPiece("stderr", b"a " + TOKEN[:9]), OutputPiece("stderr", TOKEN[9:] + b" b"))
    content = await _call(sqlite_url, sandbox, "execute", '{"command": "x"}', lambda _stream, data: heard.append(data))
    assert b"".join(heard) == content
    assert b"[redacted" in content
    assert len(content) == len(TOKEN) + 4


@pytest.mark.parametrize(
    "name, arguments, ended",
    [("execute", '{"command": "x"}', ("exited", 0)), ("read_file", '{"path": "a"}', ("failed", None))],
)
async def test_what_cannot_be_redacted_is_withheld(
    sqlite_url: str, name: str, arguments: str, ended: tuple[str, int | None]
) -> None:
    unbounded = RedactionSection(patterns=(RedactedPattern(id="wide", pattern="M.*K", longest_chars=1),))
    policy = Policy(PolicyDocument(version=1, rules=RULES, redaction=unbounded))
    heard: list[bytes] = []
    result = await _result(
        sqlite_url,
        Sandbox(OutputPiece("stdout", OUTPUT)),
        name,
        arguments,
        lambda _stream, data: heard.append(data),
        Tenant("acme", policy, ModelSettings(), {}),
    )
    assert result.text().startswith("The result of this call is withheld: it could not be redacted: the pattern 'wide'")
    assert "MARK" not in repr(result)
    assert (result.outcome, result.exit_code) == ended
    assert result.is_error
    assert heard == []


LINES = b"MARK line\n" * 2_500
REDACTOR = redactor.Redactor(RedactionSection())


async def _executed(
    *pieces: tuple[OutputStream, bytes], live: bool = False, limit_chars: int = 80_000, shown_chars: int = 2_000
) -> tuple[ToolResult, bytes]:
    """Run a command in a redacted workspace and the redaction ring; return its result and the live output."""
    sandbox = Sandbox(*(OutputPiece(stream, data) for stream, data in pieces))
    files = RedactedWorkspace(cast(ThreadSandbox, sandbox), REDACTOR)
    toolbox = Toolbox(bash(files, eviction=Eviction(limit_chars, shown_chars, shown_chars)).tools)
    hooks = HookEngine(redaction_hooks(TENANT.policy.document, REDACTOR))
    heard: list[bytes] = []
    on_output = (lambda _stream, data: heard.append(data)) if live else None
    runner = ToolRunner(hooks, toolbox, discard, on_output=on_output)
    call = ToolCall(id="c", name="execute", arguments={"command": "x"})
    state = await runner.run(AgentState(run_id="r", thread="t"), [call])
    result = state.current.tool_executions[0].result
    assert result is not None
    return result, b"".join(heard)


@pytest.mark.parametrize("live", [False, True])
async def test_each_byte_of_two_streams_is_scanned_once(scanned: list[int], *, live: bool) -> None:
    result, heard = await _executed(("stdout", LINES), ("stderr", LINES), ("stdout", LINES), live=live)
    assert sum(scanned) == 3 * len(LINES) == len(result.content)
    assert (result.stdout, result.stderr) == (2 * LINES, LINES)
    assert heard == (3 * LINES if live else b"")


async def test_where_a_stream_takes_over_within_a_line_a_few_bytes_are_scanned_twice(scanned: list[int]) -> None:
    result, _ = await _executed(("stdout", OUTPUT), ("stderr", OUTPUT))
    assert result.content == 2 * OUTPUT
    assert sum(scanned) == 2 * len(OUTPUT) + 2 * REDACTOR.sign_bytes


@pytest.mark.parametrize("live", [False, True])
async def test_head_and_tail_of_evicted_output_are_scanned_once_with_their_margins(
    scanned: list[int], *, live: bool
) -> None:
    result, heard = await _executed(("stdout", 10 * LINES), ("stderr", 10 * LINES), live=live)
    assert result.evicted is not None
    assert (result.stdout, result.stderr) == (LINES[:2_000], LINES[-2_000:])
    page_bytes = 2_000 + REDACTOR.margin_bytes
    # The head is the beginning of the live output, which is limited.
    assert sum(scanned) == (80_000 if live else page_bytes) + page_bytes
    assert len(heard) == (80_000 if live else 0)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("streams", [("stdout", "stdout"), ("stdout", "stderr"), ("stderr", "stdout")])
async def test_a_secret_split_at_any_boundary_of_the_output_is_masked(
    streams: tuple[OutputStream, OutputStream], *, live: bool
) -> None:
    for cut in range(1, len(TOKEN)):
        result, heard = await _executed((streams[0], b"a " + TOKEN[:cut]), (streams[1], TOKEN[cut:] + b" b"), live=live)
        shown = result.content + (heard if streams[0] == streams[1] else b"")
        assert TOKEN[cut:] not in shown
        assert TOKEN[4:] not in shown
        assert b"[redacted" in shown


async def test_a_secret_that_streams_spell_in_turns_is_masked_in_what_is_shown() -> None:
    for size in (1, 3, 7):
        parts = [TOKEN[at : at + size] for at in range(0, len(TOKEN), size)]
        streams: tuple[OutputStream, OutputStream] = ("stdout", "stderr")
        result, _ = await _executed(*((streams[number % 2], part) for number, part in enumerate(parts)))
        assert result.content[4:].startswith(b"[redacted")
    header = b"-----BEGIN PRIVATE " + b"KEY-----\n"
    lines = [f"{B64[:40]}\n".encode() for _ in range(12)]
    result, _ = await _executed(("stdout", header), *((streams[n % 2], line) for n, line in enumerate(lines)))
    assert lines[0][:8] not in result.content


@pytest.mark.parametrize("live", [False, True])
async def test_a_secret_at_the_edge_of_head_or_tail_is_masked(*, live: bool) -> None:
    for cut in range(1, len(TOKEN)):
        before = b"-" * (99 - cut) + b" " + TOKEN
        after = TOKEN + b" " + b"-" * (99 - cut)
        middle = b" " * 40_000
        pieces: list[tuple[OutputStream, bytes]] = [("stdout", before + middle), ("stderr", middle + after)]
        result, heard = await _executed(*pieces, live=live, limit_chars=30_000, shown_chars=100)
        assert result.evicted is not None
        for shown in (result.content, result.stdout, result.stderr, heard):
            assert not any(TOKEN[at : at + 4] in shown for at in range(4, len(TOKEN) - 3))
