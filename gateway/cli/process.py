"""`airlock exec` runs a command in a thread's sandbox; `airlock process` manages its background processes."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import Commands, GatewayCli, InThread
from gateway.cli.plain_values import PlainCommand
from gateway.cli.printable import Rows, local_time
from gateway.cli.terminal import EXIT_DENIED, EXIT_NOT_RUN, EXIT_TIMED_OUT, SafeBytes, err, fail, out, print_json
from gateway.errors import PermissionDenied, ScopeMissing

if TYPE_CHECKING:
    from gateway.client import Process, Processes, ProcessOutput, ProgramResult

START_SETTINGS = {"allow_interspersed_args": False}
"""Pass everything after the program's name to the program, even if it looks like an option."""
_SIGNAL_LIMIT = 64

app = Commands(help="Background processes of a thread's sandbox.")
ProcessId = Annotated[str, typer.Argument(metavar="ID", help="Id, as listed by `airlock process list`.")]


@dataclass(frozen=True)
class Surroundings:
    """Where a program runs, and with which environment variables."""

    thread: InThread = "default"
    cwd: Annotated[str, typer.Option(help="Working directory; default: /workspace.")] = ""
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable; repeatable.")] = (
        None
    )

    def fields(self) -> dict[str, Any]:
        """Return the arguments of the client's call; end the command if a variable is not NAME=VALUE."""
        variables = {}
        for text in self.env or ():
            name, equals, value = text.partition("=")
            if not equals:
                fail(f"--env {text!r} is not NAME=VALUE")
            variables[name] = value
        return {"thread": self.thread, "cwd": self.cwd, "env": variables}


@app.command(context_settings=START_SETTINGS)
async def start(
    cli: GatewayCli,
    argv: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]...", help="Program and arguments; no shell interprets them.")
    ],
    *,
    surroundings: Surroundings,
    process_id: Annotated[str, typer.Option("--id", help="Id of the process; default: generated.")] = "",
    terminal: Annotated[bool, typer.Option("--terminal", help="Run it in a terminal.")] = False,
    merge_stderr: Annotated[
        bool, typer.Option("--merge-stderr", help="Redirect standard error to standard output.")
    ] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", help="Time limit in seconds; default: none.")
    ] = None,
) -> None:
    """Start a program in the background and print its id; the policy judges it as the same command line."""
    options = surroundings.fields() | {"terminal": terminal, "merge_stderr": merge_stderr, "timeout_s": timeout_s}
    started = await cli.airlock.start_process(argv, process_id=process_id, **options)
    cli.show(started, started.id)
    if not cli.as_json:
        err.print(
            f"started; `airlock process logs {started.id} --thread {surroundings.thread}` prints its output",
            style="dim",
        )


@app.command("list")
async def list_(
    cli: GatewayCli,
    *,
    thread: InThread = "default",
    running: Annotated[bool | None, typer.Option("--running/--ended", help="Filter by state; default: both.")] = None,
) -> None:
    """List the processes, oldest first."""
    cli.show(await cli.airlock.processes(thread, running=running), _show)


@app.command()
async def logs(
    cli: GatewayCli,
    process_id: ProcessId,
    *,
    thread: InThread = "default",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until no process can write to it.")
    ] = False,
    stderr: Annotated[bool, typer.Option(help="Print standard error instead of standard output.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="Byte to start at.")] = 0,
) -> None:
    """Print the output of a process; a terminal shows control characters as visible signs.

    With --json, print an object per line: the offset of a piece, and its text, or base64 if it is not UTF-8.
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
    thread: InThread = "default",
    signal_: Annotated[str, typer.Option("--signal", help="Signal name, such as TERM, or Linux number.")] = "TERM",
    tree: Annotated[bool, typer.Option("--tree", help="Signal all its descendants, not only its group.")] = False,
) -> None:
    """Send a signal to a process."""
    number = signal_number(signal_)
    process = await cli.airlock.signal_process(thread, process_id, number, tree=tree)
    cli.show(process, lambda one: err.print(f"{one.id}: signal {number} sent", style="dim"))


@app.command()
async def remove(cli: GatewayCli, process_id: ProcessId, *, thread: InThread = "default") -> None:
    """Kill a process with all its descendants and forget it; its output files stay."""
    process = await cli.airlock.remove_process(thread, process_id)
    cli.show(process, lambda one: err.print(f"{one.id}: removed, {_state(one)}", style="dim"))


@app.command("kill-strays")
async def kill_strays(cli: GatewayCli, *, thread: InThread = "default") -> None:
    """Kill processes that commands left running; background processes stay."""
    left = await cli.airlock.kill_strays(thread)
    said = f"killed; {left} are still running" if left else "killed; none is left"
    cli.show({"left": left}, lambda _: err.print(said, style="dim"), bad_news=left > 0)


def _show(found: Processes) -> None:
    rows = []
    for process in found.processes:
        size = f"{process.stdout_size_bytes + process.stderr_size_bytes:,} B"
        rows.append((process.id, _state(process), local_time(process.started_at), size, " ".join(process.argv)))
    out.print(Rows(("id", "state", "started", "output", "command"), rows))
    if found.strays:
        err.print(
            f"{found.strays} more processes were left running by commands: `airlock process kill-strays` ends them",
            style="yellow",
        )


def signal_number(text: str) -> int:
    """Return the number of a signal: TERM, SIGTERM, sigterm and 15 are the same."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _SIGNAL_LIMIT:
        return int(text)
    known = {one.name.removeprefix("SIG"): one.value for one in signal.Signals}
    number = known.get(text.upper().removeprefix("SIG"))
    if number is None:
        raise typer.BadParameter(
            f"{text!r} is not a signal: use a name such as TERM, KILL or HUP, or a number from 1 to {_SIGNAL_LIMIT}",
            param_hint="--signal",
        )
    return number


class _Shown(SafeBytes):
    _at = -1

    def add(self, piece: ProcessOutput) -> None:
        if piece.offset != self._at:
            self.end()  # the bytes in between are lost, perhaps with the rest of a character
        self.write(piece.data)
        self.flush()
        self._at = piece.offset + len(piece.data)


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


class ExecCommand(PlainCommand):
    """A command that exits with the code of what it runs, so wrong usage has a code outside 1 to 124."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Usage errors have an exit code, whichever click typer was built on; --help ends with typer.Exit.
            if hasattr(error, "exit_code") and not isinstance(error, typer.Exit):
                error.exit_code = EXIT_NOT_RUN
            raise


async def exec_(
    cli: GatewayCli,
    argv: Annotated[
        list[str], typer.Argument(metavar="-- CMD [ARGS]...", help="Program and arguments; no shell interprets them.")
    ],
    *,
    surroundings: Surroundings,
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Pass standard input to the command.")] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", help="Time limit in seconds; default: the policy's maximum.")
    ] = None,
) -> None:
    """Run a command in a sandbox and exit with its exit code, or with 128 plus the signal that ended it.

    Exits with 124 if the command timed out, 126 if the policy denies it, 125 if it did not run or end by itself.
    """
    cli.failure_code = EXIT_NOT_RUN
    shown = {"stdout": SafeBytes(), "stderr": SafeBytes(stderr=True)}

    def show(stream: str, data: bytes) -> None:
        shown[stream].write(data)
        shown[stream].flush()

    try:
        options = surroundings.fields() | {"timeout_s": timeout_s, "on_output": None if cli.as_json else show}
        result = await cli.airlock.run_program(argv, stdin=_standard_input() if stdin else None, **options)
    except ScopeMissing:
        raise
    except PermissionDenied:
        cli.failure_code = EXIT_DENIED
        raise
    finally:
        for stream in shown.values():
            stream.end()
    fields = {name: value for name, value in asdict(result).items() if not isinstance(value, bytes)}
    cli.show(fields | {"stdout": result.stdout, "stderr": result.stderr})
    if result.outcome != "exited" and not cli.as_json:
        err.print(f"{result.outcome}: {result.message}" if result.message else result.outcome, style="red")
    raise typer.Exit(_exit_code(result))


async def _standard_input() -> AsyncIterator[bytes]:
    """Yield standard input as it arrives; a daemon thread reads it, because the program may end first."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[bytes](1)

    def read() -> None:
        while True:
            data = os.read(sys.stdin.fileno(), 64 * 1024)
            try:
                asyncio.run_coroutine_threadsafe(pieces.put(data), loop).result()
            except RuntimeError:  # the loop is closed
                return
            if not data:
                return

    threading.Thread(target=read, daemon=True).start()
    while data := await pieces.get():
        yield data


def _exit_code(result: ProgramResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    if result.outcome == "timed_out":
        return EXIT_TIMED_OUT
    return EXIT_NOT_RUN if result.signal is None else 128 + result.signal
