"""One gateway a state directory: two would end each other's runs and remove each other's sandboxes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import Misconfigured


@contextlib.contextmanager
def locked_state(state_dir: Path) -> Iterator[None]:
    """Hold the directory until the block ends; the kernel lets go of it when this process dies, however it dies."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Misconfigured(
            f"state_dir {state_dir}: {error.strerror}; the gateway must be able to write there"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise Misconfigured(
                f"state_dir {state_dir} is in use by another gateway (process {holder or 'unknown'}): "
                "stop that one, or give this one a state_dir of its own"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
