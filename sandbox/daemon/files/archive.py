"""The workspace as a whole, in a tar stream: read out, or written into an empty one; or settled, for a volume's copy.

A child of the server does it, with the server's rights, which on files are the tool user's: what it opens and makes is
what tool code could. It has the channel's connection, which is a tunnel. Nothing is followed through a symbolic link:
each directory is opened through its parent.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
import stat
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from sandbox.daemon.failures import fault_at
from sandbox.daemon.frames import FrameSocket
from sandbox.daemon.paths import closing, open_with_rights, real
from sandbox.v1 import channel_pb2 as wire

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Iterator
    from io import BufferedRWPair

# How names in the stream begin.
TOP = "workspace"
# As the gateway's workspace_archive.py has it: below are names that no path may have.
_DEEPEST_BYTES = 4096 - 2 * 256
_PIECE_BYTES = 256 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PERMISSIONS = 0o777


async def serve_archive(request: wire.ArchiveRequest, frames: FrameSocket, workspace: str) -> None:
    """Make a tunnel of a connection for an archive, and end the connection with it."""
    connection = frames.connection
    await frames.send(wire.Reply(tunnel=wire.Tunnel()))
    if frames.buffered_bytes:
        raise ConnectionAbortedError("the gateway sent bytes before the tunnel was there")
    with fault_at(workspace):
        pid = os.fork()
    if pid == 0:
        work = _fill if request.fill else _settle if request.settle else _read
        _run_child(work, connection, real(workspace))
    ended = asyncio.Event()
    child = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(child, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(child)
        os.close(child)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it was killed just now
    raise ConnectionAbortedError("the archive has ended")  # no frame may follow what the tunnel carried


def _run_child(work: Callable[[int, BufferedRWPair], None], connection: socket.socket, workspace: str) -> None:
    """Run in the child, without the server's event loop; never returns."""
    try:
        gc.freeze()  # finalizers of what the server has lost would close descriptors that are the child's own now
        stream = socket.socket(fileno=os.dup2(connection.detach(), 3))
        os.closerange(4, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one for each level of the tree
        stream.setblocking(True)
        with closing(os.open(workspace, _DIRECTORY)) as root, stream.makefile("rwb") as file:
            work(root, file)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the gateway has given up
    except BaseException:
        traceback.print_exc()  # the stream is cut short, which says so itself
    finally:
        os._exit(0)


def _read(root: int, output: BufferedRWPair) -> None:
    import tarfile

    names: dict[tuple[int, int], str] = {}
    _send_entry(output, tarfile.TarInfo(TOP), os.fstat(root))
    for directory, name, path, state in walk_tree(root):
        member = tarfile.TarInfo(f"{TOP}/{path}")
        first = names.setdefault((state.st_dev, state.st_ino), path) if state.st_nlink > 1 else path
        if stat.S_ISDIR(state.st_mode) or not stat.S_ISREG(state.st_mode):
            if stat.S_ISLNK(state.st_mode):
                member.linkname = os.readlink(name, dir_fd=directory)
            _send_entry(output, member, state)
        elif first != path:
            member.type, member.linkname = tarfile.LNKTYPE, f"{TOP}/{first}"
            _send_entry(output, member, state)
        else:
            with closing(_opened(name, directory)) as file:
                _send_file(output, member, file)
    output.write(bytes(2 * tarfile.BLOCKSIZE))


def walk_tree(root: int) -> Iterator[tuple[int, str, str, os.stat_result]]:
    """Yield what is below a directory, directories before what is in them: parent's descriptor, name, path, state.

    Where the tool user took its own rights to a directory away, it has them until the walk leaves the directory.
    """
    levels: list[tuple[int, int | None, str, list[str]]] = [(os.dup(root), None, "", _listed(root))]
    while levels:
        directory, mode, above, names = levels[-1]
        if not names:
            levels.pop()
            if mode is not None:
                os.fchmod(directory, mode)
            os.close(directory)
            continue
        name = names.pop()
        path = f"{above}/{name}" if above else name
        try:
            state = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not above and name == "lost+found" and state.st_uid == 0:
                continue  # the file system's own
            yield directory, name, path, state
            if stat.S_ISDIR(state.st_mode) and not is_deepest(path):
                inner, mode = _entered(name, directory, state)
                levels.append((inner, mode, path, _listed(inner)))
        except FileNotFoundError:
            continue  # removed meanwhile


def is_deepest(path: str) -> bool:
    """Return whether what is below a directory is left out."""
    return len(os.fsencode(path)) >= _DEEPEST_BYTES


def _listed(directory: int) -> list[str]:
    return sorted(os.listdir(directory), reverse=True)  # popped from the end


def _entered(name: str, directory: int, state: os.stat_result) -> tuple[int, int | None]:
    """Open a directory, with rights added where its owner lacks them; return its former mode in that case."""
    rights = stat.S_IRUSR | stat.S_IXUSR
    if state.st_mode & rights == rights:
        return os.open(name, _DIRECTORY, dir_fd=directory), None
    return open_with_rights(name, directory, rights)


def _opened(name: str, directory: int) -> int:
    """Open a file of the tool user for reading, also where it took its own right to away."""
    try:
        return os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=directory)
    except PermissionError:
        with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as handle:
            place, mode = f"/proc/self/fd/{handle}", stat.S_IMODE(os.fstat(handle).st_mode)
            os.chmod(place, mode | stat.S_IRUSR)
            try:
                return os.open(place, _FILE)
            finally:
                os.chmod(place, mode)


def _send_entry(output: BufferedRWPair, member: tarfile.TarInfo, state: os.stat_result) -> None:
    import tarfile

    kinds = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFREG: member.type}
    member.type = kinds.get(stat.S_IFMT(state.st_mode), tarfile.FIFOTYPE)
    member.mode, member.mtime = stat.S_IMODE(state.st_mode), max(0, int(state.st_mtime))
    output.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))


def _send_file(output: BufferedRWPair, member: tarfile.TarInfo, file: int) -> None:
    """Send a file in the size that it has now; one that is truncated meanwhile ends the stream early."""
    import tarfile

    state = os.fstat(file)
    member.size = left = state.st_size
    _send_entry(output, member, state)
    while left:
        piece = os.read(file, min(left, _PIECE_BYTES))
        if not piece:
            raise OSError(errno.EIO, "truncated")
        output.write(piece)
        left -= len(piece)
    output.write(bytes(-state.st_size % tarfile.BLOCKSIZE))


def _settle(root: int, given: BufferedRWPair) -> None:
    """Count what a stream would have, then have the kernel write what it has not; say the counts, or why not."""
    from sandbox.daemon.supervisor.libc import libc

    try:
        counts = _counted(root)
        call = libc()
        if call is None or call("syncfs", root):
            raise OSError(errno.EIO, "the file system cannot be written to its disk")
        said = f"0 {' '.join(map(str, counts))}".encode()
    except OSError as error:
        said = _explained(error)
    given.write(said)


def _counted(root: int) -> tuple[int, int, int, int, int]:
    """Return the counts of WorkspaceCounts in the gateway's remote_archive.py."""
    state = os.fstat(root)
    entries, files, size_bytes, skipped, stripped = 1, 0, 0, 0, int(is_stripped(state))
    linked: set[tuple[int, int]] = set()
    for _, _, path, state in walk_tree(root):
        if not is_kept(state):
            skipped += 1
            continue
        entries += 1
        stripped += is_stripped(state)
        if stat.S_ISREG(state.st_mode):
            files += 1
            size_bytes += state.st_size if (state.st_dev, state.st_ino) not in linked else 0
            if state.st_nlink > 1:
                linked.add((state.st_dev, state.st_ino))
        elif stat.S_ISDIR(state.st_mode):
            skipped += is_deepest(path)
    return entries, files, size_bytes, skipped, stripped


def is_kept(state: os.stat_result) -> bool:
    """Return whether a copy has an entry: a directory, a file or a symbolic link."""
    return stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode) or stat.S_ISLNK(state.st_mode)


def is_stripped(state: os.stat_result) -> bool:
    """Return whether an entry has bits of its mode that a copy has not."""
    return bool(stat.S_IMODE(state.st_mode) & ~PERMISSIONS)


def _explained(error: OSError) -> bytes:
    return f"{error.errno or errno.EIO} {error.strerror or error}".encode("utf-8", "replace")[:512]


def _fill(root: int, given: BufferedRWPair) -> None:
    """Write what comes into an empty workspace, and say at the end that all is there, or why not."""
    import tarfile

    try:
        with tarfile.open(fileobj=given, mode="r|") as archive:
            modes = []
            while (member := archive.next()) is not None:
                modes += _make(root, archive, member)
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
        # Last and from below: a read-only directory could not have been filled.
        for path, mode in reversed(modes):
            with _parent(root, path) as (directory, name):
                os.chmod(name, mode, dir_fd=directory)
        said = b"0 "
    except OSError as error:
        said = _explained(error)
    except (tarfile.TarError, ValueError) as error:
        said = f"{errno.EINVAL} {error}".encode("utf-8", "replace")
    given.write(said[:512])


def _make(root: int, archive: tarfile.TarFile, member: tarfile.TarInfo) -> list[tuple[str, int]]:
    """Make one entry; return the mode that it is to have at the end, if it is a directory."""
    path, mode = _below(member.name), member.mode & PERMISSIONS
    with _parent(root, path) as (directory, name):
        if member.isdir():
            with suppress(FileExistsError):
                os.mkdir(name, stat.S_IRWXU, dir_fd=directory)
            return [(path, mode)]
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=directory)
        elif member.islnk():
            with _parent(root, _below(member.linkname)) as (other, first):
                os.link(first, name, src_dir_fd=other, dst_dir_fd=directory, follow_symlinks=False)
        elif member.isreg():
            content = archive.extractfile(member)
            with closing(os.open(name, _NEW_FILE, 0o600, dir_fd=directory)) as file:
                while content is not None and (piece := content.read(_PIECE_BYTES)):
                    written = 0
                    while written < len(piece):
                        written += os.write(file, piece[written:])
                os.fchmod(file, mode)
                os.utime(file, (member.mtime, member.mtime))
        else:
            raise ValueError(f"{path[:200]!r} is nothing that a workspace may have")
    return []


def _below(name: str) -> str:
    """Return the path of a name in the stream; ValueError for one that is not in the workspace."""
    top, _, path = name.partition("/")
    names = path.split("/") if path else []
    if top != TOP or any(one in ("", ".", "..") for one in names):
        raise ValueError(f"{name[:200]!r} is no path in a workspace")
    return path


class _parent:  # noqa: N801 - a context manager
    """The directory of a path, opened through its parents, and the last name; the root's own is "."."""

    def __init__(self, root: int, path: str) -> None:
        *above, self._name = path.split("/") if path else ["."]
        self._directory = os.dup(root)
        try:
            for name in above:
                inner = os.open(name, _DIRECTORY, dir_fd=self._directory)
                os.close(self._directory)
                self._directory = inner
        except BaseException:
            os.close(self._directory)
            raise

    def __enter__(self) -> tuple[int, str]:
        return self._directory, self._name

    def __exit__(self, *exception: object) -> None:
        os.close(self._directory)
