"""`airlock tool`: list the tools, or call one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from gateway.cli.command import Commands, GatewayCli, InThread, json_object
from gateway.cli.printable import Rows
from gateway.cli.terminal import EXIT_DENIED, EXIT_NOT_RUN, EXIT_TIMED_OUT, SafeBytes, SafeText, err, out

if TYPE_CHECKING:
    from gateway.client import ToolResult

_STREAMS = ("stdout", "stderr")


class LiveOutput:
    """Collects output and, from a second after the block was entered, prints it in order of arrival."""

    def __init__(self, quiet_s: float = 1.0) -> None:
        self._quiet_s = quiet_s
        self._pending: list[tuple[str, bytes]] | None = []
        # One per stream: a character may be split between two pieces with a piece of the other stream in between.
        self._texts = {stream: SafeText() for stream in _STREAMS}
        self._digests = {stream: hashlib.sha256() for stream in _STREAMS}
        self._column = 0

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._quiet_s, self._show)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._timer.cancel()
        if self._pending is not None:
            return
        for text in self._texts.values():
            self._print(text.add(b"", final=True))
        if self._column:
            self._print("\n")

    def add(self, stream: str, data: bytes) -> None:
        """Add a piece; `stream` is stdout or stderr."""
        if self._pending is not None:
            self._pending.append((stream, data))
            return
        self._digests[stream].update(data)
        self._print(self._texts[stream].add(data))

    def showed(self, result: ToolResult) -> bool:
        """Return whether the terminal already shows the complete result."""
        if self._pending is not None or result.evicted is not None:
            return False
        whole = {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}
        if len(result.content_bytes) != sum(len(data) for data in whole.values()):
            return False
        return all(self._digests[stream].digest() == hashlib.sha256(data).digest() for stream, data in whole.items())

    def _show(self) -> None:
        pending, self._pending = self._pending, None
        for stream, data in pending or ():
            self.add(stream, data)

    def _print(self, text: str) -> None:
        if text:
            self._column = len(text) - text.rfind("\n") - 1
            out.print(text, end="")


app = Commands(help="List and call tools.")


@app.command("list")
async def list_(cli: GatewayCli) -> None:
    """List the tools and their arguments."""
    tools, rows = await cli.airlock.list_tools(), []
    for tool in tools:
        required = set(tool.parameters.get("required", ()))
        names = [name if name in required else f"[{name}]" for name in tool.parameters.get("properties", {})]
        rows.append((tool.name, ", ".join(names), tool.description))
    cli.show(tools, Rows(("tool", "arguments", "description"), rows))


@app.command()
async def call(
    cli: GatewayCli,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    arguments: Annotated[str, typer.Argument(metavar="ARGS", help="Arguments as a JSON object.")] = "{}",
    *,
    thread: InThread = "default",
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Exit with the command's code, 126 if denied, 124 if timed out, 125 on other errors."
        ),
    ] = False,
) -> None:
    """Call a tool and print its result; a terminal shows control characters as visible signs.

    Without --check, the exit code is 0 whenever there is a result, even an error.
    """
    if check:
        cli.failure_code = EXIT_NOT_RUN  # distinct from the command's own codes
    parsed = json_object("ARGS", arguments)
    live = None if cli.as_json or not out.is_terminal else LiveOutput()
    with live or contextlib.nullcontext():
        on_output = None if live is None else live.add
        result = await cli.airlock.call_tool(name, parsed, thread=thread, on_output=on_output)
    cli.show(_as_json(result), lambda _: _show(result, live))
    if check:
        raise typer.Exit(_exit_code(result))


def _exit_code(result: ToolResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    if result.verdict == "deny":
        return EXIT_DENIED
    if result.outcome == "timed_out":
        return EXIT_TIMED_OUT
    return EXIT_NOT_RUN if result.is_error or result.verdict != "allow" else 0


def _show(result: ToolResult, live: LiveOutput | None) -> None:
    if live is None or not live.showed(result):
        content = SafeBytes()
        content.write(result.content_bytes)
        if not result.content_bytes.endswith(b"\n"):
            content.write(b"\n")
        content.end()
    if result.note:
        out.print(result.note, style="yellow")
    style = "red" if result.is_error else "dim"
    ended = result.outcome if result.exit_code is None else f"{result.outcome} {result.exit_code}"
    err.print(f"{result.verdict} by {result.rule} · {ended} · {result.duration_ms:.1f} ms", style=style)


def _as_json(result: ToolResult) -> dict[str, Any]:
    fields: dict[str, Any] = {name: value for name, value in vars(result).items() if not isinstance(value, bytes)}
    fields |= {"content": result.content, "stdout": result.stdout, "stderr": result.stderr}
    if result.content.encode() != result.content_bytes:
        # JSON has no bytes: content that is not UTF-8 is added in base64, beside the readable text.
        fields["content_base64"] = base64.b64encode(result.content_bytes).decode("ascii")
    return fields
