"""Images of every kind, made in the test from a few files: no registry and no build is needed."""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.integration.sandbox.live_engine import instance_id

Files = Mapping[str, bytes | str]

_BUSYBOX = Path(__file__).parents[3] / ".build" / "tests" / "busybox"


@contextlib.contextmanager
def image(files: Files, changes: Sequence[str] = (), *, modes: Mapping[str, int] | None = None) -> Iterator[str]:
    """Yield the name of an image that has these files and nothing else; a str is a symbolic link's target.

    A path that ends with / is a directory. `changes` are lines of a Dockerfile, such as USER; `modes` are octal
    permissions by path, 755 where none is given.
    """
    name = f"airlock-made-{instance_id()}"
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.strip("/"))
            entry.mode = (modes or {}).get(path, 0o755)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            elif path.endswith("/"):
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    command = ["docker", "import", *(word for change in changes for word in ("--change", change)), "-", name]
    subprocess.run(command, input=tar.getvalue(), check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)


@functools.cache
def busybox() -> Files:
    """Return a root file system of one static program, its links, and no library at all."""
    program = static_busybox()
    tools = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    return {"/bin/busybox": program.read_bytes(), **{f"/bin/{tool}": "busybox" for tool in tools if tool != "busybox"}}


def static_busybox() -> Path:
    """Return Debian's static busybox: by the host's apt, or a container's where the host has none. Kept in .build."""
    if not _BUSYBOX.exists():
        _BUSYBOX.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_BUSYBOX.parent) as directory:
            fetch = (
                f"cd {directory} && apt-get -o APT::Sandbox::User=root download busybox-static && dpkg-deb -x *.deb ."
            )
            command = ["sh", "-c", fetch]
            if shutil.which("apt-get") is None:
                of_container = ["docker", "run", "--rm", "--network", "host", "-v", f"{directory}:{directory}"]
                command = [*of_container, "airlock-base", "sh", "-c", f"apt-get update && {fetch}"]
            subprocess.run(command, check=True, capture_output=True)
            (Path(directory) / "bin" / "busybox").replace(_BUSYBOX)
    return _BUSYBOX
