"""`airlock exec`: run a command in a thread's sandbox with its input, output and exit code passed through."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gateway.cli.command import GatewayCli
from gateway.cli.process import Surroundings
from gateway.cli.terminal import EXIT_DENIED, EXIT_NOT_RUN, EXIT_TIMED_OUT, SafeBytes, err
from gateway.errors import PermissionDenied, ScopeMissing

if TYPE_CHECKING:
    from gateway.client import ProgramResult

_SIGNALLED = 128
_CHUNK_BYTES = 64 * 1024


class ExecCommand(TyperCommand):
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
        result = await cli.airlock.run_program(
            argv,
            stdin=_standard_input() if stdin else None,
            timeout_s=timeout_s,
            on_output=None if cli.as_json else show,
            **surroundings.fields(),
        )
    except ScopeMissing:
        raise
    except PermissionDenied:
        cli.failure_code = EXIT_DENIED
        raise
    finally:
        for stream in shown.values():
            stream.end()
    fields = {name: value for name, value in asdict(result).items() if not isinstance(value, bytes)}
    cli.show(fields | {"stdout": result.stdout, "stderr": result.stderr}, lambda _: _show(result))
    raise typer.Exit(_exit_code(result))


def _show(result: ProgramResult) -> None:
    if result.outcome != "exited":
        err.print(f"{result.outcome}: {result.message}" if result.message else result.outcome, style="red")


async def _standard_input() -> AsyncIterator[bytes]:
    """Yield standard input as it arrives; a daemon thread reads it, because the program may end first."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[bytes](1)

    def read() -> None:
        while True:
            data = os.read(sys.stdin.fileno(), _CHUNK_BYTES)
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
    return EXIT_NOT_RUN if result.signal is None else _SIGNALLED + result.signal
