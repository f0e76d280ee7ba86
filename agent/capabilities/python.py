"""The execute_python tool over a sandbox's interpreter: code whose variables stay for the next call.

What the model reads is what the code wrote, then the objects it showed, then its traceback. Images become files of the
workspace. A service gets the parts apart, in `structured`.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field, JsonValue, create_model

from agent.capabilities.media_format import media_of
from agent.filesystem import CellResult, FileSystem, OnOutput, OutputPiece, Redacted, joined
from agent.messages import Attachment, ToolResult
from agent.tool_call import CallContext
from agent.tools.eviction import OUTPUT_DIRECTORY, Eviction, file_name, hide_from_git
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

TOOL = "execute_python"
_CODE_LIMIT_CHARS = 200_000
IMAGE_LIMIT_BYTES = 4 * 1024 * 1024
_IMAGES_LIMIT = 8
_DESCRIPTION = (
    "Run Python code in /workspace; gives its output, the value of its last expression, and its traceback. Variables "
    "and imports stay for the next call with the same context, as in a notebook, until the interpreter ends; the "
    "result says when a new one was started. Figures and images that the code shows are kept as files. input() is not "
    "available."
)


class PythonShell(Protocol):
    """Runs code in the interpreter of a context; cancelling the await interrupts it."""

    async def run_python(
        self,
        code: str,
        *,
        interpreter: str,
        restart: bool,
        timeout_s: float,
        live_limit_bytes: int,
        on_output: OnOutput | None = None,
        context: CallContext | None = None,
    ) -> CellResult: ...


class PythonFiles(PythonShell, FileSystem, Protocol):
    """An interpreter, and the files beside it."""


class _Code(ToolArguments):
    code: str = Field(
        "", max_length=_CODE_LIMIT_CHARS, description="the code; without it, restart only ends the interpreter"
    )
    context: str = Field(
        "default", pattern=r"^[A-Za-z0-9_-]{1,32}$", description="which interpreter; each has variables of its own"
    )
    restart: bool = Field(False, description="end the interpreter first: what it runs, and its variables, are lost")


@dataclass(frozen=True)
class _Python:
    workspace: PythonFiles
    limits: Eviction
    shows_images: bool

    async def execute_python(self, asked: Any, context: ToolContext) -> ToolResult:
        if not asked.code and not asked.restart:
            return ToolResult.error("code is missing; it may be left out only with restart: true")
        done = await self.workspace.run_python(
            asked.code,
            interpreter=asked.context,
            restart=asked.restart,
            timeout_s=asked.timeout_s,
            live_limit_bytes=self.limits.limit_chars,
            on_output=context.on_output,
            context=context.hooks,
        )
        images = _Images(self.workspace, context.call_id)
        paths = [await images.keep(one.image) for one in done.objects]
        objects = [_line(one.texts, path) for one, path in zip(done.objects, paths, strict=True)]
        trace = done.error.traceback if done.error is not None else ""
        parts = [_output(done), *(part.encode("utf-8", "replace") for part in (*objects, trace) if part)]
        shown = self._ends((*done.output, *done.tail))
        return ToolResult(
            joined(_on_lines_of_their_own(parts)),
            outcome=done.outcome,
            is_error=done.outcome != "completed",
            exit_code=done.exit_code,
            stdout=joined(piece.data for piece in shown if piece.stream == "stdout"),
            stderr=joined(piece.data for piece in shown if piece.stream == "stderr"),
            note="\n".join(f"[{note}]" for note in (*done.notes, *images.problems, *_left_out(done))),
            attachments=tuple(images.kept) if self.shows_images else (),
            structured=_structured(asked.context, done, paths),
        )

    def _ends(self, pieces: Sequence[OutputPiece]) -> Sequence[OutputPiece]:
        """Return the output, of one that is evicted the first and the last pieces."""
        limits = self.limits
        if sum(len(piece.data) for piece in pieces) <= limits.limit_chars:
            return pieces
        return (*_first(pieces, limits.head_chars), *_first(pieces[::-1], limits.tail_chars)[::-1])


class _Images:
    """The images of one call, each kept as a file."""

    def __init__(self, files: FileSystem, call_id: str) -> None:
        self.kept: list[Attachment] = []
        self.problems: list[str] = []
        self._files = files
        self._call_id = call_id

    async def keep(self, data: bytes) -> str | None:
        """Keep an image and return its path; None where there is none, or it is not kept."""
        if not data:
            return None
        try:
            if len(self.kept) >= _IMAGES_LIMIT or len(data) > IMAGE_LIMIT_BYTES:
                raise ValueError(f"is one of more than {_IMAGES_LIMIT}, or larger than {IMAGE_LIMIT_BYTES:,} bytes")
            media = media_of(data)
            suffix = media.media_type.rpartition("/")[2]
            path = f"{OUTPUT_DIRECTORY}/{file_name(self._call_id)}-{len(self.kept) + 1}.{suffix}"
            await self._files.write(path, data)
            if not self.kept:
                await hide_from_git(self._files)
        except Exception as error:  # damaged, a full disk, a lost sandbox: the code did run, and the rest is shown
            said = " ".join((str(error) or type(error).__name__).split())[:200]
            why = f"it {said}" if isinstance(error, ValueError) else said
            self.problems.append(f"an image was not kept: {why}")
            return None
        sha256 = hashlib.sha256(data).hexdigest()
        kept = Attachment(path=path, media_type=media.media_type, size_bytes=len(data), sha256=sha256)
        self.kept.append(kept)
        return path


def python(
    workspace: PythonFiles,
    *,
    eviction: Eviction | None = None,
    timeout_s: float = 120.0,
    max_timeout_s: float = 600.0,
    shows_images: bool = True,
) -> Capability:
    """Return the execute_python tool; a call may set its timeout, up to `max_timeout_s`.

    With `shows_images` the images are attached to the result, for models and services that take them.
    """
    run = _Python(workspace, eviction or Eviction(), shows_images).execute_python
    tool = Tool(TOOL, _DESCRIPTION, _arguments(timeout_s, max_timeout_s), run, writes_anywhere=True)
    return Capability("python", tools=(tool,))


# Typed, because 120 and 120.0 differ in the JSON Schema.
@functools.lru_cache(128, typed=True)
def _arguments(timeout_s: float, max_timeout_s: float) -> type[_Code]:
    """Return the model of the tool's arguments."""
    seconds = "seconds after which the code is interrupted"
    field = Field(timeout_s, gt=0, le=max_timeout_s, description=seconds)
    return create_model("ExecutePythonArguments", __base__=_Code, timeout_s=(float, field))


def _output(done: CellResult) -> bytes:
    """Return what the code wrote, both streams in order of arrival."""
    head, tail = (joined(piece.data for piece in pieces) for pieces in (done.output, done.tail))
    if not done.left_out_bytes:
        return head
    return joined((head, Redacted(b"\n[... %d bytes left out ...]\n" % done.left_out_bytes), tail))


def _line(texts: Any, path: str | None) -> str:
    """Return an object as the model reads it."""
    text = texts.get("text/plain", "")
    return f"{text}\n[image: {path}]" if path is not None else str(text)


def _on_lines_of_their_own(parts: Sequence[bytes]) -> Iterable[bytes]:
    before = b""
    for part in filter(None, parts):
        if before and not before.endswith(b"\n"):
            yield Redacted(b"\n")
        yield part
        before = part


def _first(pieces: Iterable[OutputPiece], limit_bytes: int) -> list[OutputPiece]:
    """Return the first whole pieces within a size."""
    kept: list[OutputPiece] = []
    for piece in pieces:
        limit_bytes -= len(piece.data)
        if limit_bytes < 0:
            break
        kept.append(piece)
    return kept


def _left_out(done: CellResult) -> Iterable[str]:
    if done.left_out_objects:
        yield f"{done.left_out_objects} objects were too many or too large, and are left out"


def _structured(context: str, done: CellResult, paths: Sequence[str | None]) -> JsonValue:
    error = done.error
    return {
        "context": context,
        "execution_count": done.count,
        "results": [
            {"texts": dict(one.texts), "image": path, "is_main_result": one.is_result}
            for one, path in zip(done.objects, paths, strict=True)
        ],
        "error": None if error is None else {"name": error.name, "value": error.value, "traceback": error.traceback},
    }
