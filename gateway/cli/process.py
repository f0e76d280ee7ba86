"""`airlock process`: look at a thread's background processes, and end them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gateway.cli.terminal import DEFAULT_ADDRESS, Address, Json, Key, err, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.client import Process, Processes

app = typer.Typer(help="Background processes of a thread's sandbox.", no_args_is_help=True)
Thread = Annotated[str, typer.Option(help="Thread in whose sandbox they run.")]
ProcessId = Annotated[str, typer.Argument(metavar="ID", help="As `airlock process list` shows it.")]


@app.command("list")
def list_(
    *, thread: Thread = "default", address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False
) -> None:
    """List the processes, the oldest first."""

    async def work() -> Processes:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.processes(thread)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"processes": [_as_json(process) for process in found.processes], "strays": found.strays})
        return
    from gateway.cli.printable import printable

    table = Table("id", "state", "started", "output", "command", box=None, header_style="bold")
    for process in found.processes:
        started = f"{process.started_at.astimezone():%H:%M:%S}"
        size = f"{process.stdout_size_bytes + process.stderr_size_bytes:,} B"
        command = printable(" ".join(process.argv)).replace("[", r"\[")
        table.add_row(process.id, _state(process), started, size, command)
    out.print(table)
    if found.strays:
        err.print(f"{found.strays} more processes were left running by commands", style="yellow")


@app.command()
def logs(
    process_id: ProcessId,
    *,
    thread: Thread = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until nobody can write any more.")] = False,
    stderr: Annotated[bool, typer.Option(help="Standard error instead of standard output.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="First byte.")] = 0,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
) -> None:
    """Print what a process wrote: its bytes as they are, or on a terminal without control characters."""
    from gateway.cli.printable import printable

    shown = sys.stdout.isatty()

    async def work() -> None:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            async for piece in airlock.process_output(thread, process_id, stderr=stderr, offset=offset, follow=follow):
                if shown:
                    out.print(printable(piece.data.decode("utf-8", "replace")), markup=False, end="")
                else:
                    sys.stdout.buffer.write(piece.data)
                    sys.stdout.buffer.flush()

    run_client(work(), as_json=False)


@app.command()
def kill(
    process_id: ProcessId,
    *,
    thread: Thread = "default",
    signal: Annotated[int, typer.Option(min=1, max=64, help="Signal number of Linux.")] = 15,
    tree: Annotated[bool, typer.Option("--tree", help="Everything it started, not only its group.")] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Send a signal to a process."""

    async def work() -> Process:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.signal_process(thread, process_id, signal, tree=tree)

    process = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_as_json(process))
    else:
        err.print(f"{process.id}: signal {signal} sent", style="dim", markup=False)


def _state(process: Process) -> str:
    if process.running:
        return "running"
    detail = process.exit_code if process.exit_code is not None else process.signal
    return process.outcome if detail is None else f"{process.outcome} {detail}"


def _as_json(process: Process) -> dict[str, Any]:
    return {**asdict(process), "started_at": process.started_at.isoformat()}
