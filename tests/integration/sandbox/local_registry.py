"""A registry on loopback, which an engine pulls from without TLS: it has one image, of one file."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Registry:
    """`name` is that of its image, `digest` its digest; `asked` are the paths that were asked for."""

    name: str
    digest: str
    blobs: dict[str, bytes]
    asked: list[str] = field(default_factory=list)
    answering: threading.Event = field(default_factory=threading.Event)


def _image(content: bytes) -> tuple[str, dict[str, bytes]]:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        entry = tarfile.TarInfo("marker")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    layer = gzip.compress(tar.getvalue(), mtime=0)
    rootfs = {"type": "layers", "diff_ids": [_digest(tar.getvalue())]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()

    def part(kind: str, data: bytes) -> dict[str, Any]:
        return {"mediaType": kind, "size": len(data), "digest": _digest(data)}

    described = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": part(_CONFIG, config)}
    manifest = json.dumps({**described, "layers": [part(_LAYER, layer)]}).encode()
    return _digest(manifest), {_digest(data): data for data in (layer, config, manifest)}


@contextlib.contextmanager
def registry(content: bytes) -> Iterator[Registry]:
    """Serve an image with one file of this content until the block ends; it answers while `answering` is set."""
    digest, blobs = _image(content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            made.answering.wait(60)
            name = self.path.rsplit("/", 1)[1]
            data = b"{}" if self.path == "/v2/" else blobs.get(digest if name == "1" else name)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            if "/manifests/" in self.path:
                self.send_header("Content-Type", _MANIFEST)
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if self.command == "GET" and data:
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Registry(f"127.0.0.1:{server.server_port}/airlock-test/tools", digest, blobs)
    made.answering.set()
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield made
    finally:
        made.answering.set()
        server.shutdown()
        serving.join()
        server.server_close()
