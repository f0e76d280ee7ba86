"""A package index (PEP 503 and PEP 691) on loopback, with wheels that it builds itself. Standard library only.

with PackageIndex(greeting_wheel()) as index:
    subprocess.run([sys.executable, "-m", "pip", "install", "--index-url", index.url, "airlock-greeting"])
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_JSON = "application/vnd.pypi.simple.v1+json"
# A connection without a request for longer is closed.
_IDLE_TIMEOUT_S = 30.0
_TALLY = '''\
"""Runs the tests of the project in the working directory, and says how many pass."""

import os
import sys
import unittest


def main():
    sys.path.insert(0, os.getcwd())
    result = unittest.main(module=None, argv=["tally"], exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"tally: {result.testsRun - failed} of {result.testsRun} tests pass")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True)
class Wheel:
    """A pure-Python wheel: the project's name, the wheel's file name and its bytes."""

    project: str
    file_name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Request:
    """A request that the index received: its target as sent, and its headers by lower-case name."""

    method: str
    target: str
    headers: Mapping[str, str]


def build_wheel(project: str, version: str, sources: Mapping[str, str], programs: Mapping[str, str]) -> Wheel:
    """Build a wheel from text by file name, and programs by name, each a `module:function`."""
    name = re.sub(r"[-_.]+", "_", project).lower()
    info = f"{name}-{version}.dist-info"
    scripts = "".join(f"{program} = {function}\n" for program, function in programs.items())
    files = {
        **sources,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: airlock\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}",
    }
    record = "".join(f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return Wheel(project, f"{name}-{version}-py3-none-any.whl", packed.getvalue())


def greeting_wheel() -> Wheel:
    """Build airlock-greeting 1.0: a module with `greet()`, and the program `greet`, which prints "well met"."""
    source = 'def greet():\n    return "well met"\n\n\ndef main():\n    print(greet())\n'
    return build_wheel("airlock-greeting", "1.0", {"airlock_greeting.py": source}, {"greet": "airlock_greeting:main"})


def tally_wheel() -> Wheel:
    """Build tally 1.0: a module that runs the tests of the working directory, and says how many pass."""
    return build_wheel("tally", "1.0", {"tally.py": _TALLY}, {"tally": "tally:main"})


class PackageIndex:
    """Serves wheels on an address of loopback while entered. `requests` grows with each request, as they arrive."""

    def __init__(self, *wheels: Wheel, host: str = "127.0.0.1") -> None:
        self._wheels = wheels
        self._host = host
        self.requests: list[Request] = []

    def __enter__(self) -> Self:
        index = self

        class Handler(_Handler):
            wheels = index._wheels
            requests = index.requests

        self._server = ThreadingHTTPServer((self._host, 0), Handler)
        # Thousandths of a second at the end, not the half second that is the default.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="package-index")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        """What `pip install --index-url` takes."""
        return f"http://{self._host}:{self.port}/simple/"


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    wheels: tuple[Wheel, ...]
    requests: list[Request]
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer with a page or a wheel."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.requests.append(Request(self.command, self.path, headers))
        path = urlsplit(self.path).path
        if path == "/simple/":
            names = list(dict.fromkeys(wheel.project for wheel in self.wheels))
            links = {f"/simple/{_normalized(name)}/": name for name in names}
            self._page({"projects": [{"name": name} for name in names]}, links)
        elif found := re.fullmatch(r"/simple/([^/]+)/", path):
            self._project([wheel for wheel in self.wheels if _normalized(wheel.project) == found[1]])
        elif path.startswith("/files/"):
            self._file([wheel for wheel in self.wheels if path == f"/files/{wheel.file_name}"])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        """Answer as for GET, without the body."""
        self.do_GET()

    def _project(self, wheels: list[Wheel]) -> None:
        if not wheels:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        files = [
            {"filename": wheel.file_name, "url": f"/files/{wheel.file_name}", "hashes": {"sha256": wheel.sha256}}
            for wheel in wheels
        ]
        links = {f"/files/{wheel.file_name}#sha256={wheel.sha256}": wheel.file_name for wheel in wheels}
        self._page({"name": _normalized(wheels[0].project), "files": files}, links)

    def _page(self, content: dict[str, object], links: Mapping[str, str]) -> None:
        """Answer in JSON if the client takes it, else in HTML."""
        if _JSON in self.headers.get("Accept", ""):
            self._answer(_JSON, json.dumps({"meta": {"api-version": "1.0"}, **content}).encode())
        else:
            anchors = "".join(f'<a href="{target}">{name}</a>\n' for target, name in links.items())
            self._answer("text/html", f"<!DOCTYPE html>\n<html><body>\n{anchors}</body></html>\n".encode())

    def _file(self, wheels: list[Wheel]) -> None:
        if wheels:
            self._answer("application/octet-stream", wheels[0].data)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, content_type: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing; `requests` has them."""


def _normalized(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def _digest(text: str) -> str:
    """Return a digest in the form of a wheel's RECORD."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
