"""A site on loopback with what clients of many kinds fetch: a file, an npm registry and an apt repository."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import ssl
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme

CONTENT = "hello from the tests"


class _Files(SimpleHTTPRequestHandler):
    """Serves a directory, and notes each path that is asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@dataclass(frozen=True)
class Site:
    """Where it is; `seen` are the paths that were asked for."""

    host: str
    port: int
    url: str
    seen: list[str]


@contextlib.contextmanager
def site(directory: Path, host: str, authority: trustme.CA | None = None) -> Iterator[Site]:
    """Serve until the block ends, over TLS if there is an authority. A directory of its own is made anew."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(directory)))
    seen: list[str] = []
    server.seen = seen  # type: ignore[attr-defined]
    port = server.server_address[1]
    made = Site(host, port, f"{'https' if authority else 'http'}://{host}:{port}", seen)
    directory.mkdir()
    for name, data in _files(made.url).items():
        (directory / name).write_bytes(data)
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _files(url: str) -> Mapping[str, bytes]:
    package = _npm_package()
    deb = _deb()
    entry = [*_CONTROL, "Filename: ./hello.deb", f"Size: {len(deb)}", f"SHA256: {hashlib.sha256(deb).hexdigest()}"]
    packages = ("\n".join(entry) + "\n").encode()
    digest = hashlib.sha256(packages).hexdigest()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    version = {
        "name": "airlock-hello",
        "version": "1.0.0",
        "dist": {"tarball": f"{url}/hello.tgz", "integrity": integrity},
    }
    registry = {"name": "airlock-hello", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return {
        "hello.txt": CONTENT.encode(),
        "airlock-hello": json.dumps(registry).encode(),
        "hello.tgz": package,
        "hello.deb": deb,
        "Packages": packages,
        "Release": f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {digest} {len(packages)} Packages\n".encode(),
    }


def _tar(files: Mapping[str, str]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content.encode()))
    return gzip.compress(archive.getvalue(), mtime=0)


def _npm_package() -> bytes:
    manifest = {"name": "airlock-hello", "version": "1.0.0"}
    return _tar({"package/package.json": json.dumps(manifest), "package/hello.txt": CONTENT})


_CONTROL = (
    *("Package: airlock-hello", "Version: 1.0", "Architecture: all", "Maintainer: tests <tests@airlock.example>"),
    "Description: says hello",
)


def _deb() -> bytes:
    """Return a Debian package: an ar archive of three members."""
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({"./control": "\n".join(_CONTROL) + "\n"}),
        "data.tar.gz": _tar({"./usr/share/hello.txt": CONTENT}),
    }
    archive = b"!<arch>\n"
    for name, data in members.items():
        archive += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return archive
