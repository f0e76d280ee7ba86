"""`airlock process start`: a program in the background of a thread's sandbox."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.command import GatewayCli
from gateway.cli.terminal import err, fail

START_SETTINGS = {"allow_interspersed_args": False}
"""What follows the program's name is the program's, also where it looks like an option."""


async def start(
    cli: GatewayCli,
    argv: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM [ARGS]...", help="The command and its arguments; no shell interprets them."),
    ],
    *,
    thread: Annotated[str, typer.Option(help="Thread in whose sandbox it runs.")] = "default",
    process_id: Annotated[str, typer.Option("--id", help="What to call it; one is made unless given.")] = "",
    cwd: Annotated[str, typer.Option(help="Where it runs; /workspace unless given.")] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An environment variable; can be given several times."),
    ] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Give it a terminal.")] = False,
    merge_stderr: Annotated[
        bool, typer.Option("--merge-stderr", help="Send its errors where its output goes.")
    ] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", help="End it after so many seconds; never unless given.")
    ] = None,
) -> None:
    """Start a program in the background, judged by policy as the command line it would be, and print its id."""
    started = await cli.airlock.start_process(
        argv,
        thread=thread,
        process_id=process_id,
        cwd=cwd,
        env=variables(env),
        terminal=terminal,
        merge_stderr=merge_stderr,
        timeout_s=timeout_s,
    )
    cli.show(started, started.id)
    if not cli.as_json:
        err.print(f"it runs; `airlock process logs {started.id} --thread {thread}` shows what it says", style="dim")


def variables(given: list[str] | None) -> dict[str, str]:
    """Return what --env says; anything else ends the command."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--env {text!r}: NAME=VALUE is expected")
        found[name] = value
    return found
