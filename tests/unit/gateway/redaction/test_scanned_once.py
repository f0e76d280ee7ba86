"""Output is scanned for secrets once: where its edges are known, with a margin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument, RedactionSection, Rule
from gateway.policy.judge import Policy
from gateway.redaction import redactor
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from sandbox.filesystem import ExecResult, LinesPage, OutputPiece
from tests.unit.gateway.made_parts import made_quotas
from tests.unit.gateway.redaction.secrets import B64

RULES = tuple(Rule(id=tool, tools=(tool,), effect="allow", reason="a test") for tool in ("execute", "read_file"))
TENANT = Tenant(
    "acme", Policy(PolicyDocument(version=1, rules=RULES, redaction=RedactionSection())), ModelSettings(), {}
)
OUTPUT = b"MARK " * 6_000
TOKEN = ("gh" + "p_" + B64[:36]).encode()
FILE = OUTPUT * 10


class Sandbox:
    """Prints what it is given, and has one file."""

    def __init__(self, *pieces: OutputPiece) -> None:
        self.pieces = pieces
        self.shell = self.files = self

    def take_ended_processes(self) -> int:
        return 0

    async def execute(self, command: str, *, on_output: Any = None, **_given: Any) -> ExecResult:
        for piece in self.pieces if on_output is not None else ():
            on_output(piece.stream, piece.data)
        return ExecResult("exited", exit_code=0, output=self.pieces, output_bytes=sum(len(p.data) for p in self.pieces))

    async def read_lines(self, path: str, **_given: Any) -> LinesPage:
        return LinesPage(FILE[60_000:90_000], 1, True, False, len(FILE), 90_000, True)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        yield FILE[offset:][:length]

    @asynccontextmanager
    async def acquire(self, _spec: Any) -> AsyncIterator[Sandbox]:
        yield self


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep the size of each scan of output."""
    sizes: list[int] = []

    def found_in(data: bytes, **given: Any) -> bool:
        if b"MARK" in data:
            sizes.append(len(data))
        return real(data, **given)

    def feed(self: Any, data: bytes) -> bytes:
        if b"MARK" in data:
            sizes.append(len(data))
        return real_feed(self, data)

    real, real_feed = redactor.found_in, redactor.RedactingStream.feed
    monkeypatch.setattr(redactor, "found_in", found_in)
    monkeypatch.setattr(redactor.RedactingStream, "feed", feed)
    return sizes


async def _call(sqlite_url: str, sandbox: Sandbox, name: str, arguments: str, on_output: Any = None) -> bytes:
    database = await Database.open(sqlite_url)
    try:
        keeper: Any = sandbox
        calls = ToolCalls(Store(database), keeper, approvals=ApprovalStore(database), quotas=made_quotas(database))
        return (await calls.call(TENANT, NewCall("t", name, arguments, on_output))).result.content
    finally:
        await database.close()


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
