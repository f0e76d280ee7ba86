"""`airlock files`: the files of a thread's sandbox, read, written, listed and removed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli
from gateway.cli.printable import one_line
from gateway.cli.safe_console import SafeBytes
from gateway.cli.slow_work import Transfer
from gateway.cli.terminal import err, fail, out

if TYPE_CHECKING:
    from gateway.client import FileEntry

app = Commands(help="Files of a thread's sandbox.")
ThreadName = Annotated[str, typer.Option(help="Thread whose sandbox it is.")]
RemotePath = Annotated[str, typer.Argument(metavar="PATH", help="Absolute, or relative to /workspace.")]
_CHUNK_BYTES = 512 * 1024
# Of a name with all its directories; more is cut with a sign.
_NAME_LIMIT_CHARS = 4096


@app.command()
async def read(
    cli: GatewayCli,
    path: RemotePath,
    to: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to; standard output without it.")] = None,
    *,
    offset: Annotated[int, typer.Option(min=0, help="The first byte.")] = 0,
    limit_bytes: Annotated[int | None, typer.Option(min=1, help="How many bytes at most.")] = None,
    thread: ThreadName = "default",
) -> None:
    """Copy a file out of the sandbox, or a part of it. With --json it needs FILE, and says how many bytes went there.

    A terminal shows control characters as signs; a file or pipe gets the bytes as they are.

    Where the connection breaks it goes on, unless the file was written meanwhile.
    """
    if cli.as_json and to is None:
        fail("--json needs a FILE for the bytes")
    chunks = cli.airlock.stream_file(thread, path, offset=offset, limit_bytes=limit_bytes)
    try:
        first = await anext(chunks, b"")  # a file that cannot be read must not empty one that is here
        with Transfer(path, None) as transfer, _target(to) as write_out:
            write_out(first)
            transfer.moved(len(first))
            async for chunk in chunks:
                write_out(chunk)
                transfer.moved(len(chunk))
    except OSError as error:
        fail(f"{to}: {error.strerror}")
    cli.show({"path": path, "file": str(to), "size_bytes": transfer.size_bytes})


@app.command()
async def write(
    cli: GatewayCli,
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file here, or - for standard input.")],
    path: RemotePath,
    *,
    thread: ThreadName = "default",
) -> None:
    """Copy a file into the sandbox: it replaces the one that is there, whole or not at all."""
    try:
        total = None if source == "-" else Path(source).stat().st_size  # noqa: ASYNC240 - nothing else waits here
        with Transfer(path, total) as transfer:
            size = await cli.airlock.write_file(thread, path, _chunks(source, transfer))
    except OSError as error:
        fail(f"{source}: {error.strerror}")
    said = f"{size:,} bytes in {path}"
    cli.show({"path": path, "size_bytes": size}, lambda _: err.print(said, style="dim"))


@app.command()
async def ls(
    cli: GatewayCli,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory, or a pattern such as **/*.py.")] = ".",
    *,
    long: Annotated[bool, typer.Option("--long", "-l", help="With mode and time, UTC.")] = False,
    thread: ThreadName = "default",
) -> None:
    """List a directory of the sandbox, or what a pattern matches."""
    directory, pattern = _parted(path)
    found = [entry async for entry in cli.airlock.list_files(thread, directory, pattern=pattern)]
    cli.show([_as_json(entry) for entry in found], lambda _: _print_entries(found, long=long))


@app.command()
async def stat(cli: GatewayCli, path: RemotePath, *, thread: ThreadName = "default") -> None:
    """Describe one path: what it is, its size, its mode, and when it was written."""
    entry = await cli.airlock.stat_file(thread, path)
    cli.show(_as_json(entry), lambda _: _print_entries([entry], long=True))


@app.command()
async def rm(
    cli: GatewayCli,
    path: RemotePath,
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="A directory with all that is in it.")] = False,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="What is not there is no error.")] = False,
    thread: ThreadName = "default",
) -> None:
    """Remove a file, a link or a directory of the sandbox."""
    await cli.airlock.remove_file(thread, path, recursive=recursive, missing_ok=missing_ok)
    cli.show({"path": path})


@app.command()
async def mkdir(cli: GatewayCli, path: RemotePath, *, thread: ThreadName = "default") -> None:
    """Make a directory and its parents in the sandbox; one that is there is no error."""
    await cli.airlock.make_directory(thread, path)
    cli.show({"path": path})


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


def _as_json(entry: FileEntry) -> dict[str, object]:
    return vars(entry) | {"mode": f"{entry.mode:04o}"}


def _print_entries(entries: list[FileEntry], *, long: bool) -> None:
    sizes = [f"{entry.size_bytes:,}" for entry in entries]
    width = max(map(len, sizes), default=0)
    for entry, size in zip(entries, sizes, strict=True):
        mark = "/" if entry.kind == "directory" else "@" if entry.kind == "symlink" else ""
        line = f"{size:>{width}}  {one_line(entry.name, _NAME_LIMIT_CHARS)}{mark}"
        if long:
            line = f"{entry.mode:04o}  {size:>{width}}  {entry.modified_at:%Y-%m-%d %H:%M}{line[width:]}"
        out.print(line)


async def _chunks(source: str, transfer: Transfer) -> AsyncIterator[bytes]:
    with sys.stdin.buffer if source == "-" else Path(source).open("rb") as file:  # noqa: ASYNC230 - as above
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
            transfer.moved(len(chunk))
