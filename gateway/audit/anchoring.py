"""Anchors the audit: the heads of its chains, where the database's owner cannot change them."""

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from airlock.audit_chain import ChainHead
from gateway.audit_chain.anchor import Anchor
from gateway.errors import Unavailable
from gateway.storage.audit_reader import AuditReader
from gateway.support.background import Periodic
from gateway.support.clock import NowUs, now_us

_COMMAND_S = 30.0
_STDERR_CHARS = 300

Put = Callable[[bytes], None]
"""Appends whole lines durably; raises OSError or subprocess.SubprocessError."""


class Anchoring:
    """Writes the heads of the chains that moved where the database's owner cannot change them: to a file or a program.

    An anchor that cannot be written is retried in the next round.
    """

    def __init__(self, reader: AuditReader, key: Ed25519PrivateKey, put: Put, clock: NowUs = now_us) -> None:
        self._reader = reader
        self._key = key
        self._put = put
        self._clock = clock
        self._anchored: dict[str, ChainHead] = {}

    async def anchor(self) -> int:
        """Anchor the chains that moved since the last time; return how many."""
        heads = await self._reader.heads()
        moved = {tenant: head for tenant, head in heads.items() if self._anchored.get(tenant) != head and head.sequence}
        if moved:
            at_us = self._clock()
            lines = [
                Anchor(tenant, at_us, head.sequence, head.digest, records=head.sequence - head.first_sequence + 1).line(
                    self._key
                )
                for tenant, head in sorted(moved.items())
            ]
            await asyncio.to_thread(self._put, "".join(f"{line}\n" for line in lines).encode())
        self._anchored = dict(heads)
        return len(moved)

    @contextlib.asynccontextmanager
    async def following(self, every_s: float) -> AsyncIterator[None]:
        """Anchor every `every_s` seconds until the block ends, and once more then."""
        expected = (OSError, subprocess.SubprocessError, Unavailable)
        rounds = Periodic(
            self.anchor, every_s, "the audit is not anchored; the next round tries again", expected, logging.ERROR
        )
        async with rounds.running("anchors of the audit"):
            yield
        await rounds.once()


def to_file(path: Path) -> Put:
    """Return a function that appends to a file; a write that fails half-way on a full disk is undone."""

    def put(lines: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size_bytes = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, lines) != len(lines):
                    raise OSError(f"{path}: the disk is full")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size_bytes)
                raise
        finally:
            os.close(descriptor)

    return put


def to_command(command: Sequence[str], limit_s: float = _COMMAND_S) -> Put:
    """Return a function that pipes lines into a program; the lines count as written only if it exits with 0 in time."""

    def put(lines: bytes) -> None:
        done = subprocess.run(command, input=lines, capture_output=True, timeout=limit_s, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise OSError(f"{command[0]} ended with {done.returncode}: {said[-_STDERR_CHARS:]}")

    return put
