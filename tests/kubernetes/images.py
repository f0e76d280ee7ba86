"""Images for tests: what is run on this machine instead of them."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import google.protobuf

from sandbox.engines.local import local_daemon
from sandbox.engines.local.local_workspaces import remove_directory
from tests.kubernetes.containers import ContainerStart, Launch

_PACKAGES = os.pathsep.join((str(Path(__file__).resolve().parents[2]), str(Path(google.protobuf.__file__).parents[2])))
SOCKET = "/run/airlock/daemon.sock"


def daemon(start: ContainerStart) -> Launch:
    """Run the real daemon as a process: it serves /workspace, and listens on a socket in /run/airlock.

    A volume at /run/airlock shares the socket with the Pod's other containers.
    """
    root = start.path("/workspace").parent
    for own in (root / "tmp", root / "dev" / "shm"):  # a container's own is empty
        remove_directory(own)
        own.mkdir(parents=True)
    (root / "workspace").mkdir(exist_ok=True)
    listener = _listening(start.path(SOCKET))
    environment = {"LANG": "C.UTF-8", "PYTHONPATH": _PACKAGES, "TMPDIR": str(root / "tmp")}
    words = [sys.executable, "-S", "-P", "-m", local_daemon.__name__, str(root), str(listener)]
    return Launch(words, environment, descriptors=(listener,))


def python_module(start: ContainerStart) -> Launch:
    """Run the `-m MODULE ...` of a container's command by this Python; paths are those of its volumes."""
    words = list(start.command)[list(start.command).index("-m") :]
    local = [str(start.path(word)) if word.startswith("/") else word for word in words]
    environment = {**start.environment, "PYTHONPATH": _PACKAGES, "PYTHONUNBUFFERED": "1"}
    return Launch([sys.executable, "-S", "-P", *local], environment)


def python_code(start: ContainerStart) -> Launch:
    """Run the `-c CODE ...` of a container's command by this Python."""
    words = list(start.command)[list(start.command).index("-c") :]
    return Launch([sys.executable, "-S", "-P", *words], start.environment)


def nothing(_: ContainerStart) -> Launch:
    """End at once and well, as an init container that only copies does."""
    return Launch(["true"])


def _listening(place: Path) -> int:
    """Return the descriptor of a listening socket, whose path may be longer than a socket's address."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    handle = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{handle}/{place.name}")
        listener.listen(512)
        return listener.detach()
    finally:
        os.close(handle)
