"""TarStream: the members of a tar stream that a hostile sandbox may have made, one after another.

tarfile.TarFile reads an extended header in whatever size it claims, and one after another, before anybody can count
what comes. Here a member has one at most, of the only kind that a Docker engine and the sandbox daemon write (pax), and
of a few KiB. Nothing is taken from it but what a workspace has.
"""

import tarfile
from collections.abc import Iterable, Iterator

PIECE_BYTES = 1024 * 1024
# A path and the target of a link, of 4 KiB each, and a few numbers and attributes.
_EXTENDED_LIMIT_BYTES = 32 * 1024
_LENGTH_DIGITS = 5
_END = bytes(tarfile.BLOCKSIZE)
# Nothing follows the header of a member of another type than a file, whatever size it claims.
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_TYPES = (
    *_FILES,
    *(tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
    *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
)


class TarStream:
    """Reads pieces, keeping one; tarfile.TarError or ValueError where they are no tar stream, or end early."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")
        self._left_bytes = self._padding_bytes = 0

    def next(self) -> tarfile.TarInfo | None:
        """Return the next member, None at the end; what was not read of the last one's content is passed over."""
        for _ in self.content():
            pass
        self._exactly(self._padding_bytes)
        self._padding_bytes = 0
        member = self._header()
        if member is not None and member.type == tarfile.XHDTYPE:
            records = self._records(member.size)
            member = self._header()
            if member is not None:
                _extend(member, records)
        if member is None:
            self._check_end()
            return None
        if member.type not in _TYPES or member.size < 0:
            raise tarfile.ReadError(f"a member of the type {member.type!r} and of {member.size} bytes")
        self._left_bytes = member.size if member.type in _FILES else 0
        self._padding_bytes = -self._left_bytes % tarfile.BLOCKSIZE
        return member

    def content(self) -> Iterator[bytes]:
        """Yield what is left of the last member's content."""
        while self._left_bytes:
            piece = self._some(min(self._left_bytes, PIECE_BYTES))
            self._left_bytes -= len(piece)
            yield piece

    def _header(self) -> tarfile.TarInfo | None:
        block = self._exactly(tarfile.BLOCKSIZE)
        return None if block == _END else tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")

    def _records(self, size_bytes: int) -> dict[bytes, bytes]:
        """Read the records of an extended header: "LENGTH KEY=VALUE" and a line feed, all of which LENGTH counts."""
        if not 0 <= size_bytes <= _EXTENDED_LIMIT_BYTES:
            raise tarfile.ReadError(f"an extended header of {size_bytes} bytes")
        data = self._exactly(size_bytes)
        self._exactly(-size_bytes % tarfile.BLOCKSIZE)
        records, begin = {}, 0
        while begin < size_bytes:
            key = data.index(b" ", begin, begin + _LENGTH_DIGITS + 1) + 1
            end = begin + int(data[begin:key])
            if not key < end <= size_bytes or data[end - 1 : end] != b"\n":
                raise tarfile.ReadError("an extended header whose lengths are wrong")
            name, _, value = data[key : end - 1].partition(b"=")
            records[name] = value
            begin = end
        return records

    def _check_end(self) -> None:
        """Read to the end, which is two blocks of zeros or more; the first one has been read."""
        zeros = 0
        while piece := self._some(PIECE_BYTES, end=True):
            if piece.count(0) != len(piece):
                raise tarfile.ReadError("something follows its end")
            zeros += len(piece)
        if zeros < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it ends early")

    def _exactly(self, size_bytes: int) -> bytes:
        parts = []
        while size_bytes:
            parts.append(self._some(size_bytes))
            size_bytes -= len(parts[-1])
        return b"".join(parts)

    def _some(self, limit_bytes: int, *, end: bool = False) -> bytes:
        """Return what is there, of a size up to the limit; none only at the end, where one may come."""
        while not self._piece:
            following = next(self._pieces, None)
            if following is None:
                if end:
                    return b""
                raise tarfile.ReadError("it ends early")
            self._piece = memoryview(following)
        data, self._piece = bytes(self._piece[:limit_bytes]), self._piece[limit_bytes:]
        return data


def _extend(member: tarfile.TarInfo, records: dict[bytes, bytes]) -> None:
    if (path := records.get(b"path")) is not None:
        member.name = path.decode("utf-8", "surrogateescape")
    if (target := records.get(b"linkpath")) is not None:
        member.linkname = target.decode("utf-8", "surrogateescape")
    if (size := records.get(b"size")) is not None:
        member.size = int(size)
    if (modified := records.get(b"mtime")) is not None:
        member.mtime = float(modified)
