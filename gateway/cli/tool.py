"""`airlock tool`: list the tools, call one."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.safe_console import SafeBytes
from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_DENIED,
    EXIT_INTERRUPTED,
    EXIT_NOT_RUN,
    EXIT_TIMED_OUT,
    EXIT_USAGE,
    Address,
    Json,
    Key,
    err,
    fail,
    out,
    print_json,
    run_client,
)

if TYPE_CHECKING:
    from gateway.cli.live_output import LiveOutput
    from gateway.client import Tool, ToolResult

app = typer.Typer(help="Tools, called one by one.", no_args_is_help=True)


@app.command("list")
def list_(*, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """List the tools and their arguments."""

    async def work() -> Sequence[Tool]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.list_tools()

    tools = run_client(work(), as_json=as_json)
    if as_json:
        print_json([asdict(tool) for tool in tools])
        return
    from gateway.cli.rows import Rows

    rows = []
    for tool in tools:
        required = set(tool.parameters.get("required", ()))
        names = [name if name in required else f"[{name}]" for name in tool.parameters.get("properties", {})]
        rows.append((tool.name, ", ".join(names), tool.description))
    out.print(Rows(("tool", "arguments", "what it does"), rows))


@app.command()
def call(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    arguments: Annotated[str, typer.Argument(metavar="ARGS", help="Arguments as a JSON object.")] = "{}",
    *,
    thread: Annotated[str, typer.Option(help="Thread whose sandbox runs it.")] = "default",
    check: Annotated[
        bool, typer.Option("--check", help="Exit with the command's code; 126 denied, 124 timed out, 125 other errors.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Call a tool and print its result: its bytes as they are, or on a terminal without control characters.

    Without --check the exit code is 0 when there is a result, whatever it says.
    """
    wrong = EXIT_NOT_RUN if check else EXIT_USAGE
    try:
        parsed = json.loads(arguments)
    except ValueError as error:
        fail(f"ARGS is not JSON: {error}", wrong, as_json=as_json)
    if not isinstance(parsed, dict):
        fail('ARGS: a JSON object is expected, such as \'{"path": "/workspace"}\'', wrong, as_json=as_json)

    async def work() -> ToolResult:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            if live is None:
                return await airlock.call_tool(name, parsed, thread=thread)
            with live:
                return await airlock.call_tool(name, parsed, thread=thread, on_output=live.add)

    live = None if as_json or not out.is_terminal else _live_output()
    try:
        result = run_client(work(), as_json=as_json)
    except typer.Exit as ended:
        if not check or ended.exit_code == EXIT_INTERRUPTED:
            raise
        raise typer.Exit(EXIT_NOT_RUN) from None  # not with what the command might have exited with
    if as_json:
        print_json(_as_json(result))
    else:
        _show(result, live)
    if check:
        raise typer.Exit(_exit_code(result))


def _exit_code(result: ToolResult) -> int:
    """Return what --check exits with."""
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
    err.print(f"{result.verdict} by {result.rule} · {ended} · {result.duration_ms:.1f} ms", style=style, markup=False)


def _live_output() -> LiveOutput:
    from gateway.cli.live_output import LiveOutput

    return LiveOutput()


def _as_json(result: ToolResult) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "call_id": result.call_id,
        "thread": result.thread,
        "verdict": result.verdict,
        "rule": result.rule,
        "reason": result.reason,
        "outcome": result.outcome,
        "exit_code": result.exit_code,
        "content": result.content,
        "is_error": result.is_error,
        "evicted": None if result.evicted is None else asdict(result.evicted),
        "duration_ms": result.duration_ms,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "note": result.note,
        "approval_id": result.approval_id,
        "policy_version": result.policy_version,
        "edited_arguments": result.edited_arguments,
    }
    if result.content.encode() != result.content_bytes:
        # JSON has no bytes: what is not UTF-8 comes exact beside the readable text.
        fields["content_base64"] = base64.b64encode(result.content_bytes).decode("ascii")
    return fields
