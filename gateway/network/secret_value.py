"""A secret as it is now: read again after a few seconds, so that it rotates without a restart. Never logged."""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gateway.config.network_settings import SecretSettings
from gateway.network.masking import Form, forms

_CACHED_S = 10.0
_COMMAND_S = 10.0
_LIMIT_BYTES = 16 * 1024
# Shorter ones would be found, and masked, everywhere.
_LEAST_CHARACTERS = 8
_PAST_VALUES = 3


class SecretUnavailable(Exception):
    """There is no usable secret where the operator said. The message has nothing of the value."""


class SecretValue:
    """Reads one secret; `seen` are the values it had lately, the current one last."""

    def __init__(self, settings: SecretSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen: deque[str] = deque(maxlen=_PAST_VALUES)
        self._forms: dict[str, frozenset[Form]] = {}
        self._settings = settings
        self._clock = clock
        self._read_at: float | None = None
        self._lock = asyncio.Lock()

    async def current(self) -> str:
        """Return the value. Raises SecretUnavailable."""
        async with self._lock:
            if self._read_at is None or self._clock() - self._read_at >= _CACHED_S:
                value = _checked(await self._read())
                self._read_at = self._clock()
                if value not in self.seen:
                    self.seen.append(value)
                elif self.seen[-1] != value:
                    self.seen.remove(value)
                    self.seen.append(value)
            return self.seen[-1]

    def forms(self) -> frozenset[Form]:
        """Return the ways in which servers write the values that it had lately; made once for each."""
        self._forms = {value: self._forms.get(value) or forms(value) for value in self.seen}
        return frozenset().union(*self._forms.values())

    async def _read(self) -> bytes:
        settings = self._settings
        if settings.environment is not None:
            value = os.environ.get(settings.environment)
            if value is None:
                raise SecretUnavailable(f"the gateway's environment has no {settings.environment}")
            return os.fsencode(value)
        if settings.file is not None:
            return await asyncio.to_thread(_content, settings.file)
        return await _output(settings.command or ())


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise SecretUnavailable(f"{path}: {error.strerror}") from error


async def _output(command: tuple[str, ...]) -> bytes:
    """Return what a command prints; its errors go nowhere, for they might quote the secret."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise SecretUnavailable(f"{command[0]}: {error.strerror}") from error
    assert process.stdout is not None  # noqa: S101 - a pipe
    try:
        async with asyncio.timeout(_COMMAND_S):
            output = b""
            while len(output) <= _LIMIT_BYTES and (piece := await process.stdout.read(_LIMIT_BYTES)):
                output += piece
            if len(output) <= _LIMIT_BYTES and await process.wait() != 0:
                raise SecretUnavailable(f"{command[0]} failed with exit code {process.returncode}")
            return output
    except TimeoutError as error:
        raise SecretUnavailable(f"{command[0]} took longer than {_COMMAND_S:g} s") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, signal.SIGKILL)
                async with asyncio.timeout(_COMMAND_S):
                    while await process.stdout.read(_LIMIT_BYTES):  # its end is seen only where its output's is
                        pass
                    await process.wait()


def _checked(data: bytes) -> str:
    value = data.decode("latin-1").rstrip("\r\n")
    if not _LEAST_CHARACTERS <= len(value) <= _LIMIT_BYTES:
        raise SecretUnavailable(f"the secret has less than {_LEAST_CHARACTERS} or more than {_LIMIT_BYTES} characters")
    if not value.isascii() or not value.isprintable() or value != value.strip():
        raise SecretUnavailable("the secret has characters that a header cannot carry")
    return value
