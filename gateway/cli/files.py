"""`airlock files`: the files of a thread's sandbox, read, written, listed and removed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from gateway.cli.safe_console import SafeBytes
from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
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

    from gateway.client import FileEntry

app = typer.Typer(help="Files of a thread's sandbox.", no_args_is_help=True)
ThreadName = Annotated[str, typer.Option(help="Thread whose sandbox it is.")]
RemotePath = Annotated[str, typer.Argument(metavar="PATH", help="Absolute, or relative to /workspace.")]
_CHUNK_BYTES = 512 * 1024
# Of a file that takes less nothing is shown.
_QUIET_S = 1.0
# Of a name with all its directories; more is cut with a sign.
_NAME_LIMIT_CHARS = 4096


@app.command()
def read(
    path: RemotePath,
    to: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to; standard output without it.")] = None,
    *,
    offset: Annotated[int, typer.Option(min=0, help="The first byte.")] = 0,
    limit_bytes: Annotated[int | None, typer.Option(min=1, help="How many bytes at most.")] = None,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Copy a file out of the sandbox, or a part of it. With --json it needs FILE, and says how many bytes went there.

    A terminal shows control characters as signs; a file or pipe gets the bytes as they are.

    Where the connection breaks it goes on, unless the file was written meanwhile.
    """
    if as_json and to is None:
        fail("--json needs a FILE for the bytes", EXIT_USAGE, as_json=True)

    async def work() -> int:
        from gateway.client import Client

        size = 0
        async with Client(address, key) as airlock:
            chunks = airlock.stream_file(thread, path, offset=offset, limit_bytes=limit_bytes)
            first = await anext(chunks, b"")  # a file that cannot be read must not empty one that is here
            with _Moving(path, None) as moving, _target(to) as write_out:
                write_out(first)
                size = moving.moved(len(first))
                async for chunk in chunks:
                    write_out(chunk)
                    size = moving.moved(len(chunk))
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
    long: Annotated[bool, typer.Option("--long", "-l", help="With mode and time, UTC.")] = False,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List a directory of the sandbox, or what a pattern matches."""
    directory, pattern = _parted(path)

    async def work() -> list[FileEntry]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return [entry async for entry in airlock.list_files(thread, directory, pattern=pattern)]

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([_told(entry) for entry in found])
    else:
        _print_entries(found, long=long)


@app.command()
def stat(
    path: RemotePath,
    *,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Describe one path: what it is, its size, its mode, and when it was written."""

    async def work() -> FileEntry:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.stat_file(thread, path)

    entry = run_client(work(), as_json=as_json)
    if as_json:
        print_json(_told(entry))
    else:
        _print_entries([entry], long=True)


@app.command()
def rm(
    path: RemotePath,
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="A directory with all that is in it.")] = False,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="What is not there is no error.")] = False,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Remove a file, a link or a directory of the sandbox."""

    async def work() -> None:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            await airlock.remove_file(thread, path, recursive=recursive, missing_ok=missing_ok)

    run_client(work(), as_json=as_json)
    if as_json:
        print_json({"path": path})


@app.command()
def mkdir(
    path: RemotePath,
    *,
    thread: ThreadName = "default",
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Make a directory and its parents in the sandbox; one that is there is no error."""

    async def work() -> None:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            await airlock.make_directory(thread, path)

    run_client(work(), as_json=as_json)
    if as_json:
        print_json({"path": path})


@contextlib.contextmanager
def _target(to: Path | None) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes to a file, or to standard output."""
    if to is not None:
        with to.open("wb") as file:
            yield file.write
        return
    shown = SafeBytes()
    try:
        yield shown.write
    finally:
        shown.end()


def _parted(path: str) -> tuple[str, str]:
    """Return the directory and the pattern of a path as a person writes it; the pattern is empty where it has none."""
    names = path.split("/")
    plain = next((n for n, name in enumerate(names) if any(sign in name for sign in "*?[")), None)
    if plain is None:
        return path, ""
    directory = "/".join(names[:plain])
    return directory or ("/" if path.startswith("/") else "."), "/".join(names[plain:])


def _told(entry: FileEntry) -> dict[str, str | int]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "size_bytes": entry.size_bytes,
        "modified_at": entry.modified_at.isoformat(),
        "mode": f"{entry.mode:04o}",
        "etag": entry.etag,
    }


def _print_entries(entries: list[FileEntry], *, long: bool) -> None:
    from gateway.cli.printable import one_line

    sizes = [f"{entry.size_bytes:,}" for entry in entries]
    width = max(map(len, sizes), default=0)
    for entry, size in zip(entries, sizes, strict=True):
        mark = "/" if entry.kind == "directory" else "@" if entry.kind == "symlink" else ""
        line = f"{size:>{width}}  {one_line(entry.name, _NAME_LIMIT_CHARS)}{mark}"
        if long:
            line = f"{entry.mode:04o}  {size:>{width}}  {entry.modified_at:%Y-%m-%d %H:%M}{line[width:]}"
        out.print(line)


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
