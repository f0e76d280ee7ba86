"""`airlock files`: the files of a thread's sandbox, read, written and listed."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_GATEWAY,
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
    from rich.progress import Progress

    from gateway.client import ToolResult

app = typer.Typer(help="Files of a thread's sandbox.", no_args_is_help=True)
ThreadName = Annotated[str, typer.Option(help="Thread whose sandbox it is.")]
RemotePath = Annotated[str, typer.Argument(metavar="PATH", help="Absolute, or relative to /workspace.")]
_CHUNK_BYTES = 512 * 1024
# Of a file that takes less nothing is shown.
_QUIET_S = 1.0


@app.command()
def read(
    path: RemotePath,
    to: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to; standard output without it.")] = None,
    *,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Copy a file out of the sandbox. With --json it needs FILE, and says how many bytes went there."""
    if as_json and to is None:
        fail("--json needs a FILE for the bytes", EXIT_USAGE, as_json=True)

    async def work() -> int:
        from gateway.client import Client

        size = 0
        async with Client(address, key) as airlock:
            chunks = airlock.stream_file(thread, path)
            first = await anext(chunks, b"")  # a file that cannot be read must not empty one that is here
            with _Moving(path, None) as moving, sys.stdout.buffer if to is None else to.open("wb") as target:
                target.write(first)
                size = moving.moved(len(first))
                async for chunk in chunks:
                    target.write(chunk)
                    size = moving.moved(len(chunk))
                target.flush()
        return size

    try:
        size = run_client(work(), as_json=as_json)
    except OSError as error:
        fail(f"{to}: {error.strerror}", EXIT_USAGE, as_json=as_json)
    if as_json:
        print_json({"path": path, "file": str(to), "size_bytes": size})


@app.command()
def write(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file here, or - for standard input.")],
    path: RemotePath,
    *,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Copy a file into the sandbox: it replaces the one that is there, whole or not at all."""

    async def work() -> int:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            total = None if source == "-" else Path(source).stat().st_size  # noqa: ASYNC240 - nothing else waits here
            with _Moving(path, total) as moving:
                return await airlock.write_file(thread, path, _chunks(source, moving))

    try:
        size = run_client(work(), as_json=as_json)
    except OSError as error:
        fail(f"{source}: {error.strerror}", EXIT_USAGE, as_json=as_json)
    if as_json:
        print_json({"path": path, "size_bytes": size})
    else:
        err.print(f"{size:,} bytes in {path}", style="dim", markup=False)


@app.command()
def ls(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory, or a pattern such as **/*.py.")] = ".",
    *,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List a directory of the sandbox, or what a pattern matches."""
    pattern = any(sign in path for sign in "*?[")

    async def work() -> ToolResult:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            if pattern:
                return await airlock.call_tool("glob", {"pattern": path}, thread=thread)
            return await airlock.call_tool("ls", {"path": path}, thread=thread)

    result = run_client(work(), as_json=as_json)
    if result.is_error or result.verdict != "allow":
        fail(result.content or result.reason, EXIT_GATEWAY, as_json=as_json, details={"reason": result.outcome})
    if as_json and not pattern:
        print_json(json.loads(result.content))
    elif as_json:
        print_json(result.content.splitlines())
    elif pattern:
        out.print(result.content, markup=False)
    else:
        _print_entries(result.content)
    if result.note:
        err.print(result.note, style="dim", markup=False)


def _print_entries(listed: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.printable import one_line

    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()
    for entry in json.loads(listed):
        kind = "/" if entry["type"] == "directory" else "@" if entry["type"] == "symlink" else ""
        table.add_row(f"{entry.get('size') or 0:,}", Text(one_line(entry["name"], 256) + kind))
    out.print(table)


async def _chunks(source: str, moving: _Moving) -> AsyncIterator[bytes]:
    with sys.stdin.buffer if source == "-" else Path(source).open("rb") as file:  # noqa: ASYNC230 - as above
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
            moving.moved(len(chunk))


class _Moving:
    """Shows how far a transfer is, on the terminal's error output, once it takes a while."""

    def __init__(self, name: str, total_bytes: int | None) -> None:
        self._name = name
        self._total_bytes = total_bytes
        self._size_bytes = 0
        self._progress: Progress | None = None
        self._started_s = 0.0

    def __enter__(self) -> Self:
        import time

        self._started_s = time.monotonic()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def moved(self, size_bytes: int) -> int:
        """Count bytes; return how many there were in all."""
        import time

        self._size_bytes += size_bytes
        if self._progress is None and err.is_terminal and time.monotonic() - self._started_s > _QUIET_S:
            from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

            columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._progress = Progress(*columns, console=err, transient=True)
            self._progress.start()
            self._progress.add_task(self._name, total=self._total_bytes)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._size_bytes)
        return self._size_bytes
