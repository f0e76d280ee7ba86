"""`airlock process start`: a program in the background of a thread's sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Address, Json, Key, err, fail, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.client import Process

START_SETTINGS = {"allow_interspersed_args": False}
"""What follows the program's name is the program's, also where it looks like an option."""


def start(
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
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Start a program in the background, judged by policy as the command line it would be, and print its id."""
    variables = dict(variable(one, as_json=as_json) for one in env or ())

    async def work() -> Process:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.start_process(
                argv,
                thread=thread,
                process_id=process_id,
                cwd=cwd,
                env=variables,
                terminal=terminal,
                merge_stderr=merge_stderr,
                timeout_s=timeout_s,
            )

    process = run_client(work(), as_json=as_json)
    if as_json:
        from gateway.cli.process import process_as_json

        print_json(process_as_json(process))
        return
    out.print(process.id, markup=False)
    err.print(f"it runs; `airlock process logs {process.id} --thread {thread}` shows what it says", style="dim")


def variable(text: str, *, as_json: bool) -> tuple[str, str]:
    """Return what --env says; anything else ends the command."""
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--env {text!r}: NAME=VALUE is expected", EXIT_USAGE, as_json=as_json)
    return name, value
