"""A sandbox's workspace as a whole, through its daemon: a tar stream, read or written in worker threads.

What comes is bounded by nothing but time: who takes it counts. It arrives at a least rate, so a slow daemon is lost.
What it sent quickly does not let it be silent for long.
"""

import errno
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from sandbox.client.channel import Channel
from sandbox.client.replies import plain_text
from sandbox.errors import DaemonLost, NoSpace, SandboxUnavailable
from sandbox.v1 import channel_pb2 as pb

TOP = "workspace"
"""How names in the stream begin."""

_ANSWER_S = 30.0
_SILENCE_S = 60.0
# A daemon has to write what is in its buffers, and to set the modes of all directories.
_WRITTEN_S = 10 * _ANSWER_S
# A kernel may have much to write as well, but who waits holds one of few turns.
_SETTLED_S = 60.0
_LEAST_BYTES_PER_S = 64 * 1024
_PIECE_BYTES = 1024 * 1024
_SAID_BYTES = 1024
# So numbers fit into 63 bits, and so do their sums.
_DIGITS = 18
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class WorkspaceCounts:
    """What a workspace has, as its daemon counts: entries, those of them that are files, and the bytes of files.

    `skipped` is what a snapshot does not have, `stripped` how many entries have bits of their mode that it has not.
    """

    entries: int
    files: int
    size_bytes: int
    skipped: int
    stripped: int


async def opened(channel: Channel, *, fill: bool = False, settle: bool = False) -> socket.socket:
    """Return a connection for the stream, which blocks; the caller closes it. Raises SandboxError."""
    request = pb.Request(archive=pb.ArchiveRequest(fill=fill, settle=settle))
    connection = await channel.tunnel(request, timeout_s=_ANSWER_S)
    connection.settimeout(_ANSWER_S)
    return connection


def received(connection: socket.socket) -> Iterator[bytes]:
    """Yield what the daemon sends, to its end; DaemonLost when it is too slow or the connection breaks."""
    got_bytes, waited_s = 0, 0.0
    with _broken():
        while True:
            began_s = time.monotonic()
            left_s = _ANSWER_S + got_bytes / _LEAST_BYTES_PER_S - waited_s
            connection.settimeout(max(min(left_s, _SILENCE_S), 0.001))
            piece = connection.recv(_PIECE_BYTES)
            waited_s = min(waited_s + time.monotonic() - began_s, got_bytes / _LEAST_BYTES_PER_S + _ANSWER_S)
            if not piece:
                return
            got_bytes += len(piece)
            yield piece


def sent(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    """Send a stream and return when the daemon has written all of it; NoSpace where it does not fit.

    Raises what `pieces` does, and DaemonLost.
    """
    for piece in pieces:
        with _broken():
            connection.sendall(piece)
    with _broken():
        connection.shutdown(socket.SHUT_WR)
    number, text = _answer(connection, _WRITTEN_S)
    if number == 0:
        return
    message = f"the files could not be written into the workspace: {text or 'the daemon ended'}"
    if number in _NO_SPACE:
        raise NoSpace(f"{message}; raise workspace_mib in the policy's sandbox section")
    raise SandboxUnavailable(message)


def settled(connection: socket.socket) -> WorkspaceCounts:
    """Return what a workspace has once the kernel has written all of it to its disk.

    Raises SandboxUnavailable, also where that takes too long: asked again, it would take as long. And DaemonLost.
    """
    try:
        number, text = _answer(connection, _SETTLED_S)
    except DaemonLost as error:
        if not isinstance(error.__cause__, TimeoutError):
            raise
        raise SandboxUnavailable(
            f"the workspace was not written to its disk within {_SETTLED_S:.0f} s: try again when less is written in "
            "this thread"
        ) from error
    numbers = [int(word) for word in text.split() if word.isascii() and word.isdecimal() and len(word) < _DIGITS]
    if number == 0 and len(numbers) == len(fields(WorkspaceCounts)):
        counts = WorkspaceCounts(*numbers)
        if counts.files <= counts.entries and counts.stripped <= counts.entries:
            return counts
    raise SandboxUnavailable(f"the workspace could not be written to its disk: {text or 'the daemon ended'}")


def _answer(connection: socket.socket, limit_s: float) -> tuple[int | None, str]:
    """Return what the daemon says at the end, which is bounded: a number and a text."""
    said = b""
    deadline_s = time.monotonic() + limit_s
    with _broken():
        while len(said) < _SAID_BYTES:
            connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            piece = connection.recv(_SAID_BYTES)
            if not piece:
                break
            said += piece
    number, _, text = said.decode("utf-8", "replace").partition(" ")
    return int(number) if number.isascii() and number.isdecimal() else None, plain_text(text)[:300]


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DaemonLost(f"the connection to the sandbox daemon broke ({error.strerror or error})") from error
