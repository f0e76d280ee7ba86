"""`airlock files`: read, write, list and remove files of a thread's sandbox."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, InThread
from gateway.cli.printable import one_line
from gateway.cli.terminal import SafeBytes, Transfer, err, fail, out

if TYPE_CHECKING:
    from gateway.client import FileEntry

app = Commands(help="Files of a thread's sandbox.")
RemotePath = Annotated[str, typer.Argument(metavar="PATH", help="Absolute path, or relative to /workspace.")]
# A longer path is cut.
_NAME_LIMIT_CHARS = 4096


@app.command()
async def read(
    cli: GatewayCli,
    path: RemotePath,
    to: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Local file; default: standard output.")] = None,
    *,
    offset: Annotated[int, typer.Option(min=0, help="Byte to start at.")] = 0,
    limit_bytes: Annotated[int | None, typer.Option(min=1, help="Maximum number of bytes.")] = None,
    thread: InThread = "default",
) -> None:
    """Copy a file, or a part of it, from the sandbox. --json requires FILE and reports the number of bytes written.

    A terminal shows control characters as visible signs; a file or pipe gets the exact bytes.

    If the connection breaks, the transfer resumes unless the file has changed.
    """
    if cli.as_json and to is None:
        fail("--json requires FILE, because the output cannot hold the bytes")
    chunks = cli.airlock.stream_file(thread, path, offset=offset, limit_bytes=limit_bytes)
    try:
        first = await anext(chunks, b"")  # before a local file is truncated: the remote one may be unreadable
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
    source: Annotated[str, typer.Argument(metavar="FILE", help="Local file, or - for standard input.")],
    path: RemotePath,
    *,
    thread: InThread = "default",
) -> None:
    """Copy a file to the sandbox, atomically replacing any file at that path."""
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
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Directory, or a pattern such as **/*.py.")] = ".",
    *,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show mode and modification time (UTC).")] = False,
    thread: InThread = "default",
) -> None:
    """List a directory of the sandbox, or the paths that match a pattern."""
    directory, pattern = _parted(path)
    found = [entry async for entry in cli.airlock.list_files(thread, directory, pattern=pattern)]
    cli.show([_as_json(entry) for entry in found], lambda _: _print_entries(found, long=long))


@app.command()
async def stat(cli: GatewayCli, path: RemotePath, *, thread: InThread = "default") -> None:
    """Show the type, size, mode and modification time of a path."""
    entry = await cli.airlock.stat_file(thread, path)
    cli.show(_as_json(entry), lambda _: _print_entries([entry], long=True))


@app.command()
async def rm(
    cli: GatewayCli,
    path: RemotePath,
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Remove a directory with its contents.")] = False,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="Succeed if the path does not exist.")] = False,
    thread: InThread = "default",
) -> None:
    """Remove a file, a link or a directory of the sandbox."""
    await cli.airlock.remove_file(thread, path, recursive=recursive, missing_ok=missing_ok)
    cli.show({"path": path})


@app.command()
async def mkdir(cli: GatewayCli, path: RemotePath, *, thread: InThread = "default") -> None:
    """Create a directory and its parents in the sandbox; an existing directory is not an error."""
    await cli.airlock.make_directory(thread, path)
    cli.show({"path": path})


@contextlib.contextmanager
def _target(to: Path | None) -> Iterator[Callable[[bytes], object]]:
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
    """Split a path into its directory and its pattern, which is empty if the path has no wildcards."""
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
        while chunk := file.read(512 * 1024):
            yield chunk
            transfer.moved(len(chunk))
