from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.document import RedactionSection
from gateway.redaction.command_output import KeptRedaction, redacted_pieces
from gateway.redaction.redactor import NO_SECRETS, Redactor
from gateway.tool_calls.redacted_workspace import ProcessReader, RedactedWorkspace
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.engines.local.local_fs import LocalFS
from sandbox.interpreter.cell import CellResult
from sandbox.protocols import ExecResult, GrepMatch, GrepPage, OutputPiece, OutputStream, ProcessPage, SpilledOutput
from tests.examples import examples
from tests.turns import turns
from tests.unit.gateway.redaction.secrets import B64, PEM

TOKEN = "gh" + "p_" + B64[:36]
REDACTOR = Redactor(RedactionSection())
TEXT = f"{'x' * 30} {TOKEN}\n{PEM}end {TOKEN} of it\n{'z' * 300}\n".encode()


def workspace(root: Path) -> RedactedWorkspace:
    return RedactedWorkspace(cast(ThreadSandbox, LocalFS(root)), REDACTOR)


@pytest.mark.parametrize("size", range(1, 41))
async def test_pages_of_bytes_put_together_are_the_file_redacted(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(TEXT)
    files = workspace(tmp_path)
    pages = [
        b"".join([piece async for piece in files.read("/workspace/f", offset=at, length=size)])
        for at in range(0, len(TEXT), size)
    ]
    assert b"".join(pages) == await REDACTOR.redact(TEXT)
    assert all(len(page) <= size for page in pages)
    rest = b"".join([piece async for piece in files.read("/workspace/f", offset=7)])
    assert rest == (await REDACTOR.redact(TEXT))[7:]


@pytest.mark.parametrize("limit_bytes", [1, 5, 20, 64, 65_536])
async def test_pages_of_lines_show_what_the_file_redacted_shows(tmp_path: Path, limit_bytes: int) -> None:
    (tmp_path / "f").write_bytes(TEXT)
    redacted = await REDACTOR.redact(TEXT)
    for line in range(TEXT.count(b"\n") + 1):
        page = await workspace(tmp_path).read_lines("/workspace/f", offset=line, limit=2, limit_bytes=limit_bytes)
        assert page.data == redacted[page.next_byte - len(page.data) : page.next_byte]


async def test_a_file_of_one_long_line_is_read_by_pages_too(tmp_path: Path) -> None:
    text = (b"a=1;" * 5000 + TOKEN.encode() + b";") * 4
    (tmp_path / "f").write_bytes(text)
    pages = [
        b"".join([piece async for piece in workspace(tmp_path).read("/workspace/f", offset=at, length=20_010)])
        for at in range(0, len(text), 20_010)
    ]
    assert b"".join(pages) == await REDACTOR.redact(text)


class RunsCode:
    """A sandbox whose interpreter wrote more than is kept."""

    async def run_python(self, code: str, *, on_output: Any = None, **_: Any) -> CellResult:
        secret = TOKEN.encode()
        head, tail = b"a " + secret + b" b " + secret[:20], secret[20:] + b" c"
        on_output("stdout", head)
        output, end = (OutputPiece("stdout", head),), (OutputPiece("stdout", tail),)
        return CellResult("completed", output=output, tail=end, left_out_bytes=5)


async def test_a_secret_that_the_gap_in_the_output_of_code_cuts_in_two_is_in_neither_half() -> None:
    live: list[bytes] = []
    done = await RedactedWorkspace(cast(ThreadSandbox, RunsCode()), REDACTOR).run_python(
        "x",
        interpreter="default",
        restart=False,
        timeout_s=1,
        live_limit_bytes=1000,
        on_output=lambda _stream, data: live.append(data),
    )
    head, tail = (b"".join(piece.data for piece in pieces) for pieces in (done.output, done.tail))
    assert (b"[redacted github-token]" in head, tail.endswith(b" c")) == (True, True)
    for text in (head, tail, b"".join(live)):
        assert TOKEN[4:16].encode() not in text
        assert TOKEN[24:].encode() not in text


class Says:
    """A sandbox whose command said something long."""

    def __init__(self, said: bytes) -> None:
        self.said = said

    async def execute(
        self, command: str, *, limit_chars: int, head_chars: int, tail_chars: int, **_: Any
    ) -> ExecResult:
        assert head_chars <= limit_chars
        said = self.said
        spilled = SpilledOutput("/workspace/.airlock/output/c.txt", len(said), 1, "0" * 64, False)
        tail = said[max(head_chars, len(said) - tail_chars) :]
        return ExecResult(
            "exited",
            exit_code=0,
            output=(OutputPiece("stdout", said[:head_chars]),),
            tail=(OutputPiece("stdout", tail),),
            evicted=spilled,
            output_bytes=len(said),
        )


@pytest.mark.parametrize("limit_chars", [100, 110, 1000, 80_000])
async def test_no_part_of_a_secret_stays_at_the_edges_of_an_excerpt(limit_chars: int) -> None:
    for place in range(60):
        middle = b" " * 200_000
        said = b"a " * (place // 2) + b" " + TOKEN.encode() + middle + TOKEN.encode() + b" b" * (place // 2)
        files = RedactedWorkspace(cast(ThreadSandbox, Says(said)), REDACTOR)
        done = await files.execute("x", timeout_s=1, call_id="c", limit_chars=limit_chars, head_chars=50, tail_chars=50)
        head, tail = (b"".join(piece.data for piece in pieces) for pieces in (done.output, done.tail))
        assert (len(head), len(tail)) == (50, 50)
        for at in range(33):
            assert B64[at : at + 3].encode() not in head + b"|" + tail


@pytest.mark.parametrize("limit_chars", [1000, 1100, 5000, 80_000])
async def test_no_line_of_a_private_key_comes_out_in_a_tail_whatever_the_limits_are(limit_chars: int) -> None:
    for size, lines in ((2, b"x\n" * 100_000), (5000, b""), (0, b"")):
        for after in (0, 100, 400):
            said = lines + b"-" * size + PEM.encode() + b"y" * after
            files = RedactedWorkspace(cast(ThreadSandbox, Says(said)), REDACTOR)
            done = await files.execute(
                "x", timeout_s=1, call_id="c", limit_chars=limit_chars, head_chars=500, tail_chars=500
            )
            shown = b"".join(piece.data for piece in (*done.output, *done.tail))
            assert b"MIIE" not in shown
            assert B64[20:28].encode() not in shown


async def test_an_output_just_over_a_small_limit_is_shown_as_head_and_tail_of_the_whole() -> None:
    said = bytes(range(65, 91)) * 50
    files = RedactedWorkspace(cast(ThreadSandbox, Says(said)), REDACTOR)
    done = await files.execute("x", timeout_s=1, call_id="c", limit_chars=1000, head_chars=500, tail_chars=500)
    assert b"".join(piece.data for piece in done.output) == said[:500]
    assert b"".join(piece.data for piece in done.tail) == said[-500:]


@pytest.mark.parametrize("width", [8, 16, 24, 39, 64])
async def test_grep_shows_no_line_of_a_private_key_however_narrow_it_is(tmp_path: Path, width: int) -> None:
    key = B64 * 4
    lines = [key[at : at + width] for at in range(0, len(key), width)]
    begin, end = "-----BEGIN PRIVATE " + "KEY-----", "-----END PRIVATE KEY-----"
    (tmp_path / "key").write_text("\n".join(["before", begin, *lines, end, "a word after it"]))
    for number in range(10):
        (tmp_path / f"plain{number}").write_text(f"a word, {B64[:39]}\n{B64}\n" * 5)
    shown = await workspace(tmp_path).grep("/workspace/key", ".")
    assert [match.text for match in shown.matches][-1] == "a word after it"
    assert not any(line in match.text for match in shown.matches for line in lines)
    shown = await workspace(tmp_path).grep("/workspace", "[A-Za-z]", include="plain*")
    assert {match.text for match in shown.matches} == {f"a word, {B64[:39]}", B64}


class Lines:
    """Files that only grep can read: matches of one pattern, and headers of private keys."""

    def __init__(self, matches: Sequence[GrepMatch], headers: Sequence[GrepMatch]) -> None:
        self.matches, self.headers = tuple(matches), tuple(headers)

    async def grep(self, path: str, pattern: str, **_: Any) -> GrepPage:
        if "BEGIN" not in pattern:
            return GrepPage(self.matches, False, False, 0)
        return GrepPage(tuple(header for header in self.headers if header.path == path), False, False, 0)

    async def read_lines(self, path: str, **_: Any) -> Any:
        raise OSError(path)


@pytest.mark.parametrize(
    "line, long, masked",
    [
        (4, False, False),
        (5, False, False),
        (5, True, True),
        (6, False, True),
        (4101, False, True),
        (4102, False, False),
        (8999, True, False),
        (9000, False, False),
        (9000, True, True),
        (9001, False, True),
    ],
)
async def test_grep_masks_what_may_be_of_a_key_that_begins_above_in_the_same_file(
    line: int, long: bool, masked: bool
) -> None:
    text = "aaaa " * 200 if long else "aaaa bbbb"
    headers = [GrepMatch("/f", 9000, "x"), GrepMatch("/f", 5, "x"), GrepMatch("/g", line - 1, "x")]
    files = RedactedWorkspace(cast(ThreadSandbox, Lines([GrepMatch("/f", line, text)], headers)), REDACTOR)
    (match,) = (await files.grep("/", "a")).matches
    assert match.text.strip("*").endswith("bbbb" if not long else "aaaa ") is not masked


class Compared(int):
    """The number of a line, which counts how often it is compared."""

    times = 0

    def __lt__(self, other: int) -> bool:
        Compared.times += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Compared.times += 1
        return int(self) > other


async def test_grep_does_not_compare_each_match_with_each_header_of_a_key() -> None:
    matches = [GrepMatch("/f", line, "aaaa") for line in range(1, 1001)]
    headers = [GrepMatch("/f", Compared(line), "-----BEGIN PRIVATE KEY") for line in range(2001, 3001)]
    files = RedactedWorkspace(cast(ThreadSandbox, Lines(matches, headers)), REDACTOR)
    assert len((await files.grep("/", "a")).matches) == 1000
    assert 0 < Compared.times < 20_000  # a million pairs


async def test_grep_looks_through_many_matches_off_the_event_loop() -> None:
    on_loop: list[bytes] = []
    loop_thread = threading.get_ident()

    class Looks(Redactor):
        def finds(self, data: bytes) -> bool:
            if threading.get_ident() == loop_thread:
                on_loop.append(data)
            return super().finds(data)

    async def work(function: Callable[..., Any], /, *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    matches = [GrepMatch("/f", line, f"a {TOKEN}" if line == 70 else "a b") for line in range(1, 321)]
    redactor = Looks(RedactionSection(), work)
    files = RedactedWorkspace(cast(ThreadSandbox, Lines(matches, [])), redactor)
    shown = (await files.grep("/", "a")).matches
    assert [one.line for one in shown if one.text != "a b"] == [70]
    assert TOKEN not in shown[69].text
    assert on_loop == [f"a {TOKEN}".encode()]


async def test_others_run_while_grep_masks_many_lines_that_it_cannot_read_in_their_file() -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    matches = [GrepMatch("/f", line, "aaaa") for line in range(2, 322)]
    files = RedactedWorkspace(cast(ThreadSandbox, Lines(matches, [GrepMatch("/f", 1, "x")])), REDACTOR)
    counting = asyncio.create_task(count())
    shown = await files.grep("/", "a")
    counting.cancel()
    assert {match.text for match in shown.matches} == {"[red"}
    assert rounds >= 10


@examples(50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_pieces_of_streams_come_apart_as_they_were(sizes: Sequence[int]) -> None:
    data = TOKEN.encode() * 2
    pieces: list[OutputPiece] = []
    at = 0
    streams: tuple[OutputStream, OutputStream] = ("stdout", "stderr")
    for place, size in enumerate(sizes):
        pieces.append(OutputPiece(streams[place % 2], data[at // 2 : at // 2 + size]))
        at += size
    redacted = asyncio.run(redacted_pieces(KeptRedaction(REDACTOR), pieces))
    assert [(piece.stream, len(piece.data)) for piece in redacted] == [
        (piece.stream, len(piece.data)) for piece in pieces
    ]


async def test_the_event_loop_runs_while_very_many_pieces_are_redacted() -> None:
    streams: tuple[OutputStream, OutputStream] = ("stdout", "stderr")
    text = f"{TOKEN} ".encode() * 300
    pieces = [OutputPiece(streams[place % 2], text[place : place + 1]) for place in range(10_000)]
    async with turns() as counted:
        redacted = await redacted_pieces(KeptRedaction(REDACTOR), pieces)
        assert counted.count >= 50  # five loops over the pieces
    assert TOKEN.encode() not in b"".join(piece.data for piece in redacted)
    assert [(piece.stream, len(piece.data)) for piece in redacted] == [
        (piece.stream, len(piece.data)) for piece in pieces
    ]


class Process:
    """A background process that has said something, and runs or not."""

    def __init__(self, said: bytes, *, end: bool) -> None:
        self.said, self.end = said, end

    async def read_process(
        self, process_id: str, *, stderr: bool, offset: int, limit_bytes: int = 10, wait_s: float
    ) -> ProcessPage:
        data = self.said[offset : offset + limit_bytes]
        return ProcessPage(data, offset, self.end and offset + len(data) == len(self.said), len(self.said))


async def read_on(reader: ProcessReader) -> bytes:
    shown = b""
    while page := await reader.read("p", stderr=False, offset=len(shown), wait_s=0):
        if not page.data:
            break
        shown += page.data
    return shown


async def test_output_of_a_process_is_redacted_across_pages_and_waits_for_the_rest_of_a_token() -> None:
    said = f"say {TOKEN} x\n$ gh".encode()
    process = cast(ThreadSandbox, Process(said, end=True))
    assert await read_on(ProcessReader(process, NO_SECRETS)) == said
    assert await read_on(ProcessReader(process, REDACTOR)) == await REDACTOR.redact(said)
    half = f"say {TOKEN[:20]}".encode()
    assert await read_on(ProcessReader(cast(ThreadSandbox, Process(half, end=False)), REDACTOR)) == half[:8]


class Speaking(Process):
    """A process that is read as the daemon reads one: it waits for a byte at the offset, and no longer."""

    def __init__(self, said: bytes) -> None:
        super().__init__(said, end=False)
        self.reads = 0
        self.news = asyncio.Condition()

    async def read_process(
        self, process_id: str, *, stderr: bool, offset: int, limit_bytes: int = 10, wait_s: float
    ) -> ProcessPage:
        self.reads += 1
        if wait_s:
            async with self.news:
                await self.news.wait_for(lambda: self.end or offset < len(self.said))
        return await super().read_process(
            process_id, stderr=stderr, offset=offset, limit_bytes=limit_bytes, wait_s=wait_s
        )

    async def say(self, said: bytes, *, end: bool = False) -> None:
        async with self.news:
            self.said, self.end = self.said + said, end
            self.news.notify_all()


@pytest.mark.parametrize("rest, end", [("token", False), (" x", False), ("", True)])
async def test_what_may_be_the_start_of_a_secret_is_not_read_again_until_more_is_said(rest: str, end: bool) -> None:
    process = Speaking(f"say {TOKEN[:6]}".encode())
    reader = ProcessReader(cast(ThreadSandbox, process), REDACTOR)
    assert (await reader.read("p", stderr=False, offset=0, wait_s=20)).data == b"say ghp_"
    reads = process.reads
    reading = asyncio.create_task(reader.read("p", stderr=False, offset=8, wait_s=20))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not reading.done()
    assert process.reads <= reads + 4
    await process.say(rest.replace("token", f"{TOKEN[6:]} x").encode(), end=end)
    page = await reading
    assert page.data == (await REDACTOR.redact(process.said))[8:][: len(page.data)] != b""


async def test_a_process_whose_first_output_is_lost_does_not_show_the_rest_of_a_key() -> None:
    class Lost(Process):
        async def read_process(self, process_id: str, *, offset: int, **asked: Any) -> ProcessPage:
            return await super().read_process(process_id, offset=max(offset, 200), **asked)

    said = f"{PEM}and then\n".encode()
    page = await ProcessReader(cast(ThreadSandbox, Lost(said, end=True)), REDACTOR).read(
        "p", stderr=False, offset=0, wait_s=0
    )
    assert page.offset == 200
    assert said[200 : 200 + len(page.data)] != page.data
    assert page.data.strip(b"*").startswith(b"[redacted")
