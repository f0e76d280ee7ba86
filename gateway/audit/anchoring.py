"""Writes the heads of the audit's chains to where the database's owner cannot change them: a file or a program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.audit_chain.anchor import Anchor
from gateway.audit_chain.chain import ChainHead
from gateway.errors import Unavailable
from gateway.storage.audit_reader import AuditReader
from gateway.support.background import in_background
from gateway.support.clock import NowUs, now_us

log = structlog.get_logger(__name__)
_COMMAND_S = 30.0
_SAID_CHARS = 300

Put = Callable[[bytes], None]
"""Keeps whole lines for good; raises OSError or subprocess.SubprocessError where it cannot."""


class Anchoring:
    """Anchors each chain whose head has moved. An anchor that cannot be written is written at the next look."""

    def __init__(self, reader: AuditReader, key: Ed25519PrivateKey, put: Put, clock: NowUs = now_us) -> None:
        self._reader = reader
        self._key = key
        self._put = put
        self._clock = clock
        self._anchored: dict[str, ChainHead] = {}

    async def anchor(self) -> int:
        """Anchor what has moved since the last time; return how many chains."""
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
        """Anchor again and again until the block ends, and once more then."""
        async with in_background(self._anchor_forever(every_s), "anchors of the audit"):
            yield
        await self._try()

    async def _anchor_forever(self, every_s: float) -> None:
        while True:
            await self._try()
            await asyncio.sleep(every_s)

    async def _try(self) -> None:
        try:
            await self.anchor()
        except (OSError, subprocess.SubprocessError, Unavailable) as error:
            log.error("the audit is not anchored; the next look tries again", error=str(error)[:_SAID_CHARS])  # noqa: TRY400 - the text says it
        except Exception:  # the next look may go well, and must come
            log.exception("the audit is not anchored; the next look tries again")


def to_file(path: Path) -> Put:
    """Return what appends to a file; a write that a full disk cuts short leaves nothing behind."""

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
    """Return what gives lines to a program's input; one that fails or takes too long has not taken them."""

    def put(lines: bytes) -> None:
        done = subprocess.run(command, input=lines, capture_output=True, timeout=limit_s, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise OSError(f"{command[0]} ended with {done.returncode}: {said[-_SAID_CHARS:]}")

    return put
