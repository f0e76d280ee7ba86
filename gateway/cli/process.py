"""`airlock process`: look at a thread's background processes, and end them."""

from __future__ import annotations

import base64
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import Commands, GatewayCli
from gateway.cli.printable import local_time
from gateway.cli.process_start import START_SETTINGS, start
from gateway.cli.rows import Rows
from gateway.cli.safe_console import SafeBytes
from gateway.cli.terminal import EXIT_BAD_NEWS, err, out, print_json

if TYPE_CHECKING:
    from gateway.client import Process, Processes, ProcessOutput

_SIGNAL_LIMIT = 64

app = Commands(help="Background processes of a thread's sandbox.")
app.command(context_settings=START_SETTINGS)(start)
Thread = Annotated[str, typer.Option(help="Thread in whose sandbox they run.")]
ProcessId = Annotated[str, typer.Argument(metavar="ID", help="As `airlock process list` shows it.")]


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    thread: Thread = "default",
    running: Annotated[
        bool | None, typer.Option("--running/--ended", help="Only those that run, or that have ended; else both.")
    ] = None,
) -> None:
    """List the processes, the oldest first."""
    cli.show(await cli.airlock.processes(thread, running=running), _show)


@app.command()
async def logs(
    cli: GatewayCli,
    process_id: ProcessId,
    *,
    thread: Thread = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until nobody can write any more.")] = False,
    stderr: Annotated[bool, typer.Option(help="Standard error instead of standard output.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="First byte.")] = 0,
) -> None:
    """Print what a process wrote: its bytes as they are, or on a terminal without control characters.

    With --json, one object a piece and line: its offset, and text, or base64 where it is not UTF-8.
    """
    shown = _Shown()
    pieces = cli.airlock.process_output(thread, process_id, stderr=stderr, offset=offset, follow=follow)
    try:
        async for piece in pieces:
            if cli.as_json:
                print_json(_piece_as_json(piece))
            else:
                shown.add(piece)
    finally:
        shown.end()


@app.command()
async def kill(
    cli: GatewayCli,
    process_id: ProcessId,
    *,
    thread: Thread = "default",
    signal_: Annotated[str, typer.Option("--signal", help="Name, such as TERM, or number of Linux.")] = "TERM",
    tree: Annotated[bool, typer.Option("--tree", help="Everything it started, not only its group.")] = False,
) -> None:
    """Send a signal to a process."""
    number = signal_number(signal_)
    process = await cli.airlock.signal_process(thread, process_id, number, tree=tree)
    cli.show(process, lambda one: err.print(f"{one.id}: signal {number} sent", style="dim"))


@app.command()
async def remove(cli: GatewayCli, process_id: ProcessId, *, thread: Thread = "default") -> None:
    """Kill everything a process started, and forget it; its output files stay."""
    process = await cli.airlock.remove_process(thread, process_id)
    cli.show(process, lambda one: err.print(f"{one.id}: removed, {_state(one)}", style="dim"))


@app.command("kill-strays")
async def kill_strays(cli: GatewayCli, *, thread: Thread = "default") -> None:
    """Kill what commands left running; background processes stay."""
    left = await cli.airlock.kill_strays(thread)
    said = f"killed; {left} live still" if left else "killed; none is left"
    cli.show({"left": left}, lambda _: err.print(said, style="dim"))
    if left:
        raise typer.Exit(EXIT_BAD_NEWS)


def _show(found: Processes) -> None:
    rows = []
    for process in found.processes:
        size = f"{process.stdout_size_bytes + process.stderr_size_bytes:,} B"
        rows.append((process.id, _state(process), local_time(process.started_at), size, " ".join(process.argv)))
    out.print(Rows(("id", "state", "started", "output", "command"), rows))
    if found.strays:
        err.print(
            f"{found.strays} more processes were left running by commands; `airlock process kill-strays` ends them",
            style="yellow",
        )


def signal_number(text: str) -> int:
    """Return the number of a signal: TERM, SIGTERM, sigterm and 15 are one."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _SIGNAL_LIMIT:
        return int(text)
    known = {one.name.removeprefix("SIG"): one.value for one in signal.Signals}
    number = known.get(text.upper().removeprefix("SIG"))
    if number is None:
        raise typer.BadParameter(
            f"{text!r} is no signal; names such as TERM, KILL or HUP are, and 1 to {_SIGNAL_LIMIT}",
            param_hint="--signal",
        )
    return number


class _Shown:
    """The pieces of a process' output, as they come."""

    def __init__(self) -> None:
        self._bytes = SafeBytes()
        self._at = -1

    def add(self, piece: ProcessOutput) -> None:
        if piece.offset != self._at:
            self.end()  # bytes in between are lost, and with them the rest of a character
        self._bytes.write(piece.data)
        self._bytes.flush()
        self._at = piece.offset + len(piece.data)

    def end(self) -> None:
        self._bytes.end()


def _piece_as_json(piece: ProcessOutput) -> dict[str, Any]:
    try:
        return {"offset": piece.offset, "text": piece.data.decode()}
    except UnicodeDecodeError:
        return {"offset": piece.offset, "base64": base64.b64encode(piece.data).decode()}


def _state(process: Process) -> str:
    if process.running:
        return "running"
    detail = process.exit_code if process.exit_code is not None else process.signal
    return process.outcome if detail is None else f"{process.outcome} {detail}"
