"""curl, git, pip and npm with a credential that they never see, through TLS that is opened on the way."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from gateway.config.network_settings import CredentialSettings
from gateway.network.certificates import CertificateAuthority
from gateway.network.client_hello import read_client_hello
from gateway.network.credentials import Caller, Credentials
from gateway.network.http_relay import relay_http
from gateway.network.http_request import Origin
from gateway.network.tls_server import accept_tls
from tests.unit.gateway.network.relayed import Gate

_SECRET = "the-real-token-0123"
_ME = Caller("agent", "bash")
_BASIC = "Basic " + base64.b64encode(f"token:{_SECRET}".encode()).decode()


class _Files(SimpleHTTPRequestHandler):
    """Serves a directory to clients that have the token, and echoes a body."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == _BASIC:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="files"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])) + str(self.headers).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@dataclass
class _Door:
    """Where clients find the proxy, and what its commands have in their environment."""

    environment: dict[str, str]
    gate: Gate

    async def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            command,
            env={"PATH": os.environ["PATH"], **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )


async def _connect(
    gate: Gate, authority: CertificateAuthority, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one CONNECT, and open its TLS."""
    head = await reader.readuntil(b"\r\n\r\n")
    host, _, port = head.split(b" ")[1].decode().rpartition(":")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    first = b""
    while (hello := read_client_hello(first)) is None:
        if not (piece := await reader.read(65536)):
            return
        first += piece
    assert hello.server_name == host
    assert not hello.encrypted
    inside = await accept_tls((reader, writer), first, authority.context(host), handshake_s=20)
    await relay_http(inside, gate, origin=Origin("https", host, int(port)))


@contextlib.asynccontextmanager
async def _door(tmp_path: Path, files: Path) -> AsyncIterator[_Door]:
    (tmp_path / "secret").write_text(_SECRET)
    settings = {
        "name": "files",
        "env": "TOKEN",
        "hosts": ["files.example"],
        "basic_user": "token",
        "secret": {"file": str(tmp_path / "secret")},
    }
    credentials = Credentials([CredentialSettings.model_validate(settings)])
    authority = CertificateAuthority(b"secret", "acme")
    (tmp_path / "ca.pem").write_text(authority.ca_pem)
    issuer = trustme.CA()
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issuer.issue_cert("files.example", "other.example").configure_cert(serving)
    issuer.configure_trust(trusting)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(files)))
    server.socket = serving.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    gate = Gate(
        dict.fromkeys(["files.example", "other.example"], server.server_address[1]),
        exchange=lambda request: credentials.exchange(request, _ME),
        tls={"ssl": trusting, "server_hostname": "files.example"},
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await _connect(gate, authority, reader, writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    ca = str(tmp_path / "ca.pem")
    try:
        yield _Door(
            {
                "HTTPS_PROXY": f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}",
                "HOME": str(tmp_path),
                **dict.fromkeys(["SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT"], ca),
                **credentials.environment(_ME),
            },
            gate,
        )
    finally:
        listening.close()
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


async def test_curl_uses_it_where_it_is_bound_and_is_refused_elsewhere(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "big").write_bytes(os.urandom(3_000_000))
    async with _door(tmp_path, files) as door:
        url = "https://files.example/big"
        got = await door.run("sh", "-c", f'curl -sS --fail -u "me:$TOKEN" -o {tmp_path}/got {url}')
        assert got.returncode == 0, got.stderr
        assert (tmp_path / "got").read_bytes() == (files / "big").read_bytes()
        assert " 401" in (await door.run("sh", "-c", f"curl -sS --fail {url}")).stderr
        elsewhere = await door.run("sh", "-c", 'curl -sS -u "me:$TOKEN" https://other.example/big')
        assert "files.example:443 only" in elsewhere.stdout
        body = await door.run("sh", "-c", 'curl -sS -d "token=$TOKEN" https://files.example/')
        assert "in the body" in body.stdout
        echoed = await door.run("sh", "-c", 'curl -sS --compressed -u "me:$TOKEN" -d a=b https://files.example/')
        assert echoed.stdout.startswith("a=bHost: files.example")
        assert "Authorization: Basic" in echoed.stdout
        assert "****" in echoed.stdout
        assert _BASIC not in echoed.stdout
        upload = f'curl -sS -u "me:$TOKEN" --data-binary @{files}/big https://files.example/ | wc -c'
        assert int((await door.run("sh", "-c", upload)).stdout) > 3_000_000  # curl expects 100-continue
        assert [refused.status for refused in door.gate.refusals] == [403, 403]


@pytest.mark.parametrize("way", ["url", "helper"])
async def test_git_clones_with_it(tmp_path: Path, way: str) -> None:
    made, files = tmp_path / "made", tmp_path / "files"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@a.example")
    for command in (
        (*git, "init", "-q", str(made)),
        (*git, "-C", str(made), "commit", "-q", "--allow-empty", "-m", "the first"),
        (*git, "clone", "-q", "--bare", str(made), str(files / "repo.git")),
        (*git, "-C", str(files / "repo.git"), "update-server-info"),
    ):
        subprocess.run(command, check=True, capture_output=True)
    async with _door(tmp_path, files) as door:
        helper = "-c credential.helper='!f() { echo username=me; echo password=$TOKEN; }; f'" if way == "helper" else ""
        user = "me:$TOKEN@" if way == "url" else ""
        got = await door.run("sh", "-c", f'git {helper} clone -q "https://{user}files.example/repo.git" {tmp_path}/got')
        assert got.returncode == 0, got.stderr
        log = await door.run("git", "-C", str(tmp_path / "got"), "log", "--format=%s")
        assert log.stdout == "the first\n"
        without = await door.run("git", "ls-remote", "https://files.example/repo.git", GIT_TERMINAL_PROMPT="0")
        assert without.returncode != 0


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")
async def test_pip_downloads_with_it(tmp_path: Path) -> None:
    index = tmp_path / "files" / "simple" / "some-thing"
    index.mkdir(parents=True)
    name = "some_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr("some_thing.py", "")
        wheel.writestr("some_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.0\n")
        wheel.writestr(
            "some_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("some_thing-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{name}">{name}</a></body></html>')
    async with _door(tmp_path, tmp_path / "files") as door:
        pip = f"{sys.executable} -m pip --isolated --disable-pip-version-check --no-cache-dir"
        command = f"{pip} download -q -d {tmp_path}/got some-thing"
        url = "https://me:$TOKEN@files.example/simple/"
        got = await door.run("sh", "-c", f'{command} --index-url "{url}"')
        assert got.returncode == 0, got.stderr
        assert [path.name for path in (tmp_path / "got").iterdir()] == [name]
        assert _SECRET not in got.stdout + got.stderr
        without = await door.run("sh", "-c", f"{command} --no-input --index-url https://files.example/simple/")
        assert without.returncode != 0


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm: apt-get install npm")
async def test_npm_downloads_with_it(tmp_path: Path) -> None:
    package, files = tmp_path / "package", tmp_path / "files"
    package.mkdir()
    files.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "some-thing", "version": "1.0.0"}))
    subprocess.run(["tar", "czf", files / "some-thing.tgz", "-C", tmp_path, "package"], check=True)
    version = {
        "name": "some-thing",
        "version": "1.0.0",
        "dist": {"tarball": "https://files.example/some-thing.tgz"},
    }
    registry = {"name": "some-thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (files / "some-thing").write_text(json.dumps(registry))
    async with _door(tmp_path, files) as door:
        # The machine's own configuration may name other authorities.
        options = "--globalconfig /dev/null --fetch-retries 0 --registry https://files.example/"
        npm, trust = (
            f"cd {tmp_path} && npm pack {options} some-thing",
            {"NODE_EXTRA_CA_CERTS": str(tmp_path / "ca.pem")},
        )
        without = await door.run("sh", "-c", npm, **trust)
        assert "E401" in without.stderr
        write = "//files.example/:username=me\\n//files.example/:_password=%s\\n"
        login = f'printf \'{write}\' "$(printf %s "$TOKEN" | base64 -w0)" > {tmp_path}/.npmrc'
        got = await door.run("sh", "-c", f"{login} && {npm}", **trust)
        assert got.returncode == 0, got.stderr
        assert (tmp_path / "some-thing-1.0.0.tgz").is_file()
        assert _SECRET not in got.stdout + got.stderr + (tmp_path / ".npmrc").read_text()
