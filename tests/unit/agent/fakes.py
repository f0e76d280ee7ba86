"""Small stand-ins for what the agent is given: a tool executor, a model, a file system and a shell."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, JsonValue

from agent.capabilities.tracing import Attribute, RecordedSpan
from agent.events import Event
from agent.filesystem import EntryType, OnOutput, OutputStream
from agent.hooks.hook import Hook, InferenceRequest
from agent.messages import Message, ToolCall, ToolResult, Usage
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse, ToolExecution
from agent.tool_call import CallContext, JudgedCall
from agent.tools.tool import Tool, ToolContext, ToolExecutor


class Events(list[Event]):
    """A sink that keeps everything."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, type_: str) -> list[dict[str, JsonValue]]:
        """Return the payloads of one type."""
        return [event.payload for event in self if event.type == type_]


class PolicyThat(Hook):
    """An innermost hook made of a function."""

    name = "policy"
    innermost = True
    mandatory = True

    def __init__(self, judge: Callable[[AgentState], AgentState]) -> None:
        self.judge = judge
        self.seen: list[JsonValue] = []

    async def before_tool_use(self, state: AgentState) -> AgentState:
        self.seen.append(dict(state.current.tool.call.arguments or {}))
        return self.judge(state)


def allowing() -> PolicyThat:
    """Return a policy that lets everything pass."""
    return PolicyThat(lambda state: state.proceed("policy", "allow_all", "tests allow everything"))


class AnyArguments(BaseModel):
    """Takes everything."""

    model_config = ConfigDict(extra="allow")


def tool(name: str, run: Callable[[AnyArguments, ToolContext], object], *, writes: bool = False) -> Tool:
    """Return a tool of an async function."""
    return Tool(name, name, AnyArguments, run, writes=writes)  # type: ignore[arg-type]


def call(name: str, id_: str = "c1", **arguments: JsonValue) -> ToolCall:
    """Return a tool call."""
    return ToolCall(id=id_, name=name, arguments=arguments)


def execution_of(asked: ToolCall) -> ToolExecution:
    """Return a call on its way that no hook has seen."""
    return ToolExecution(asked, asked, JudgedCall.of(asked))


async def ran(tools: ToolExecutor, asked: ToolCall) -> ToolResult:
    """Return what comes of a call that nothing judges."""
    return await tools.execute(tools.prepare(asked), ToolContext(asked.id))


def state(**fields: object) -> AgentState:
    """Return a state of a run in thread t."""
    return AgentState(run_id="r1", thread="t", messages=(Message(role="user", content="do it"),)).with_(**fields)


class SaysInTurn:
    """A model that gives its responses one after the other, an exception among them is raised; then the last again."""

    name = "in-turn"

    def __init__(self, *responses: ModelResponse | Exception) -> None:
        self.responses = list(responses)
        self.requests: list[InferenceRequest] = []

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.requests.append(request)
        response = self.responses[min(len(self.requests), len(self.responses)) - 1]
        if isinstance(response, Exception):
            raise response
        on_delta(response.message.content)
        return response


def says(text: str = "", *calls: ToolCall, finish_reason: str = "", output_tokens: int = 1) -> ModelResponse:
    """Return a model's response."""
    return ModelResponse(
        message=Message(role="assistant", content=text, tool_calls=calls),
        finish_reason=finish_reason or ("tool_calls" if calls else "stop"),
        usage=Usage(input_tokens=1, output_tokens=output_tokens),
    )


@dataclass(frozen=True)
class FakeEntry:
    name: str
    type: EntryType = "file"
    size_bytes: int = 0


@dataclass(frozen=True)
class FakeEntries:
    entries: Sequence[FakeEntry]
    total: int
    more: bool
    unsearched: int = 0


@dataclass(frozen=True)
class FakeLines:
    data: bytes
    lines: int
    more: bool
    binary: bool
    size_bytes: int
    next_byte: int
    cut: bool


@dataclass(frozen=True)
class FakeEdit:
    replaced: int
    left: int


@dataclass(frozen=True)
class FakeMatch:
    path: str
    line: int
    text: str


@dataclass(frozen=True)
class FakeMatches:
    matches: Sequence[FakeMatch]
    more: bool
    timed_out: bool = False
    binary_files: int = 0
    hard_linked_files: int = 0
    unsearched: int = 0


class FakeFiles:
    """Files in a dictionary from absolute path to bytes."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})

    def _of(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(f"{path} does not exist; ls shows what is there")
        return self.files[path]

    def _page(self, entries: list[FakeEntry], offset: int, limit: int) -> FakeEntries:
        return FakeEntries(entries[offset : offset + limit], len(entries), offset + limit < len(entries))

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> FakeEntries:
        names = sorted(name for name in self.files if name.rpartition("/")[0] == path)
        return self._page([FakeEntry(n.rpartition("/")[2], "file", len(self.files[n])) for n in names], offset, limit)

    async def stat(self, path: str) -> FakeEntry:
        return FakeEntry(path, "file", len(self._of(path)))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        yield self._of(path)[offset:][:length]

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> FakeLines:
        whole = self._of(path)
        lines = whole.splitlines(keepends=True)
        page = b"".join(lines[offset : offset + limit])
        data = page[:limit_bytes]
        start = len(b"".join(lines[:offset]))
        try:
            binary = b"\0" in data or (not data.decode() and bool(data))
        except UnicodeDecodeError:
            binary = True
        end = start + len(data)
        cut = end < len(whole) and not data.endswith(b"\n")
        return FakeLines(data, len(data.splitlines()), end < len(whole), binary, len(whole), end, cut)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> FakeEntry:
        assert isinstance(data, bytes)
        self.files[path] = data
        return FakeEntry(path, "file", len(data))

    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> FakeEdit:
        found = self._of(path).count(old_text)
        replaced = found if replace_all else min(found, 1)
        self.files[path] = self._of(path).replace(old_text, new_text, replaced)
        return FakeEdit(replaced, found - replaced)

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> FakeEntries:
        names = sorted(name for name in self.files if fnmatchcase(name, f"{path}/{pattern}"))
        return self._page([FakeEntry(name) for name in names], offset, limit)

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> FakeMatches:
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise OSError(f"pattern: {error}") from error
        found = [
            FakeMatch(name, number, line)
            for name in sorted(self.files)
            if name.startswith(path) and fnmatchcase(name, f"*{include}")
            for number, line in enumerate(self.files[name].decode("utf-8", "surrogateescape").splitlines(), 1)
            if wanted.search(line)
        ]
        return FakeMatches(found[offset : offset + limit], offset + limit < len(found))

    async def mkdir(self, path: str) -> None: ...

    async def remove(self, path: str, *, recursive: bool = False) -> None: ...

    async def rename(self, path: str, new_path: str) -> None: ...


@dataclass(frozen=True)
class FakePiece:
    stream: OutputStream
    data: bytes


@dataclass(frozen=True)
class FakeSpill:
    path: str
    size_bytes: int
    lines: int
    sha256: str = "0" * 64
    incomplete: bool = False


@dataclass(frozen=True)
class FakeExec:
    outcome: str = "exited"
    exit_code: int | None = 0
    signal: int | None = None
    output: Sequence[FakePiece] = ()
    tail: Sequence[FakePiece] = ()
    evicted: FakeSpill | None = None
    output_bytes: int = 0
    message: str = ""


@dataclass
class FakeShell:
    """A shell whose every command ends the same way; `commands` and `settings` keep what it was asked."""

    done: FakeExec = field(default_factory=FakeExec)
    commands: list[str] = field(default_factory=list)
    settings: list[dict[str, object]] = field(default_factory=list)
    hangs: bool = False
    killed: int = 0

    async def execute(
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: OnOutput | None = None,
        context: CallContext | None = None,
    ) -> FakeExec:
        self.commands.append(command)
        self.settings.append({"timeout_s": timeout_s, "call_id": call_id, "limit_chars": limit_chars})
        for piece in self.done.output if on_output else ():
            assert on_output is not None
            on_output(piece.stream, piece.data)
        if self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.killed += 1
                raise
        return self.done


async def done(*_: object) -> ToolResult:
    """A tool that succeeds."""
    return ToolResult(b"done")


class ListRecorder:
    """Keeps all spans in the order they started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.spans: list[RecordedSpan] = []
        self._clock = clock

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[RecordedSpan]:
        span = RecordedSpan(name, dict(attributes))
        self.spans.append(span)
        started_s = self._clock()
        try:
            yield span
        finally:
            span.duration_s = self._clock() - started_s


def kinds_of(kind: type[Hook]) -> Iterator[type[Hook]]:
    """Yield all classes derived from a class of hooks."""
    for derived in kind.__subclasses__():
        yield derived
        yield from kinds_of(derived)
